"""The episodes that a report shows: which ones, and within a budget of bytes."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.errors import Violation
from rlds_beam.text import printable
from rlds_beam.viewing.facts import MAX_TEXT_CHARACTERS, instruction_of
from rlds_beam.viewing.report.showing import Limits, cell_of, size_of, view_of
from rlds_beam.viewing.report.views import EpisodeView, GridCell, Mark

if TYPE_CHECKING:
    import pyarrow as pa

_GRID_HEIGHT = 72


@dataclasses.dataclass
class Shelf:
    """Reads episodes and keeps their views, within the budget.

    Attributes:
      read: reads the record at a key.
      broken: the rules that an episode breaks.
      budget: bytes for frames and curves; pictures stop at three quarters of it.
      marks: key -> the places of signals in an episode.
      names: the names of the values of fields, by path.
      views: key -> the view.
      steps: (key, rule) -> the step that broke the rule.
    """

    read: Callable[[EpisodeKey], Episode]
    broken: Callable[[Episode], Sequence[Violation]]
    budget: int
    marks: Mapping[str, Sequence[Mark]] = dataclasses.field(default_factory=dict)
    names: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    views: dict[str, EpisodeView] = dataclasses.field(default_factory=dict)
    steps: dict[tuple[str, str], int | None] = dataclasses.field(default_factory=dict)
    _used: int = 0
    _cut: int = 0

    def show(self, key: str, limits: Limits) -> None:
        """Adds the view of an episode, without frames or curves if the budget is used up."""
        if key in self.views:
            return
        left = self.budget - self._used
        cut = limits.without(pictures=left < self.budget // 4, curves=left <= 0)
        self._cut += cut != limits
        episode = self.read(EpisodeKey.parse(key))
        broken = self.broken(episode)
        for violation in broken:
            self.steps.setdefault((key, violation.rule), violation.step)
        marks = (*map(_mark, broken), *self.marks.get(key, ()))
        view = view_of(episode, cut, marks, instruction_of(episode), self.names)
        self.views[key] = view
        self._used += size_of(view)

    def grid(self, keys: Iterable[str]) -> tuple[GridCell, ...]:
        """The first and last frames of episodes; empty without cameras."""
        cells: list[GridCell] = []
        for key in keys:
            episode = self.read(EpisodeKey.parse(key))
            cell = cell_of(episode, _GRID_HEIGHT, instruction_of(episode))
            if cell is None:
                break
            cells.append(cell)
        self._used += sum(len(cell.first.jpeg) + len(cell.last.jpeg) for cell in cells) * 4 // 3
        return tuple(cells)

    def notes(self) -> tuple[str, ...]:
        """What was left out to keep the report small."""
        note = f"{self._cut} episodes are shown without frames or curves, to keep the report small"
        return (note,) if self._cut else ()


def _mark(violation: Violation) -> Mark:
    step = violation.step
    detail = printable(violation.detail, MAX_TEXT_CHARACTERS)
    return Mark("rule", violation.rule, violation.field or "", step, None if step is None else step + 1, detail)


def sample_keys(keys: Iterable[str], count: int) -> list[str]:
    """Up to `count` keys, chosen as if at random: those with the smallest hashes."""
    return heapq.nsmallest(count, keys, lambda key: (hashlib.blake2b(key.encode(), digest_size=8).digest(), key))


def accepted_keys(table: pa.Table) -> list[str]:
    """The keys of accepted records."""
    import pyarrow.compute as pc

    keys: list[str] = table["key"].filter(pc.is_null(table["rule"])).to_pylist()
    return keys


def worst_rows(values: np.ndarray[Any, Any], keys: Sequence[str], count: int, *, below: bool) -> list[int]:
    """The rows with the largest (or smallest) values, worst first; equal ones by key. NaN is no value."""
    known = np.flatnonzero(~np.isnan(values))
    sign = 1.0 if below else -1.0
    if len(known) > count:  # keep all rows that are as bad as the last one
        limit = np.partition(sign * values[known], count - 1)[count - 1]
        known = known[sign * values[known] <= limit]
    return sorted(known.tolist(), key=lambda row: (sign * values[row], EpisodeKey.parse(keys[row])))[:count]
