"""Quantiles of any number of values: exact up to a limit, and within a fixed relative error above it.

Up to `EXACT` values of a dimension are kept (fewer if there are more than 64 dimensions: `exact_rows`). Beyond that,
values are counted in buckets of numbers with the same sign, exponent, and first 9 bits of the mantissa:

    value     1.0000      1.0010      1.0020      1.0039
    bits      0 01111111111 000000000|...         (the other 43 bits of float64 are ignored)
    bucket    [ 1.0000 ........ 1.0020 )[ 1.0020 ....... 1.0039 )

A bucket is 2**-9 of its value wide and is represented by its middle, so the relative error is at most 2**-10, or 0.1%.
0 (and -0) and the infinities have their own buckets, and denormal numbers are normalized, so this holds for all floats.
With a NaN, every quantile is NaN, as with `np.quantile`. Counts are integers, so the result does not depend on how the
data are divided or in which order parts are merged.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, cast

import numpy as np

from rlds_beam.typing import Array

EXACT = 1 << 18
"""The most values of a dimension that are kept; up to this, quantiles are exact."""

EXACT_VALUES = 1 << 24
"""The most values of all dimensions together that are kept."""

RELATIVE_ERROR = 2.0**-10
"""The relative error of quantiles if there are more values."""

_BITS = 9
_SHIFT = 52 - _BITS
_DENORMAL = 54
"""Denormal numbers are scaled by 2 to this power, and their exponents lowered by it."""

_SHIFT_SINGLE = 23 - _BITS
_SIZES_SINGLE = (1 << (8 + _BITS)) - 1
_INFINITE_SINGLE = 255 << _BITS
_OFFSET_SINGLE = (1023 - 127 + _DENORMAL) << _BITS
"""For float32: the bits below a bucket's, the bits of a bucket, the first of infinity, and what to add for float64."""

_INFINITE = (2047 + _DENORMAL) << _BITS
_NAN = _INFINITE + 1
_MIN_NORMAL = float(np.finfo(np.float64).tiny)


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
    def of(values: Array) -> ValueDistribution:
        """Returns the distribution of values (D, N)."""
        return ValueDistribution((values,))._bound()

    @staticmethod
    def counted(values: Array) -> ValueDistribution:
        """Returns the distribution of values (D, N), counted in buckets even if there are few."""
        room = np.empty((2, values.shape[1]), np.int64)
        return ValueDistribution((), tuple(_count(column, room) for column in values))

    def merge(self, *others: ValueDistribution) -> ValueDistribution:
        """Merges the distributions."""
        every = (self, *others)
        kept = tuple(part for summary in every for part in summary.parts)
        counted = [summary.buckets for summary in every if summary.buckets is not None]
        if not counted:
            return ValueDistribution(kept)._bound()
        if kept:
            joined = ValueDistribution.counted(np.concatenate(kept, axis=1))
            counted.append(cast("tuple[tuple[Array, Array], ...]", joined.buckets))
        return ValueDistribution((), tuple(_add([c[d] for c in counted]) for d in range(len(counted[0]))))

    def quantiles(self, q: list[float]) -> Array:
        """Quantiles, float64 (len(q), D), with linear interpolation as in `np.quantile`; NaN without values."""
        if self.buckets is not None:
            return np.stack([_quantiles(*bucket, q) for bucket in self.buckets], axis=1)
        return _exact_quantiles(self._sorted, q)

    @functools.cached_property
    def _sorted(self) -> list[Array]:
        """The kept values of each dimension, ascending, float64 (N,)."""
        # Sorted in their own dtype, which is faster, and one dimension at a time.
        columns = zip(*self.parts, strict=True)
        return [np.sort(np.concatenate(parts)).astype(np.float64) for parts in columns]

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self.parts, "buckets": self.buckets}

    def weighted(self, dimension: int) -> tuple[Array, Array]:
        """The finite values of a dimension, float64, ascending and distinct, and their counts.

        Beyond `EXACT` values, each value is the middle of a bucket.
        """
        if self.buckets is not None:
            numbers, counts = self.buckets[dimension]
            values = _middle(numbers)
        else:
            values, counts = np.unique(np.concatenate([part[dimension] for part in self.parts]), return_counts=True)
        known = np.isfinite(values)
        return values[known].astype(np.float64), counts[known]

    def _bound(self) -> ValueDistribution:
        """Counts the values in buckets if there are too many to keep."""
        parts = self.parts
        if sum(part.shape[1] for part in parts) <= exact_rows(len(parts[0])):
            return self
        return ValueDistribution.counted(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))

    def histogram(self, low: Array, high: Array, bins: int) -> Array:
        """The number of finite values in equal bins from `low` to `high` of each dimension (D,): int64 (D, bins).

        All are 0 for a dimension whose bounds are not finite.
        """
        found = np.zeros((len(low), bins), np.int64)
        for d in np.flatnonzero(np.isfinite(low) & np.isfinite(high)):
            if self.buckets is None:
                values = self._sorted[d]
                firsts = _first_in_bins(values, low[d], high[d], bins)
                found[d] = np.diff(firsts, append=len(values))
            else:
                numbers, counts = self.buckets[d]
                found[d] = np.bincount(_bins(_middle(numbers), low[d], high[d], bins), counts, minlength=bins)
        return found


