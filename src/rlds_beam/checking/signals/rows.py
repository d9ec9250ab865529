"""Measured episodes in columns, which workers add up in any order, and their timestamps."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.rates import MIN_STEPS
from rlds_beam.checking.signals.motion import Laid
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.typing import Array

VectorName: TypeAlias = tuple[str, str]
Name = TypeVar("Name")
Column = TypeVar("Column")

_INDEX_BYTES = 8
"""Bytes of the place of a file's index, at its end."""

_MAX_KEYS = 1 << 12
"""Keys that are made at once."""
_MAX_VALUES = 1 << 20
"""Values of a statistic of motion that are loaded at once, unless one dimension of all episodes has more."""


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
class StoredVector:
    """A statistic in a file, float32 (D, E), whose dimensions are read when they are used."""

    path: str
    offset: int
    shape: tuple[int, int]

    def __getitem__(self, dimensions: slice) -> Array:
        start, stop, _ = dimensions.indices(self.shape[0])
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self.offset + 4 * start * self.shape[1])
            found: Array = np.fromfile(file, np.float32, (stop - start) * self.shape[1])
        return found.reshape(-1, self.shape[1])


@dataclasses.dataclass(frozen=True)
class RowPart:
    """The measurements of some episodes (E).

    Attributes:
      size: how many.
      numbers: column -> values (E,). A missing number is NaN, or 0 in a column of integers. `#key/shard`,
        `#key/position`, and `#key/part` are of the key.
      vectors: (field, statistic) -> float32 (D, E), a row for each dimension of a field of motion, or for each
        number of its `sketch`; what the signals that compare episodes need.
      values: column -> texts, numbers, or None; `#group` is (dataset, split).
    """

    size: int
    numbers: Mapping[str, Array]
    vectors: Mapping[VectorName, Array | StoredVector]
    values: Mapping[str, list[Any]]

    def __len__(self) -> int:
        return self.size

    @property
    def bytes(self) -> int:
        """The bytes of the numbers of a part in memory."""
        vectors = sum(4 * vector.shape[0] * vector.shape[1] for vector in self.vectors.values())
        return vectors + sum(column.nbytes for column in self.numbers.values())

    @staticmethod
    def join(parts: Sequence[RowPart]) -> RowPart:
        """All rows of several parts, in memory; what a part lacks is missing."""
        rows = SignalRows(parts)
        vectors = {name: rows.vector(name, np.float32) for name in rows.vectors}
        return RowPart(len(rows), dict(rows.numbers), vectors, dict(rows.values))

    def write(self, path: str) -> None:
        """Writes the rows to a file for `read`.

        Raises:
          OSError: it cannot be written, for example because the disk is full.
        """
        places: tuple[dict[Any, Any], ...] = ({}, {}, {})
        with storage.writing(path) as file:
            for columns, found in zip((self.numbers, self.values), places[::2], strict=True):
                for name, column in columns.items():
                    found[name] = file.tell()
                    pickle.dump(column, file, pickle.HIGHEST_PROTOCOL)
            for key, vector in self.vectors.items():
                places[1][key] = file.tell(), vector.shape
                file.write(np.ascontiguousarray(vector[:]).data)
            index = file.tell()
            pickle.dump((self.size, places), file, pickle.HIGHEST_PROTOCOL)
            file.write(index.to_bytes(_INDEX_BYTES, "little"))

    @staticmethod
    def read(path: str) -> RowPart:
        """The rows of a file that `write` wrote; its columns are read when they are used."""

        def load(place: int) -> Any:
            with open(path, "rb") as file:
                file.seek(place)
                return pickle.load(file)

        with open(path, "rb") as file:
            file.seek(-_INDEX_BYTES, io.SEEK_END)
            index = int.from_bytes(file.read(), "little")
        size, (numbers, vectors, values) = load(index)
        return RowPart(
            size,
            Columns(numbers, lambda name: load(numbers[name])),
            {name: StoredVector(path, *place) for name, place in vectors.items()},
            Columns(values, lambda name: load(values[name])),
        )


