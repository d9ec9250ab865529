"""Measured episodes in columns, which workers add up in any order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.episodes.keys import EpisodeKey

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclasses.dataclass
class Rows:
    """The measurements of E episodes.

    Attributes:
      keys: (dataset, split, shard, position, part) of each.
      numbers: column -> values (E,). A missing number is NaN, or 0 in a column of integers.
      vectors: (field, statistic) -> values (E, D), one for each dimension of a field of motion; what the signals that
        compare episodes need.
      values: column -> texts, numbers, or None.
    """

    keys: list[tuple[str, str, int, int, int]]
    numbers: dict[str, Array]
    vectors: dict[tuple[str, str], Array]
    values: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, key: EpisodeKey, values: Mapping[str, Any]) -> None:
        """Adds a row with its key and `values`."""
        size = len(self.keys)
        self.keys.append((key.dataset, key.split, key.shard, key.position, key.part))
        if values.keys() - self.values.keys():
            for name in values:
                self.values.setdefault(name, [None] * size)
        for name, known in self.values.items():
            known.append(values.get(name))

    @staticmethod
    def concatenate(parts: Sequence[Rows]) -> Rows:
        """All rows; what a part lacks is missing."""
        sizes = [len(part) for part in parts]
        return Rows(
            [key for part in parts for key in part.keys],
            {
                name: np.concatenate([_numbers(part.numbers.get(name), len(part), kind) for part in parts])
                for name, kind in _kinds(part.numbers for part in parts).items()
            },
            {
                name: np.concatenate(_padded([part.vectors.get(name) for part in parts], sizes))
                for name in _names(part.vectors for part in parts)
            },
            {
                name: [value for part in parts for value in part.values.get(name, [None] * len(part))]
                for name in _names(part.values for part in parts)
            },
        )

    def in_order(self) -> Rows:
        """The rows, by key."""
        order = sorted(range(len(self)), key=self.keys.__getitem__)
        places = np.array(order, np.int64)
        return Rows(
            [self.keys[i] for i in order],
            {name: column[places] for name, column in self.numbers.items()},
            {name: rows[places] for name, rows in self.vectors.items()},
            {name: [values[i] for i in order] for name, values in self.values.items()},
        )


def _names(parts: Iterable[Any]) -> list[Any]:
    return sorted({name for part in parts for name in part})


def _kinds(parts: Iterable[dict[str, Array]]) -> dict[str, np.dtype[Any]]:
    kinds: dict[str, np.dtype[Any]] = {}
    for part in parts:
        for name, column in part.items():
            kinds[name] = column.dtype
    return dict(sorted(kinds.items()))


def _numbers(column: Array | None, size: int, kind: np.dtype[Any]) -> Array:
    return np.full(size, np.nan if kind.kind == "f" else 0, kind) if column is None else column


def _padded(parts: Sequence[Array | None], sizes: Sequence[int]) -> list[Array]:
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
