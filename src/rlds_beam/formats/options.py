"""Options that choose the input and output formats, and include the options of these formats."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Self

from rlds_beam.formats.registry import OUTPUTS, SOURCES, TRAJECTORIES, output_options, source_options
from rlds_beam.options import Options, option

if TYPE_CHECKING:
    from rlds_beam.formats.recognition import Recognized


@dataclasses.dataclass(frozen=True)
class InputOptions(Options):
    """What to read."""

    input: str = option(
        dataclasses.MISSING, "dataset directory or files, or several datasets", positional=True, several=True
    )
    _: dataclasses.KW_ONLY
    from_: str | None = option(None, f"{', '.join(SOURCES)}, or module:Class (default: recognized)", metavar="FORMAT")
    split: str | None = option(
        None, "split or slice as in TFDS: train, train[:10%], train+test (all splits by default)", metavar="SPLIT"
    )
    features: str | None = option(None, "features.json, if it is not in the input's directory", metavar="FILE")
    from_options: Any = None  # the options of the input's format

    @functools.cached_property
    def recognition(self) -> Recognized:
        """The format of the input, and what tells it: `--from`, or its files.

        Raises:
          UsageError: the format is unknown or ambiguous, or the input is a directory of several datasets.
        """
        from rlds_beam.formats.recognition import Recognized, recognize

        return Recognized(self.from_, "--from") if self.from_ else recognize(self.input)

    @property
    def source_format(self) -> str:
        """The name of the input's format, given or recognized."""
        return self.recognition.format

    def with_format(self) -> Self:
        return dataclasses.replace(self, from_=self.source_format)

    def format_options(self) -> dict[str, type[Options]]:
        chosen = {} if self.from_ is None else {"from_options": source_options(self.from_)}
        return super().format_options() | chosen

    @classmethod
    def known_formats(cls) -> dict[str, type[Options]]:
        return super().known_formats() | {f"--from={name}": source_options(name) for name in SOURCES}


def to_option(default: str) -> Any:
    """The option `to` of a job, with its default format."""
    return option(default, f"{', '.join(OUTPUTS)}, or module:Class", metavar="FORMAT")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """What to write."""

    to: str = to_option(TRAJECTORIES)
    robot_type: str | None = option(None, "robot name, if the data does not say it")
    to_options: Any = None  # the options of the output's format

    def format_options(self) -> dict[str, type[Options]]:
        return super().format_options() | {"to_options": output_options(self.to or TRAJECTORIES)}

    @classmethod
    def known_formats(cls) -> dict[str, type[Options]]:
        return super().known_formats() | {f"--to={name}": output_options(name) for name in OUTPUTS}
