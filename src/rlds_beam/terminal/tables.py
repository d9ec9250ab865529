"""Tables of text with aligned columns."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from rlds_beam.text import printable

SHORTEST_TEXT = 16
"""Columns of a text at least, before others leave a table that is too wide."""

_MOST_TEXT = 2000
"""Longest text of a cell, in characters."""

_NUMBER = re.compile(r"[-+]?(\d[\d,.]*(e[-+]?\d+)?|inf)( [kMGT]?B|%)?|nan")


def table_lines(
    header: Sequence[str], rows: Iterable[Sequence[str]], width: int | None = None, drop: Sequence[str] = ()
) -> list[str]:
    """The lines of a table; the first is the header.

    Columns of numbers are aligned to the right. Control characters are escaped.

    Args:
      header: the names of the columns.
      rows: their cells.
      width: the most columns of a line; None for no limit. Long texts are shortened; then columns of `drop` leave,
        the first one first; then lines are cut.
      drop: names of columns that may be left out.
    """
    cells = [[printable(cell, _MOST_TEXT) for cell in row] for row in (header, *rows)]
    columns = [list(column) for column in zip(*cells, strict=True)]
    remaining = list(drop)
    while width is not None and _width(columns) > width and remaining:
        if _fits(columns, width):
            break
        name = remaining.pop(0)
        columns = [column for column in columns if column[0] != name]
    if width is not None and _width(columns) > width:
        _shorten(columns, width)
    padded = [_padded(column) for column in columns]
    lines = ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]
    return lines if width is None else [cut(line, width) for line in lines]


def columns_of(text: str) -> int:
    """The columns that a text takes in a terminal: two for each wide character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in ("W", "F") else 1 for c in text
    )


def cut(text: str, width: int) -> str:
    """A text of at most `width` columns, ending in `…` if it is longer."""
    if columns_of(text) <= width:
        return text
    while text and columns_of(text) > width - 1:
        text = text[: max(0, min(len(text) - 1, width - 1))]
    return f"{text}…" if width > 0 else ""


def _is_number(column: Sequence[str]) -> bool:
    return all(_NUMBER.fullmatch(cell) for cell in column[1:] if cell) and any(column[1:])


def _size(column: Sequence[str]) -> int:
    return max(map(columns_of, column))


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(map(_size, columns)) + 2 * (len(columns) - 1)


def _texts(columns: Sequence[list[str]]) -> list[int]:
    """The columns of text that may be shortened, the longest first."""
    texts = [i for i, column in enumerate(columns) if not _is_number(column) and _size(column) > SHORTEST_TEXT]
    return sorted(texts, key=lambda i: -_size(columns[i]))


def _fits(columns: Sequence[list[str]], width: int) -> bool:
    """Whether the table fits if texts are shortened."""
    return _width(columns) - sum(_size(columns[i]) - SHORTEST_TEXT for i in _texts(columns)) <= width


def _shorten(columns: list[list[str]], width: int) -> None:
    for i in _texts(columns):
        excess = _width(columns) - width
        if excess > 0:
            size = max(SHORTEST_TEXT, _size(columns[i]) - excess)
            columns[i] = [cut(cell, size) for cell in columns[i]]


def _padded(column: Sequence[str]) -> list[str]:
    size, right = _size(column), _is_number(column)
    spaces = [" " * (size - columns_of(cell)) for cell in column]
    return [space + cell if right else cell + space for cell, space in zip(column, spaces, strict=True)]
