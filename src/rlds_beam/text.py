"""Numbers and names in messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


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


def shortened(value: object, most: int = 200) -> str:
    """A value or an error as one line of at most `most` characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def printable(text: object, most: int = 200) -> str:
    """Text from a dataset as one line for a terminal: control and invisible characters as escapes, shortened.

    Terminals obey control characters, and those that change the direction of text hide what it says.
    """
    line = shortened(text.decode(errors="replace") if isinstance(text, bytes) else text, most)
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def did_you_mean(name: str, names: Iterable[str], most: int = 1, otherwise: str = "") -> str:
    """`; did you mean train?` with up to `most` of the `names` that resemble `name`; if none does, `; {otherwise}`."""
    near = difflib.get_close_matches(name, list(names), n=most)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; {otherwise}" if otherwise else ""


def joined(texts: Sequence[str]) -> str:
    """All texts: `a, b and c`."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def some(texts: Sequence[str]) -> str:
    """The first three texts and the number of others: `a, b, c and 2 more`."""
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3:,} more" if len(texts) > 3 else "")
