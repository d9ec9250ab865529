"""The name and the version of a dataset that is written, and what of the source's metadata goes on with it."""

from __future__ import annotations

import re

from rlds_beam import storage
from rlds_beam.output.manifest import VERSION
from rlds_beam.reading.base import Source

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_NAME = re.compile(r"[a-z][a-z0-9_]*", re.IGNORECASE)
_LICENCE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE)[\w.-]*")

CARRIED = (
    "description", "citation", "location", "redistributionInfo", "releaseNotes", "moduleName", "configName",
    "configDescription", "configTags", "supervisedKeys", "disableShuffling",
)  # fmt: skip
"""What of a dataset_info.json is as true of the edited dataset."""


def name_and_version(source: Source, directory: str) -> tuple[str, str]:
    """Those of the directory, `…/NAME/1.0.0` as TFDS looks for it, or of the dataset."""
    parent, last = storage.split(directory.rstrip("/"))
    above = storage.split(parent)[1]
    own = source.dataset.split("/")[-1]
    version = next((v for v in (last, own) if _VERSION.fullmatch(v)), VERSION)
    of_config = above in source.dataset.split("/")[1:-1]  # …/NAME/CONFIG/1.0.0
    named = _VERSION.fullmatch(last) and _NAME.fullmatch(above) and not of_config
    return (above if named else source.name), version


def is_licence(name: str) -> bool:
    """Whether a file beside a dataset holds a licence."""
    return _LICENCE.fullmatch(name) is not None
