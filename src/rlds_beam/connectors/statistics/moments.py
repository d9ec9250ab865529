"""Means and variances of numbers, in float64.

Deviations are taken from the mean of each block, and blocks are merged by their counts, means, and squared deviations
(Chan, Golub, and LeVeque 1983), so a large mean does not reduce the precision of the variance. The results of different
parts of a dataset are kept apart and merged at the end, in the order of their names: merging in any order gives the
same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rlds_beam.typing import Array

_ROWS = 1 << 14
"""Values of a dimension that are added at once."""

_BLOCK = 1 << 16
"""Values that are processed at once: they stay in a core's cache."""


class _Sums(NamedTuple):
    """The number of values, and for each of D dimensions their mean and the sum of their squared deviations from it."""

    size: int
    mean: Array
    squares: Array


@dataclasses.dataclass(frozen=True)
class Moments:
    """The mean and variance of N values of each of D dimensions. Immutable, mergeable, picklable.

    Attributes:
      parts: the part of the data -> its sums.
    """

    parts: Mapping[str, _Sums]

    @staticmethod
    def of(columns: Array, part: str = "") -> Moments:
        """Computes the moments of values (D, N), N > 0, of one part of the data."""
        dimensions, count = columns.shape
        width = min(count, _ROWS)
        height = max(1, _BLOCK // width)
        mean, squares = np.empty(dimensions), np.empty(dimensions)
        for top in range(0, dimensions, height):
            rows = slice(top, top + height)
            blocks = [_block_sums(columns[rows, left : left + width]) for left in range(0, count, width)]
            _, mean[rows], squares[rows] = _merge(blocks)
        return Moments({part: _Sums(count, mean, squares)})

    @staticmethod
    def zeros(count: int) -> Moments:
        """The moments of `count` zeros of one dimension."""
        return Moments({"": _Sums(count, np.zeros(1), np.zeros(1))} if count else {})

    def merge(self, *others: Moments) -> Moments:
        """Merges the moments; the sums of the same part are merged in the order of the arguments."""
        parts: dict[str, list[_Sums]] = {}
        for moments in (self, *others):
            for part, sums in moments.parts.items():
                parts.setdefault(part, []).append(sums)
        return Moments({part: _merge(sums) for part, sums in parts.items()})

    @property
    def count(self) -> int:
        """The number of values, N."""
        return sum(sums.size for sums in self.parts.values())

    @property
    def mean(self) -> Array:
        """The mean, float64 (D,); NaN or infinite if a value is."""
        return self._whole.mean

    @property
    def std(self) -> Array:
        """The population standard deviation, float64 (D,); NaN if a value is NaN or infinite."""
        return np.asarray(np.sqrt(self._whole.squares / self.count))

    @property
    def _whole(self) -> _Sums:
        return _merge([sums for _, sums in sorted(self.parts.items(), key=lambda item: item[0])])


def _block_sums(block: Array) -> _Sums:
    """The sums of values (D, N)."""
    count, values = block.shape[1], block.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.sum(axis=1) / count
        values -= mean[:, None]
        squares = np.einsum("dn,dn->d", values, values)  # faster than BLAS, which starts threads
    return _Sums(count, mean, squares)


def _merge(parts: Sequence[_Sums]) -> _Sums:
    if len(parts) == 1:
        return parts[0]
    counts = np.array([sums.size for sums in parts], np.float64)[:, None]
    means = np.stack([sums.mean for sums in parts])
    with np.errstate(over="ignore", invalid="ignore"):
        mean = (counts / counts.sum() * means).sum(axis=0)
        between = (counts * np.square(means - mean)).sum(axis=0)
        squares = np.sum([sums.squares for sums in parts], axis=0) + between
    return _Sums(sum(sums.size for sums in parts), mean, squares)
