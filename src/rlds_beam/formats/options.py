"""Options that choose the input and output formats, and include the options of these formats."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rlds_beam.formats.registry import (
    OUTPUTS,
    RLDS,
    SOURCES,
    TRAJECTORIES,
    can_read,
    formats,
    output_group,
    source_group,
)
from rlds_beam.options import Group, Options, option, option_names
from rlds_beam.user_functions import qualified_name

if TYPE_CHECKING:
    from rlds_beam.formats.recognition import Recognized


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions(Options):
    """What to read."""

    from_: str | None = option(
        None,
        "format of the input (listed below), or module:Class (default: recognized from its files)",
        metavar="FORMAT",
        chooses="from_options",
    )
    split: str | None = option(
        None, "split or slice as in TFDS: train, train[:10%], train+test (all splits by default)", metavar="SPLIT"
    )
    features: str | None = option(None, "features.json, if it is not in the input's directory", metavar="FILE")
    from_options: Any = option(None, "the options of the input's format", hidden=True)
    recognized: Any = option(None, "the result of `recognize`, once it is known", hidden=True)

    reads: ClassVar[str] = ""
    """The option with the input, whose format is recognized; of several inputs, the first one's."""

    def __post_init__(self) -> None:
        from rlds_beam.formats.recognition import Recognized, as_input

        known = None if self.recognized is None else Recognized(*self.recognized)  # a list, in JSON
        same = known is not None and self.from_ is None and known.input == as_input(getattr(self, self.reads))
        if not same:
            known = None if self.from_options is None else self._recognize()
        object.__setattr__(self, "recognized", known)
        super().__post_init__()

    def _recognize(self) -> Recognized | None:
        from rlds_beam.formats.recognition import recognize

        given = getattr(self, self.reads)
        return recognize(given) if given and self.from_ is None else None

    def resolve(self) -> Self:
        """These options with the format of the input, and that format's options.

        A config is made without looking: what it refuses needs no files and no network. This looks at the input, unless
        `from_` names its format.

        Raises:
          UsageError: the format is unknown or ambiguous, or the input is a directory of several datasets.
        """
        found = self.recognized or self._recognize()
        return self if found is self.recognized else dataclasses.replace(self, recognized=found)

    @property
    def source_format(self) -> str:
        """The name of the input's format, given or recognized; `rlds` if there is no input."""
        found = self.resolve().recognized
        return self.from_ or (RLDS if found is None else found.format)

    def for_input(self, path: str) -> Self:
        """The options for another input, or for one of several inputs."""
        from rlds_beam.formats.recognition import recognize

        found = None if self.from_ is not None else recognize(path)
        same = found is None or self.from_options is None or found.format == self.source_format
        several = isinstance(getattr(self, self.reads), tuple)
        changes: dict[str, Any] = {self.reads: (path,) if several else path, "recognized": found}
        return dataclasses.replace(self, **changes, from_options=self.from_options if same else None)

    @classmethod
    def imply(cls, values: Mapping[str, Any], *, look: bool = False) -> dict[str, Any]:
        """The recognized format of the input, if options of its format are given, or `look`."""
        from rlds_beam.formats.recognition import recognize

        given = values.get(cls.reads)
        if not given or any(values.get(name) is not None for name in ("from_", "recognized")):
            return {}
        own = option_names(cls)
        others = {name for name, value in values.items() if name not in own and value not in (None, [])}
        ours = {name for group in cls.known_groups() for name in option_names(group.options_class)}
        names = SOURCES if others <= ours else [name for name, known in formats().items() if known.source]
        used = any(not others.isdisjoint(option_names(source_group(name).options_class)) for name in names if others)
        return {"recognized": recognize(given)} if used or look else {}

    @classmethod
    def groups(cls, values: Mapping[str, Any]) -> tuple[Group, ...]:
        """The group of the input's format is among them once the format is known."""
        found, given = values.get("recognized"), values.get("from_")
        if given is None and found is not None:
            given = found.format if can_read(found.format) else RLDS
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
        dataclasses.MISSING,
        "dataset directory or files, or several datasets",
        positional=True,
        several=True,
    )


def to_option(default: str) -> Any:
    """The option `to` of a job, with its default format."""
    help_text = "format of the output (listed below), or module:Class"
    return option(default, help_text, metavar="FORMAT", chooses="to_options")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """What to write."""

    to: str = to_option(TRAJECTORIES)
    robot_type: str | None = option(None, "robot name, if the data does not say it")
    to_options: Any = option(None, "the options of the output's format", hidden=True)

    @classmethod
    def groups(cls, values: Mapping[str, Any]) -> tuple[Group, ...]:
        to = values.get("to", cls.__dataclass_fields__["to"].default)
        return *super().groups(values), output_group(to if isinstance(to, str) else qualified_name(to))

    @classmethod
    def known_groups(cls) -> tuple[Group, ...]:
        return *super().known_groups(), *map(output_group, OUTPUTS)