def _bins(values: Array, low: float, high: float, bins: int) -> Array:
    """The bin of each finite value, from 0; grows with the value."""
    span = high / 2 - low / 2 or 1.0  # halves, because the difference may be infinite
    shares = np.clip((values / 2 - low / 2) / span, 0.0, 1.0)
    return cast(Array, np.minimum((shares * bins).astype(np.int64), bins - 1))


def _first_in_bins(values: Array, low: float, high: float, bins: int) -> Array:
    """The place of the first of these ascending values in each bin or a later one, by bisection: int64 (bins,)."""
    wanted = np.arange(bins)
    first, end = np.zeros(bins, np.int64), np.full(bins, len(values))
    while (open_ := first < end).any():
        middle = np.where(open_, (first + end) // 2, 0)
        before = open_ & (_bins(values[middle], low, high, bins) < wanted)
        first = np.where(before, middle + 1, first)
        end = np.where(open_ & ~before, middle, end)
    return first


def _exact_quantiles(columns: list[Array], q: list[float]) -> Array:
    """`np.quantile` of ascending values, D times float64 (N,): float64 (len(q), D); NaN without values."""
    count = len(columns[0]) if columns else 0
    if not count:
        return np.full((len(q), len(columns)), np.nan)
    found = []
    for place in np.asarray(q) * (count - 1):
        low = int(place)
        pairs = np.array([values[[low, min(low + 1, count - 1)]] for values in columns])
        found.append(np.quantile(pairs, place - low, axis=1))  # numpy rounds as for all values
    unknown = [bool(np.isnan(values[-1])) for values in columns]
    return cast(Array, np.where(unknown, np.nan, found) + 0.0)  # never -0.0, regardless of order


def _count(values: Array, room: Array) -> tuple[Array, Array]:
    """The buckets of the values (N,) of one dimension, in ascending order, and their counts.

    A bucket's number has the sign of its values and grows with them; bucket 0 holds 0.

    Args:
      room: a buffer, int64 (2, N).
    """
    if values.dtype == np.float32 and (counted := _count_singles(values, room)) is not None:
        return counted
    parts, wide = [], np.ascontiguousarray(values, np.float64)
    usual = _buckets(wide)
    if usual is None:  # some values are 0, denormal, infinite, or NaN
        sizes = np.abs(wide)
        normal = (sizes >= _MIN_NORMAL) & (sizes < np.inf)
        small = wide[(sizes > 0) & (sizes < _MIN_NORMAL)]
        apart = {-_INFINITE: wide == -np.inf, 0: sizes == 0, _INFINITE: wide == np.inf, _NAN: np.isnan(wide)}
        parts = [(np.array([number]), np.array([np.count_nonzero(where)])) for number, where in apart.items()]
        for numbers, exponent in ((wide[normal], 0), (np.ldexp(small, _DENORMAL), -_DENORMAL)):
            counted = _buckets(numbers, exponent)
            parts += [] if counted is None else [counted]
    numbers, counts = _add([*parts, *([usual] if usual else [])])
    return numbers[counts > 0], counts[counts > 0]


def _count_singles(values: Array, room: Array) -> tuple[Array, Array] | None:
    """`_count` of float32 values (N,); None if some are denormal, infinite, or NaN, or if there are none.

    Args:
      room: a buffer, int64 (2, N); new memory would take longer to map than to fill.
    """
    if not len(values):
        return None
    bits, (sizes, signs) = values.view(np.int32), room
    np.right_shift(bits, _SHIFT_SINGLE, out=sizes)
    sizes &= _SIZES_SINGLE
    least, most = int(sizes.min()), int(sizes.max())
    if most >= _INFINITE_SINGLE or 0 < least < 1 << _BITS:
        return None
    span = most - least + 1
    np.right_shift(bits, 31, out=signs)
    signs &= span
    sizes -= least
    sizes += signs  # negative values come after the others
    positive, negative = np.bincount(sizes, minlength=2 * span).reshape(2, span)
    zeros = 0
    if not least:
        zeros = int(positive[0] + negative[0])
        positive[0] = negative[0] = 0
        denormal = positive[: 1 << _BITS].any() or negative[: 1 << _BITS].any()
        if denormal or zeros != len(values) - np.count_nonzero(values):
            return None
    above, below = np.flatnonzero(positive), np.flatnonzero(negative)[::-1]
    offset, zero = least + _OFFSET_SINGLE, [0] * (zeros > 0)
    numbers = np.concatenate([-(below + offset), zero, above + offset]).astype(np.int64)
    return numbers, np.concatenate([negative[below], [zeros] * len(zero), positive[above]]).astype(np.int64)


def _buckets(values: Array, exponent: int = 0) -> tuple[Array, Array] | None:
    """The buckets of normal numbers (N,), and their counts; None if there are no values, or some are not normal.

    Args:
      exponent: added to their exponents.
    """
    if not len(values):
        return None
    bits = values.view(np.int64)
    sizes = (bits & ~(-1 << 63)) >> _SHIFT
    least, most = int(sizes.min()), int(sizes.max())
    if least < 1 << _BITS or most >= 2047 << _BITS:
        return None
    span = most - least + 1
    sizes -= least
    sizes += (bits >> 63) & span  # negative values come after the others
    counts = np.bincount(sizes)
    there = np.flatnonzero(counts)
    buckets = there % span + least + ((exponent + _DENORMAL) << _BITS)
    return np.where(there < span, buckets, -buckets), counts[there]


def _add(buckets: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    numbers, where = np.unique(np.concatenate([numbers for numbers, _ in buckets]), return_inverse=True)
    counts = np.zeros(len(numbers), np.int64)
    np.add.at(counts, where, np.concatenate([more for _, more in buckets]))
    return numbers, counts


def _middle(numbers: Array) -> Array:
    """The middle of each bucket, float64."""
    sizes = np.abs(numbers)
    normal = sizes >> _BITS > _DENORMAL
    bits = np.where(normal, sizes - (_DENORMAL << _BITS), sizes) << _SHIFT
    middles = (bits + (1 << (_SHIFT - 1)) - ~normal).view(
        np.float64
    )  # a bucket of one denormal number: rounded down to it
    with np.errstate(invalid="ignore"):
        values = np.where(normal, middles, np.ldexp(middles, -_DENORMAL))
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
