"""Means, variances, and quantiles of any number of values, in parts that can be merged in any order.

Moments: deviations are taken from the mean of each block, and blocks are merged by their counts, means, and squared
deviations (Chan, Golub, and LeVeque 1983), so a large mean does not reduce the precision of the variance. The results
of different parts of a dataset are kept apart and merged at the end, in the order of their names: merging in any order
gives the same bits.

Quantiles: up to `EXACT` values of a dimension are kept (fewer if there are more than 64 dimensions: `exact_rows`).
Beyond that, values are counted in buckets of numbers with the same sign, exponent, and first 9 bits of the mantissa:

    value     1.0000      1.0010      1.0020      1.0039
    bits      0 01111111111 000000000|...         (the other 43 bits of float64 are ignored)
    bucket    [ 1.0000 ........ 1.0020 )[ 1.0020 ....... 1.0039 )

A bucket is 2**-9 of its value wide and is represented by its middle, so the relative error is at most 2**-10, or 0.1%,
for all numbers above 1e-307. With a NaN, every quantile is NaN, as with `np.quantile`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

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
    def from_columns(columns: Array, part: str = "") -> Moments:
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


EXACT = 1 << 18
"""The most values of a dimension that are kept; up to this, quantiles are exact."""

EXACT_VALUES = 1 << 24
"""The most values of all dimensions together that are kept."""

RELATIVE_ERROR = 2.0**-10
"""The relative error of quantiles if there are more values."""

_SHIFT = 52 - 9
_INFINITE = 2047 << 9
_NAN = _INFINITE + 1


def exact_rows(dimensions: int) -> int:
    """The most rows that are kept for this number of dimensions."""
    return max(1, min(EXACT, EXACT_VALUES // max(1, dimensions)))


@dataclasses.dataclass(frozen=True)
class ValueDistribution:
    """The distribution of the values of D dimensions. Immutable, mergeable, picklable.

    Attributes:
      parts: the kept values, arrays (D, N); empty once they are counted.
      buckets: per dimension, the numbers and counts of the non-empty buckets; None while all values are kept.
    """

    parts: tuple[Array, ...] = ()
    buckets: tuple[tuple[Array, Array], ...] | None = None

    @property
    def exact(self) -> bool:
        return self.buckets is None

    @staticmethod
    def from_parts(*parts: Array) -> ValueDistribution:
        """Returns the distribution of values (D, N), counted if there are too many to keep."""
        if sum(part.shape[1] for part in parts) <= exact_rows(len(parts[0])):
            return ValueDistribution(parts)
        return ValueDistribution.counted(np.concatenate(parts, axis=1))

    @staticmethod
    def counted(values: Array) -> ValueDistribution:
        """Returns the distribution of values (D, N), counted in buckets even if there are few."""
        return ValueDistribution((), tuple(map(_count, values)))

    def merge(self, *others: ValueDistribution) -> ValueDistribution:
        """Merges the distributions."""
        every = (self, *others)
        kept = tuple(part for summary in every for part in summary.parts)
        counted = [summary.buckets for summary in every if summary.buckets is not None]
        if not counted:
            return ValueDistribution.from_parts(*kept)
        if kept:
            counted.append(tuple(map(_count, np.concatenate(kept, axis=1))))
        return ValueDistribution((), tuple(map(_add, zip(*counted, strict=True))))

    def quantiles(self, q: list[float]) -> Array:
        """Quantiles, float64 (len(q), D), with linear interpolation as in `np.quantile`; NaN without values."""
        if self.buckets is not None:
            return np.stack([_quantiles(*bucket, q) for bucket in self.buckets], axis=1)
        columns = [np.concatenate(parts).astype(np.float64) for parts in zip(*self.parts, strict=True)]
        if not columns or not len(columns[0]):
            return np.full((len(q), len(columns)), np.nan)
        with np.errstate(invalid="ignore"):
            found = [np.quantile(values, q) for values in columns]
        return cast(Array, np.stack(found, axis=1) + 0.0)  # never -0.0, regardless of order

    def weighted(self, dimension: int) -> tuple[Array, Array]:
        """The finite values of a dimension, float64, ascending and distinct, and their counts.

        Beyond `EXACT` values, each value is the middle of a bucket.
        """
        values, counts = self._values(dimension)
        if counts is None:
            values, counts = np.unique(values, return_counts=True)
        known = np.isfinite(values)
        return values[known], counts[known]

    def _values(self, dimension: int) -> tuple[Array, Array | None]:
        """The values of a dimension, float64, and their counts; None: each counts once."""
        if self.buckets is None:
            return np.concatenate([part[dimension] for part in self.parts]).astype(np.float64), None
        numbers, counts = self.buckets[dimension]
        return _middle(numbers), counts

    def histogram(self, low: Array, high: Array, bins: int) -> Array:
        """The number of values in equal bins from `low` to `high` of each dimension (D,): int64 (D, bins).

        All are 0 for a dimension whose bounds are not finite.
        """
        found = np.zeros((len(low), bins), np.int64)
        for d in np.flatnonzero(np.isfinite(low) & np.isfinite(high)):
            values, counts = self._values(int(d))
            span = high[d] / 2 - low[d] / 2 or 1.0  # halves, because the difference may be infinite
            shares = np.clip((values / 2 - low[d] / 2) / span, 0.0, 1.0)
            found[d] = np.bincount(np.minimum((shares * bins).astype(np.int64), bins - 1), counts, bins)
        return found


def _count(values: Array) -> tuple[Array, Array]:
    """The buckets of the values (N,) of one dimension, in ascending order, and their counts.

    A bucket's number has the sign of its values and grows with them; bucket 0 holds 0.
    """
    wide = np.ascontiguousarray(values, np.float64) + 0.0  # without -0.0
    wide[np.isnan(wide)] = np.nan  # of one sign
    if not len(wide):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    bits = wide.view(np.int64)
    sizes = (bits & ~(-1 << 63)) >> _SHIFT
    np.minimum(sizes, _NAN, out=sizes)
    least = int(sizes.min())
    sizes -= least
    span = int(sizes.max()) + 1
    sizes += (bits >> 63) & span  # negative values come after the others
    if span > 8 * len(sizes):
        there, counts = np.unique(sizes, return_counts=True)
    else:
        counts = np.bincount(sizes)
        there = np.flatnonzero(counts)
        counts = counts[there]
    numbers = np.where(there < span, there + least, -(there - span + least))
    order = np.argsort(numbers)
    return numbers[order], counts[order]


def _add(buckets: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    numbers, where = np.unique(np.concatenate([numbers for numbers, _ in buckets]), return_inverse=True)
    counts = np.zeros(len(numbers), np.int64)
    np.add.at(counts, where, np.concatenate([more for _, more in buckets]))
    return numbers, counts


def _middle(numbers: Array) -> Array:
    """The middle of each bucket, float64."""
    sizes = np.abs(numbers)
    values = ((sizes << _SHIFT) + (1 << (_SHIFT - 1))).view(np.float64)
    values = np.select([sizes == 0, sizes == _INFINITE, sizes == _NAN], [0.0, np.inf, np.nan], values)
    return cast(Array, np.where(numbers < 0, -values, values))


def _quantiles(numbers: Array, counts: Array, q: list[float]) -> Array:
    """Interpolates between the two values nearest to a quantile's rank, as `np.quantile` does."""
    ends, values = np.cumsum(counts), _middle(numbers)
    if numbers[-1] == _NAN:
        return np.full(len(q), np.nan)
    places = np.asarray(q) * (ends[-1] - 1)
    low = np.floor(places).astype(np.int64)
    below = values[np.searchsorted(ends, low, side="right")]
    above = values[np.searchsorted(ends, np.minimum(low + 1, ends[-1] - 1), side="right")]
    shares = places - low
    with np.errstate(invalid="ignore", over="ignore"):
        between = below + (above - below) * shares
        between = np.where(np.isfinite(between), between, below * (1 - shares) + above * shares)
    return cast(Array, np.where((shares == 0) | (below == above), below, between))
