"""Options that choose the input and output formats, and include the options of these formats."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rlds_beam.formats.registry import OUTPUTS, RLDS, SOURCES, TRAJECTORIES, output_group, source_group
from rlds_beam.options import Group, Options, option
from rlds_beam.user_functions import qualified_name

if TYPE_CHECKING:
    from rlds_beam.formats.recognition import Recognized


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions(Options):
    """What to read."""

    from_: str | None = option(None, f"{', '.join(SOURCES)}, or module:Class (default: recognized)", metavar="FORMAT")
    split: str | None = option(
        None, "split or slice as in TFDS: train, train[:10%], train+test (all splits by default)", metavar="SPLIT"
    )
    features: str | None = option(None, "features.json, if it is not in the input's directory", metavar="FILE")
    from_options: Any = None  # the options of the input's format

    reads: ClassVar[str] = ""
    """The option with the input, whose format is recognized; of several inputs, the first one's."""

    @functools.cached_property
    def recognized(self) -> Recognized | None:
        """What the files of the input tell; None if `from_` names the format, or if there is no input.

        Raises:
          UsageError: the format is unknown or ambiguous, or the input is a directory of several datasets.
        """
        from rlds_beam.formats.recognition import recognize

        given = getattr(self, self.reads)
        return recognize(given) if given and self.from_ is None else None

    @property
    def source_format(self) -> str:
        """The name of the input's format, given or recognized; `rlds` if there is no input."""
        return self.from_ or (RLDS if self.recognized is None else self.recognized.format)

    def for_input(self, path: str) -> Self:
        """The options for another input, or for one of several inputs."""
        several = isinstance(getattr(self, self.reads), tuple)
        changes: dict[str, Any] = {self.reads: (path,) if several else path}
        return dataclasses.replace(self, **changes)

    @classmethod
    def open_input(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        from rlds_beam.formats.recognition import recognize

        if not values.get(cls.reads) or values.get("from_") is not None:
            return values
        return {**values, "from_": recognize(values[cls.reads]).format}

    @classmethod
    def groups(cls, values: Mapping[str, Any]) -> tuple[Group, ...]:
        given = values.get("from_")
        if given is None:
            return super().groups(values)
        return *super().groups(values), source_group(given if isinstance(given, str) else qualified_name(given))

    @classmethod
    def known_groups(cls) -> tuple[Group, ...]:
        return *super().known_groups(), *map(source_group, SOURCES)


@dataclasses.dataclass(frozen=True)
class InputOptions(SourceOptions):
    """The input."""

    reads: ClassVar[str] = "input"

    input: str = option(
        dataclasses.MISSING, "dataset directory or files, or several datasets", positional=True, several=True
    )


def to_option(default: str) -> Any:
    """The option `to` of a job, with its default format."""
    return option(default, f"{', '.join(OUTPUTS)}, or module:Class", metavar="FORMAT")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """What to write."""

    to: str = to_option(TRAJECTORIES)
    robot_type: str | None = option(None, "robot name, if the data does not say it")
    to_options: Any = None  # the options of the output's format

    @classmethod
    def groups(cls, values: Mapping[str, Any]) -> tuple[Group, ...]:
        to = values.get("to", cls.__dataclass_fields__["to"].default)
        return *super().groups(values), output_group(to if isinstance(to, str) else qualified_name(to))

    @classmethod
    def known_groups(cls) -> tuple[Group, ...]:
        return *super().known_groups(), *map(output_group, OUTPUTS)
