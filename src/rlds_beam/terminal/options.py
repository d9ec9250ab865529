"""Options for what a command prints and what counts as success."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from rlds_beam._version import __version__
from rlds_beam.options import Options, flag_name, option
from rlds_beam.text import without_secrets


def print_json(content: Mapping[str, Any]) -> None:
    """Prints the result of a command as JSON, with the version."""
    text = json.dumps({"version": __version__, **content}, indent=2)
    print(text.replace("\x7f", "\\u007f"))  # the only control character that JSON does not escape


def format_flags(options: Any, group: type[Any]) -> Iterator[str]:
    """The options of a group that differ from their defaults, as flags without secrets."""
    for field in dataclasses.fields(group):
        value, flag = getattr(options, field.name), f"--{flag_name(field.name)}"
        if value == field.default or field.metadata.get("positional") or "help" not in field.metadata:
            continue
        if value is True:
            yield flag
            continue
        texts = [*map(str, value)] if isinstance(value, tuple) else [str(value)]
        if not field.metadata.get("repeated"):
            texts = [",".join(texts)]
        yield from (without_secrets(f"{flag}={text}") for text in texts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrintOptions(Options):
    """Output on the terminal."""

    json: bool = option(False, "print the report and errors as JSON")
    progress: Literal["auto", "plain", "none"] = option(
        "auto", "progress on stderr: a bar on a terminal, elsewhere (and with plain) a line every 30 seconds"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportOptions(PrintOptions):
    """What counts as success."""

    max_rejected: float = option(
        0, "rejected episodes to allow before exiting with code 3: a count (12), or a fraction below 1 (0.05)", least=0
    )

    def max_rejected_of(self, records: int) -> float:
        """The number of `records` that may be rejected."""
        return self.max_rejected * (1 if self.max_rejected >= 1 else records)
