"""The size and the colors of a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Literal, TextIO

from rlds_beam.text import unescaped

_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33}

Style = Literal["bold", "dim", "red", "green", "yellow"]


def terminal_size(stream: TextIO | None = None) -> tuple[int, int] | None:
    """The columns and lines of the terminal behind a stream (standard output by default); None for a file or a pipe."""
    stream = sys.stdout if stream is None else stream
    size = shutil.get_terminal_size()
    return (size.columns, size.lines) if stream.isatty() else None


def print_styled(text: str) -> None:
    """Prints our own colors or pictures; control characters of any other text must be escaped before."""
    print(text, file=unescaped(sys.stdout))


def styled(text: str, style: Style, stream: TextIO | None = None) -> str:
    """Text with a color or weight if the stream (standard output by default) is a terminal that shows colors."""
    stream = sys.stdout if stream is None else stream
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return text if plain or not stream.isatty() else f"\x1b[{_CODES[style]}m{text}\x1b[0m"
