"""Measured episodes in columns, which workers add up in any order, and their timestamps."""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.rates import MIN_STEPS
from rlds_beam.checking.signals.motion import Laid
from rlds_beam.typing import Array

Key: TypeAlias = tuple[str, str, int, int, int]
Name = TypeVar("Name")
Column = TypeVar("Column")

_INDEX = 8
"""Bytes of the place of a file's index, at its end."""


class Columns(Mapping[Name, Column]):
    """Columns that are loaded each time they are used: together they may take too much memory."""

    def __init__(self, names: Iterable[Name], load: Callable[[Name], Column]):
        self._names, self._load = dict.fromkeys(names), load

    def __getitem__(self, name: Name) -> Column:
        if name not in self._names:
            raise KeyError(name)
        return self._load(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[Name]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclasses.dataclass(frozen=True)
class SignalRows:
    """The measurements of E episodes.

    Attributes:
      keys: (dataset, split, shard, position, part) of each.
      numbers: column -> values (E,). A missing number is NaN, or 0 in a column of integers.
      vectors: (field, statistic) -> values (E, D), one for each dimension of a field of motion; what the signals that
        compare episodes need.
      values: column -> texts, numbers, or None.
    """

    keys: Sequence[Key]
    numbers: Mapping[str, Array]
    vectors: Mapping[tuple[str, str], Array]
    values: Mapping[str, list[Any]]

    def __len__(self) -> int:
        return len(self.keys)

    @staticmethod
    def concatenate(parts: Sequence[SignalRows]) -> SignalRows:
        """All rows; what a part lacks is missing. Columns are put together when they are used."""

        def numbers(name: str) -> Array:
            columns = [part.numbers.get(name) for part in parts]
            kind = next(column.dtype for column in reversed(columns) if column is not None)
            return np.concatenate(
                [_numbers(column, len(part), kind) for column, part in zip(columns, parts, strict=True)]
            )

        def vectors(name: tuple[str, str]) -> Array:
            return np.concatenate(_pad([part.vectors.get(name) for part in parts], [len(part) for part in parts]))

        def values(name: str) -> list[Any]:
            return [value for part in parts for value in part.values.get(name) or [None] * len(part)]

        return SignalRows(
            [key for part in parts for key in part.keys],
            Columns(_names(part.numbers for part in parts), numbers),
            Columns(_names(part.vectors for part in parts), vectors),
            Columns(_names(part.values for part in parts), values),
        )

    def in_order(self) -> SignalRows:
        """The rows, by key."""
        order = sorted(range(len(self)), key=self.keys.__getitem__)
        places = np.array(order, np.int64)
        return SignalRows(
            [self.keys[i] for i in order],
            Columns(self.numbers, lambda name: self.numbers[name][places]),
            Columns(self.vectors, lambda name: self.vectors[name][places]),
            Columns(self.values, lambda name: [*map(self.values[name].__getitem__, order)]),
        )

    def loaded(self) -> SignalRows:
        """The rows with all columns in memory."""
        return SignalRows(self.keys, dict(self.numbers), dict(self.vectors), dict(self.values))

    def write(self, path: str) -> None:
        """Writes the rows to a file for `read`.

        Raises:
          DiskError: the disk is full.
        """
        file = io.BytesIO()
        tables: tuple[Mapping[Any, Any], ...] = (self.numbers, self.vectors, self.values)
        places: tuple[dict[Any, int], ...] = ({}, {}, {})
        for table, found in zip(tables, places, strict=True):
            for name, column in table.items():
                found[name] = file.tell()
                pickle.dump(column, file, pickle.HIGHEST_PROTOCOL)
        index = file.tell()
        pickle.dump((self.keys, places), file, pickle.HIGHEST_PROTOCOL)
        file.write(index.to_bytes(_INDEX, "little"))
        storage.write_bytes(path, file.getvalue())

    @staticmethod
    def read(path: str) -> SignalRows:
        """The rows of a file that `write` wrote; its columns are read when they are used."""

        def load(place: int) -> Any:
            with open(path, "rb") as file:
                file.seek(place)
                return pickle.load(file)

        with open(path, "rb") as file:
            file.seek(-_INDEX, io.SEEK_END)
            index = int.from_bytes(file.read(), "little")
        keys, places = load(index)
        return SignalRows(keys, *(Columns(own, lambda name, own=own: load(own[name])) for own in places))  # type: ignore[misc]


def _names(parts: Iterable[Any]) -> list[Any]:
    return sorted({name for part in parts for name in part})


def _numbers(column: Array | None, size: int, kind: np.dtype[Any]) -> Array:
    return np.full(size, np.nan if kind.kind == "f" else 0, kind) if column is None else column


def _pad(parts: Sequence[Array | None], sizes: Sequence[int]) -> list[Array]:
    """The vectors of all parts, with as many dimensions as the one with the most; missing ones are NaN."""
    most = max(part.shape[1] for part in parts if part is not None)
    full = []
    for part, size in zip(parts, sizes, strict=True):
        if part is not None and part.shape[1] == most:
            full.append(part)
            continue
        rows = np.full((size, most), np.nan, np.float32)
        if part is not None:
            rows[:, : part.shape[1]] = part
        full.append(rows)
    return full


_GAP, _GAP_DEVIATIONS = 1.5, 5.0
"""A frame is missing after this many usual intervals, lerobot-doctor's definition (checks/temporal.py), if the interval
is also this many standard deviations longer: jitter makes long intervals and loses nothing."""


def clock_signals(columns: Sequence[Array], laid: Laid) -> dict[str, Array]:
    """The signals of one field of timestamps for E episodes: signal -> (E,), and the `interval` between steps.

    The usual interval is the median of the episode's own, so the unit does not matter. Its standard deviation is 1.4826
    times the median absolute deviation.

        timestamps    0    10    20    50    60        usual interval 10, 2 frames missing before step 3
    """
    times = np.concatenate([np.asarray(column).reshape(-1) for column in columns])
    gaps = np.zeros(len(times))
    gaps[1:] = np.diff(times.astype(np.int64) if times.dtype.kind in "iu" else times.astype(np.float64))
    inner = np.ones(len(times), bool)
    inner[laid.starts] = False
    known = inner & np.isfinite(gaps)
    counts = np.add.reduceat(known.view(np.int8), laid.starts, dtype=np.int64)
    usual = _medians(gaps, known, laid, counts)
    unit = np.repeat(usual, laid.lengths)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = np.where(known, gaps / unit, 1.0)
        usable = (counts + 1 >= MIN_STEPS) & (usual > 0)
        deviation = 1.4826 * _medians(np.abs(ratios - 1), known, laid, counts)
        longest = np.repeat(np.maximum(_GAP, 1 + _GAP_DEVIATIONS * deviation), laid.lengths)
        missing = np.where(ratios > longest, np.rint(ratios) - 1, 0.0)
        lost = np.add.reduceat(missing, laid.starts)
        regular = known & (ratios > 0) & (ratios <= _GAP)
        squares = np.add.reduceat(np.where(regular, np.square(ratios - 1), 0.0), laid.starts)
        regulars = np.add.reduceat(regular.view(np.int8), laid.starts, dtype=np.int64)
        back = np.add.reduceat((known & (gaps <= 0)).view(np.int8), laid.starts, dtype=np.int64)
        return {
            "dropped_frames": np.where(usable, lost / (counts + 1 + lost), np.nan),
            "dropped_frames@step": np.where(lost > 0, _largest(missing, laid), np.nan),
            "jitter": np.where(usable, np.sqrt(squares / np.maximum(regulars, 1)), np.nan),
            "time_reversals": np.where(counts > 0, back / np.maximum(counts, 1), np.nan),
            "time_reversals@step": np.where(back > 0, _largest(known & (gaps <= 0), laid), np.nan),
            "interval": np.where(usable, usual, np.nan),
        }


def _medians(gaps: Array, known: Array, laid: Laid, counts: Array) -> Array:
    episode = np.repeat(np.arange(len(laid.starts)), laid.lengths)
    order = np.lexsort((gaps, ~known, episode))  # known gaps first, ascending
    middle = laid.starts + np.maximum(counts - 1, 0) // 2
    return np.where(counts > 0, gaps[order][middle], np.nan)


def _largest(values: Array, laid: Laid) -> Array:
    """The first step with the largest value of each episode."""
    largest = np.maximum.reduceat(values, laid.starts)
    places = np.flatnonzero(values == np.repeat(largest, laid.lengths))
    episodes, first = np.unique(laid.find_episode(places), return_index=True)
    steps = np.full(len(laid.starts), np.nan)
    steps[episodes] = places[first] - laid.starts[episodes]
    return steps
