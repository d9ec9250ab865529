"""The splits, and slices of them, that `--split` selects, in TFDS's syntax."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

from rlds_beam.errors import UsageError
from rlds_beam.reading.base import Split
from rlds_beam.text import count

_SPLIT = re.compile(r"(?P<name>[\w-]+)(\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")


def selected_splits(
    split: str | None, known: Collection[str], dataset: str
) -> list[tuple[str, str | None, str | None]]:
    """The (name, start, stop) of each selected split.

    Args:
      split: the selection: `train`, `train[:10%]`, `train[5:20]+test`; None and `all` select every split.
      known: the names of the dataset's splits.
      dataset: the dataset's name.

    Raises:
      UsageError: a split does not exist or is selected twice.
    """
    if split is None or (split == "all" and "all" not in known):
        return [(name, None, None) for name in known]
    parts: list[tuple[str, str | None, str | None]] = []
    for text in split.replace(" ", "").split("+"):
        match = _SPLIT.fullmatch(text)
        if match is None:
            raise UsageError(
                f"--split={text}: expected a split or a slice, for example train, train[:10%], or train[5:20]"
            )
        if match["name"] not in known:
            raise UsageError(f"--split={text}: {dataset} has the splits {', '.join(known)}")
        if any(match["name"] == name for name, _, _ in parts):
            raise UsageError(f"--split={split} names {match['name']} twice; convert the slices one by one")
        parts.append((match["name"], match["start"], match["stop"]))
    return parts


def slice_split(split: Split, start: str | None, stop: str | None) -> Split:
    """Slices a split; like TFDS, rejects a slice that is empty or out of range."""
    if start is None and stop is None:
        return split
    if split.episodes is None:
        raise UsageError(f"{split.name} cannot be sliced: the number of episodes in its shards is unknown")
    first, last = parse_slice(split.name, split.episodes, start, stop)
    return dataclasses.replace(split, start=split.start + first, stop=split.start + last)


def parse_slice(name: str, total: int, start: str | None, stop: str | None) -> tuple[int, int]:
    """The first episode of a slice, and the one after its last.

    Raises:
      UsageError: the slice is empty or out of range.
    """
    text = f"{name}[{start or ''}:{stop or ''}]"
    first, last = (_boundary(text, total, default) for text, default in ((start, 0), (stop, total)))
    if not (0 <= first <= total and 0 <= last <= total):
        raise UsageError(f"--split={text} is out of range: {name} has {count(total, 'episode')}")
    if first >= last:
        raise UsageError(f"--split={text} is empty ({first} to {last}): {name} has {count(total, 'episode')}")
    return first, last


def _boundary(text: str | None, total: int, default: int) -> int:
    """An episode index from `10%`, `-5`, or `7`; percentages round to the nearest, as in TFDS."""
    if text is None:
        return default
    value = round(int(text[:-1]) * total / 100) if text.endswith("%") else int(text)
    return total + value if value < 0 else value
