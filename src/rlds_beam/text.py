"""Numbers and names in messages, and text from others."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO


def count(number: int | None, noun: str) -> str:
    """`1 episode`, `1,200 episodes`, or `an unknown number of episodes` for None."""
    if number is None:
        return f"an unknown number of {noun}s"
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_size(number: int) -> str:
    """A readable number of bytes: `1.2 MB`."""
    size, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{number} B" if unit == "B" else f"{size:.1f} {unit}"


def shorten(value: object, most: int = 200) -> str:
    """A value or an error as one line of at most `most` characters; a system's error without its number and path."""
    said = value.strerror if isinstance(value, OSError) and value.strerror else value
    text = " ".join((said.decode(errors="replace") if isinstance(said, bytes) else str(said)).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def printable(text: object, most: int = 200) -> str:
    """Text from a dataset as one line of a file or a page: shortened, control and invisible characters as escapes."""
    return escape_controls(shorten(text, most))


def escape_controls(text: str) -> str:
    """Text whose control and invisible characters are escapes (`\\x1b`), except line breaks and tabs."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


_PASSWORD = re.compile(r"(?<=://)[^\s/?#@'\"]*@")
_QUERY = re.compile(r"(\b(?!(?:s3|gs|az|hf)://)[a-z][\w+.-]{0,20}://[^\s?#'\"<>]*\?)[^\s'\"<>]+")
_SECRET_FLAG = re.compile(r"(--[\w-]*(?:secret|token|password|credential|connection_string|access_key)[\w-]*=)\S+")


def without_secrets(text: str) -> str:
    """Text without passwords and queries (which may be signatures) of web addresses, and values of secret flags."""
    text = _PASSWORD.sub("", text) if "://" in text else text
    text = _QUERY.sub(r"\1...", text) if "?" in text else text
    return _SECRET_FLAG.sub(r"\1...", text) if "--" in text else text


class EscapingStream:
    """The standard output and error of a command: the one place where text of others is escaped for a terminal.

    Terminals obey control characters, and those that change the direction of text hide what it says.

    Args:
      stream: where to write.
    """

    def __init__(self, stream: TextIO):
        self.unescaped = raw_stream(stream)

    def write(self, text: str) -> int:
        """Writes text; returns its length."""
        self.unescaped.write(escape_controls(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes texts."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


def raw_stream(stream: TextIO) -> TextIO:
    """The stream that takes control characters, for our own colors and bars."""
    return stream.unescaped if isinstance(stream, EscapingStream) else stream


def did_you_mean(name: str, names: Iterable[str], most: int = 1, otherwise: str = "") -> str:
    """`; did you mean train?` with up to `most` of the `names` that resemble `name`; if none does, `; {otherwise}`."""
    near = difflib.get_close_matches(name, list(names), n=most)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; {otherwise}" if otherwise else ""


def join_texts(texts: Sequence[str]) -> str:
    """All texts: `a, b and c`."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def some(texts: Sequence[str]) -> str:
    """The first three texts and the number of others: `a, b, c and 2 more`."""
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3:,} more" if len(texts) > 3 else "")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose columns are aligned to the left."""
    cells = [[shorten(cell, 200) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def duration(seconds: float) -> str:
    """`0.5 s`, `12.3 s`, `2:05`, `1:02:03`."""
    return f"{seconds:.1f} s" if seconds < 60 else clock(seconds)


def clock(seconds: float) -> str:
    """`0:05`, `2:05`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def tree(groups: Mapping[str, Mapping[str, str]]) -> str:
    """Trees of paths, each with a text: one tree for each group that has any."""
    lines: list[tuple[str, str]] = []
    for name, texts in groups.items():
        if texts:
            lines.append((name, ""))
            lines += _branches({tuple(path.split("/")): text for path, text in texts.items()}, "")
    width = max((len(name) for name, text in lines if text), default=0)
    return "\n".join(f"{name:{width}}  {text}".rstrip() for name, text in lines)


def shape_text(shape: tuple[int | None, ...]) -> str:
    """A shape as numpy writes it, with unknown sizes as question marks: `(7,)`, `(?, 3)`, `()`."""
    dims = ", ".join("?" if size is None else str(size) for size in shape)
    return f"({dims}{',' if len(shape) == 1 else ''})"


def type_text(dtype: str, shape: tuple[int | None, ...]) -> str:
    """A dtype and a shape: `float32 (7,)`, `bool`."""
    return f"{dtype} {shape_text(shape)}" if shape else dtype


def _branches(texts: Mapping[tuple[str, ...], str], indent: str) -> Iterable[tuple[str, str]]:
    """The lines below a node: each with the name, and the text of a leaf."""
    names = list(dict.fromkeys(path[0] for path in texts))
    for name in names:
        last = name == names[-1]
        yield f"{indent}{'└── ' if last else '├── '}{shorten(name)}", texts.get((name,), "")
        below = {path[1:]: text for path, text in texts.items() if path[0] == name and len(path) > 1}
        if below:
            yield from _branches(below, indent + ("    " if last else "│   "))
