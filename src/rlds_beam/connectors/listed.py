"""Counts which keys of a list of episodes (`--exclude`, `--only`) were found; workers add up the counts."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rlds_beam.text import count


class Run(NamedTuple):
    """Adjacent keys of the sorted list that were all found.

    Attributes:
      start, stop: their positions in the list, [start, stop).
      next: the key at `stop`; empty at the end of the list.
    """

    start: int
    stop: int
    next: str


@dataclasses.dataclass(frozen=True)
class Listed:
    """The keys of a list, and those that a record had which was read.

    Attributes:
      keys: the number of keys.
      first: the first key of the sorted list; empty if it has none.
      found: the keys found, in order; adjacent ones are one run.
    """

    keys: int = 0
    first: str = ""
    found: tuple[Run, ...] = ()

    def add(self, other: Listed) -> Listed:
        """Returns the union of what was found; order does not matter."""
        if not other.found or self.found == other.found:
            return self
        found: list[Run] = []
        for run in sorted((*self.found, *other.found)):
            if found and run.start <= found[-1].stop:
                if run.stop > found[-1].stop:
                    found[-1] = Run(found[-1].start, run.stop, run.next)
            else:
                found.append(run)
        return dataclasses.replace(self, found=tuple(found))

    @property
    def missing(self) -> int:
        """The number of keys that no record had."""
        return self.keys - sum(run.stop - run.start for run in self.found)

    @property
    def example(self) -> str:
        """The first key that no record had; empty if all were found."""
        return self.found[0].next if self.found and self.found[0].start == 0 else self.first

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Listed:
        """Reads `dataclasses.asdict(listed)`."""
        runs = [Run(operator.index(start), operator.index(stop), str(key)) for start, stop, key in content["found"]]
        return cls(operator.index(content["keys"]), str(content["first"]), tuple(runs))


def listed_lines(listed: Iterable[tuple[str, Listed]]) -> list[str]:
    """The lines of a summary about keys that were not found.

    Args:
      listed: the name of each connector that has a list, and its counts.
    """
    return [
        f"not found {one.missing:,} of {count(one.keys, 'key')} of {name}: no record read has them, for example "
        f"{one.example}"
        for name, one in listed
        if one.missing
    ]
