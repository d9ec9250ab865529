"""The name and version of a written dataset, and the metadata to copy from the source."""

from __future__ import annotations

import re

from rlds_beam import storage
from rlds_beam.output.manifest import VERSION
from rlds_beam.reading.base import Source

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_NAME = re.compile(r"[a-z][a-z0-9_]*", re.IGNORECASE)
_LICENSE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE)[\w.-]*")

CARRIED = (
    "description",
    "citation",
    "location",
    "redistributionInfo",
    "releaseNotes",
    "moduleName",
    "configName",
    "configDescription",
    "configTags",
    "supervisedKeys",
    "disableShuffling",
)
"""Keys of dataset_info.json that still hold for the edited dataset."""


def name_and_version(source: Source, directory: str) -> tuple[str, str]:
    """The name and version of the directory, if it is `…/NAME/1.0.0` as in TFDS, or else of the source."""
    parent, last = storage.split(directory.rstrip("/"))
    above = storage.split(parent)[1]
    own = source.dataset.split("/")[-1]
    version = next((v for v in (last, own) if _VERSION.fullmatch(v)), VERSION)
    of_config = above in source.dataset.split("/")[1:-1]  # …/NAME/CONFIG/1.0.0
    named = _VERSION.fullmatch(last) and _NAME.fullmatch(above) and not of_config
    return (above if named else source.name), version


def is_license(name: str) -> bool:
    """Whether a file next to a dataset is a license."""
    return _LICENSE.fullmatch(name) is not None
