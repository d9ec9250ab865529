"""Known faults of public datasets and how to fix them: `--preset=NAME`. They are in `presets.yaml`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

import msgspec

from rlds_beam.encoding.metadata import parse_yaml
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A known fault of a dataset, and its fix: an entry of `presets.yaml`, which says what each field is."""

    fault: str
    source: tuple[str, ...]
    datasets: tuple[str, ...]
    connectors: tuple[dict[str, dict[str, Any]], ...] = ()
    repair: tuple[str, ...] = ()


@functools.cache
def read_presets() -> Mapping[str, Preset]:
    """All presets by name."""
    text = (resources.files(__package__) / "presets.yaml").read_text("utf-8")
    return msgspec.convert(parse_yaml(text, "presets.yaml"), dict[str, Preset])


def find_preset(name: str) -> Preset:
    """The preset with this name; raises UsageError if there is none."""
    presets = read_presets()
    if name not in presets:
        hint = did_you_mean(name, presets, otherwise=f"there are {', '.join(presets)}")
        raise UsageError(f"--preset={name}: unknown preset{hint}")
    return presets[name]


def suggest_presets(dataset: str, schema: Schema) -> list[str]:
    """The presets for a dataset, `name/version`, that has the fields which they name: its original has others."""
    paths = {*schema.steps, *schema.metadata}
    suggested = []
    for name, preset in read_presets().items():
        arguments = [given for connector in preset.connectors for given in connector.values()]
        fields = [path for given in arguments for path in (*given.get("fields", ()), given.get("field")) if path]
        if dataset.split("/")[0] in preset.datasets and paths.issuperset(fields):
            suggested.append(name)
    return suggested
