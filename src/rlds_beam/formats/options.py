"""Options that choose the input and output formats, and include the options of these formats."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from rlds_beam.formats.registry import OUTPUTS, RLDS, SOURCES, TRAJECTORIES, output_group, source_group
from rlds_beam.options import Group, Options, option
from rlds_beam.user_functions import name_of

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on


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
    recognized: Any = option(None, "what the input is (`formats.recognizing.Recognized`), without --from", hidden=True)

    reads: ClassVar[str] = ""
    """The option with the input, whose format is recognized; of several inputs, the first one's."""

    def __post_init__(self) -> None:
        for name, value in self.implied(vars(self)).items():
            object.__setattr__(self, name, value)
        super().__post_init__()

    @property
    def source_format(self) -> str:
        """The name of the input's format, given or recognized; `rlds` if it is not known."""
        return self.from_ or (RLDS if self.recognized is None else self.recognized.format)

    def for_input(self, path: str) -> Self:
        """The options for another input, or for one of several inputs."""
        from rlds_beam.formats.recognizing import recognize

        found = None if self.from_ is not None else recognize(path)
        same = found is None or found.format == self.source_format
        several = isinstance(getattr(self, self.reads), tuple)
        changes: dict[str, Any] = {self.reads: (path,) if several else path, "recognized": found}
        return dataclasses.replace(self, **changes, from_options=self.from_options if same else None)

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """What the input is recognized as, unless its format is given."""
        from rlds_beam.formats.recognizing import Recognized, as_input, recognize

        given, known = values.get(cls.reads), values.get("recognized")
        if values.get("from_") is not None or not given:
            return {"recognized": None}
        found = None if known is None else Recognized(*known)  # a list, in JSON
        return {"recognized": found if found is not None and found.input == as_input(given) else recognize(given)}

    @classmethod
    def groups(cls, values: Mapping[str, Any]) -> tuple[Group, ...]:
        found = values.get("recognized")
        given = values.get("from_") or (found.format if found is not None and found.format in SOURCES else RLDS)
        return *super().groups(values), source_group(given if isinstance(given, str) else name_of(given))

    @classmethod
    def known_groups(cls) -> tuple[Group, ...]:
        return *super().known_groups(), *map(source_group, SOURCES)


@dataclasses.dataclass(frozen=True)
class InputOptions(SourceOptions):
    """The input."""

    reads: ClassVar[str] = "input"

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
        to = values.get("to", cls.__dataclass_fields__["to"].default)
        return *super().groups(values), output_group(to if isinstance(to, str) else name_of(to))

    @classmethod
    def known_groups(cls) -> tuple[Group, ...]:
        return *super().known_groups(), *map(output_group, OUTPUTS)