class SignalRows:
    """The rows of several parts, in the order of the parts; columns are put together when they are used.

    Args:
      parts: at least one; what a part lacks is missing.

    Attributes:
      numbers, values: the columns of `RowPart`.
      vectors: the (field, statistic) that there are, by field.
    """

    def __init__(self, parts: Sequence[RowPart]):
        self.parts = parts
        ends = np.cumsum([len(part) for part in parts]).tolist()
        self._places = [slice(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
        self._size: int = ends[-1]
        self.numbers: Mapping[str, Array] = Columns(_names(part.numbers for part in parts), self._join_numbers)
        names = _names(part.values for part in parts)
        self.values: Mapping[str, list[Any]] = Columns(names, lambda name: [*itertools.chain(*self.each(name))])
        self.vectors: Sequence[VectorName] = _names(part.vectors for part in parts)

    def __len__(self) -> int:
        return self._size

    @functools.cached_property
    def groups(self) -> tuple[list[tuple[str, str]], Array]:
        """The different (dataset, split), ascending, and the place of each row's (E,)."""
        groups, codes = self.codes("#group")
        ranks: Array = np.empty(len(groups), np.int32)
        ranks[sorted(range(len(groups)), key=groups.__getitem__)] = np.arange(len(groups))
        return sorted(groups), ranks[codes]

    @property
    def splits(self) -> tuple[list[str], Array]:
        """The different splits, and the place of each row's (E,)."""
        groups, codes = self.groups
        names = sorted({split for _, split in groups})
        return names, np.array([names.index(split) for _, split in groups], np.int32)[codes]

    @functools.cached_property
    def order(self) -> Array:
        """The rows by key (E,)."""
        shard, position, part = (self.numbers[f"#key/{name}"] for name in ("shard", "position", "part"))
        order: Array = np.lexsort((part, position, shard, self.groups[1]))
        return order.astype(np.int32)

    def keys(self, places: Array) -> Iterator[EpisodeKey]:
        """The keys of some rows."""
        groups, codes = self.groups
        columns = [codes, *(self.numbers[f"#key/{name}"] for name in ("shard", "position", "part"))]
        for start in range(0, len(places), _MAX_KEYS):
            some = places[start : start + _MAX_KEYS]
            for number, *rest in zip(*(column[some].tolist() for column in columns), strict=True):
                yield EpisodeKey(*groups[number], *rest)

    @property
    def fields(self) -> list[str]:
        """The fields of motion."""
        return list(dict.fromkeys(path for path, _ in self.vectors))

    def each(self, name: str) -> Iterator[list[Any]]:
        """The values of a column, part by part."""
        for part in self.parts:
            yield part.values.get(name) or [None] * len(part)

    def codes(self, name: str, key: Callable[[Any], Any] = lambda value: value) -> tuple[list[Any], Array]:
        """The different values of a column, in order of appearance, and the place of each row's value (E,)."""
        if name not in self.values:
            return [key(None)], np.zeros(len(self), np.int32)
        places: dict[Any, int] = {}
        codes = [[places.setdefault(key(value), len(places)) for value in values] for values in self.each(name)]
        return list(places), np.concatenate([np.array(part, np.int32) for part in codes])

    def _join_numbers(self, name: str) -> Array:
        columns = [part.numbers.get(name) for part in self.parts]
        kind = next(column.dtype for column in reversed(columns) if column is not None)
        joined = np.full(len(self), np.nan if kind.kind == "f" else 0, kind)
        for column, place in zip(columns, self._places, strict=True):
            if column is not None:
                joined[place] = column
        return joined

    def width(self, name: VectorName) -> int:
        """The number of dimensions of a statistic: the most of all parts."""
        return max(part.vectors[name].shape[0] for part in self.parts if name in part.vectors)

    def vector(self, name: VectorName, dtype: Any = np.float64, start: int = 0, stop: int | None = None) -> Array:
        """A statistic of the dimensions [start, stop) of a field (K, E); NaN where it is missing."""
        stop = self.width(name) if stop is None else stop
        joined = np.full((stop - start, len(self)), np.nan, dtype)
        for part, place in zip(self.parts, self._places, strict=True):
            _fill(joined[:, place], part, name, start)
        return joined

    def reduce(self, function: Callable[..., Array], *names: VectorName) -> Array:
        """A value for each dimension of a field (D, ...), from all episodes.

        Args:
          function: from the statistics of K dimensions, float64 (E, K) each, to an array (K, ...).
          names: the statistics, of fields with equally many dimensions.
        """
        width = self.width(names[0])
        size = max(1, _MAX_VALUES // max(1, len(self)))
        return np.concatenate(
            [
                function(*(self.vector(name, np.float64, start, min(start + size, width)).T for name in names))
                for start in range(0, width, size)
            ]
        )

    def map(self, function: Callable[..., Any], *names: VectorName) -> Array:
        """A value for each episode (E,), or several (N, E), by up to `_MAX_VALUES` statistics of a part.

        Args:
          function: from rows of a part (a slice), and their statistics, float64 (P, D) each, to one array (P,) or
            several.
        """
        widths = {name: self.width(name) for name in names}
        step, found = max(1, _MAX_VALUES // max(1, sum(widths.values()))), []
        for part, place in zip(self.parts, self._places, strict=True):
            known = {name: part.vectors[name][:] for name in widths if name in part.vectors}
            for start in range(place.start, place.stop, step):
                stop = min(start + step, place.stop)
                rows = {name: np.full((stop - start, width), np.nan) for name, width in widths.items()}
                for name, values in known.items():
                    rows[name][:, : len(values)] = values[:, start - place.start : stop - place.start].T
                found.append(np.asarray(function(slice(start, stop), *rows.values())))
        return np.concatenate(found, axis=-1)


def _fill(vector: Array, part: RowPart, name: VectorName, start: int = 0) -> None:
    """Fills in the dimensions from `start` on (K, P), as far as the part has them."""
    if name in part.vectors:
        some = part.vectors[name][start : start + len(vector)]
        vector[: len(some)] = some


def _names(parts: Iterable[Any]) -> list[Any]:
    return sorted({name for part in parts for name in part})


def find_stepped(rows: SignalRows, path: str) -> Array:
    """Which dimensions of a field have few values at any scale, for example cells of a grid, bool (D,).

    In the median episode, all changes have the same size, or a value recurs in most of the steps.
    """

    def find(largest: Array, times: Array, travel: Array, distinct: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of dimensions without a number
            same = np.nanmedian(np.where(times > 0, largest * times / travel, np.nan), axis=0)
            return np.asarray((same < 1.05) | (np.nanmedian(distinct, axis=0) < 0.7))

    return rows.reduce(find, *((path, name) for name in ("largest", "times", "travel", "distinct")))


_GAP, _GAP_DEVIATIONS = 1.5, 5.0
"""A frame is missing after this many usual intervals, lerobot-doctor's definition (checks/temporal.py), if the interval
is also this many standard deviations longer: jitter makes long intervals and loses nothing."""


def clock_signals(times: Array, laid: Laid) -> dict[str, Array]:
    """The signals of one field of timestamps (N,) of E episodes: signal -> (E,), and the `interval` between steps.

    The usual interval is the median of the episode's own, so the unit does not matter. Its standard deviation is 1.4826
    times the median absolute deviation.

        timestamps    0    10    20    50    60        usual interval 10, 2 frames missing before step 3
    """
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
