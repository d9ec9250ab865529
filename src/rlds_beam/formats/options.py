"""Options that choose the input and output formats, and include the options of these formats."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlds_beam.formats.registry import OUTPUTS, RLDS, SOURCES, TRAJECTORIES, output_group, source_group
from rlds_beam.options import Group, Options, option
from rlds_beam.user_functions import name_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions(Options):
    """What to read."""

    from_: str = option(
        RLDS, "format of the input (listed below), or module:Class", metavar="FORMAT", chooses="from_options"
    )
    split: str | None = option(
        None, "split or slice as in TFDS: train, train[:10%], train+test (all splits by default)", metavar="SPLIT"
    )
    features: str | None = option(None, "features.json, if it is not in the input's directory", metavar="FILE")
    from_options: Any = option(None, "the options of the input's format", hidden=True)

    @classmethod
    def groups(cls, values: Mapping[str, Any]) -> tuple[Group, ...]:
        return *super().groups(values), source_group(_chosen(cls, "from_", values))

    @classmethod
    def known_groups(cls) -> tuple[Group, ...]:
        return *super().known_groups(), *map(source_group, SOURCES)


@dataclasses.dataclass(frozen=True)
class InputOptions(SourceOptions):
    """The input."""

    input: str = option(dataclasses.MISSING, "dataset directory or files", positional=True, several=True)


def to_option(default: str) -> Any:
    """The option `to` of a job, with its default format."""
    help_text = "format of the output (listed below), or module:Class"
    return option(default, help_text, metavar="FORMAT", chooses="to_options")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """What to write."""

    to: str = to_option(TRAJECTORIES)
    to_options: Any = option(None, "the options of the output's format", hidden=True)

    @classmethod
    def groups(cls, values: Mapping[str, Any]) -> tuple[Group, ...]:
        return *super().groups(values), output_group(_chosen(cls, "to", values))

    @classmethod
    def known_groups(cls) -> tuple[Group, ...]:
        return *super().known_groups(), *map(output_group, OUTPUTS)


def _chosen(config_class: type[Options], name: str, values: Mapping[str, Any]) -> str:
    """The name of the format in an option, which may also be a class."""
    given = values.get(name, config_class.__dataclass_fields__[name].default)
    return given if isinstance(given, str) else name_of(given)
