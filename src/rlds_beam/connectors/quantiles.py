"""Quantiles of any amount of numbers: exact up to a bound, and within a stated relative error above it.

Up to `EXACT` values of a dimension are all kept (fewer where there are more than 64 dimensions: `exact_rows`). More of
them are counted in buckets, which are the numbers that share their first 18 bits as float32: sign, exponent, and 9 bits
of the mantissa.

    value     1.0000      1.0010      1.0020      1.0039
    bits      0 01111111 000000000|...            (14 more bits are left out)
    bucket    [ 1.0000 ........ 1.0020 )[ 1.0020 ....... 1.0039 )

A bucket is 2**-9 of its value wide and stands for its middle, so a quantile is off by at most 2**-10 of its value, or
0.1 %. Counts are whole numbers: the result is the same however the data were divided, and in any order of merging.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias, cast

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

EXACT = 1 << 18
"""Values of a dimension that are kept: up to so many, quantiles are exact."""

EXACT_VALUES = 1 << 24
"""Values of all dimensions together that are kept."""

RELATIVE_ERROR = 2.0**-10
"""Of a quantile, where there are more."""

_BITS = 18
_SHIFT, _BUCKETS = 32 - _BITS, 1 << _BITS
_SIGN = _BUCKETS // 2


def exact_rows(dimensions: int) -> int:
    """Rows of so many values that are kept."""
    return max(1, min(EXACT, EXACT_VALUES // max(1, dimensions)))


@dataclasses.dataclass(frozen=True)
class Distribution:
    """The values of D dimensions. Immutable, mergeable, picklable.

    Attributes:
      parts: values that are kept, arrays (D, N); empty once they are counted.
      buckets: of each dimension, the numbers of the buckets that are not empty, and their counts; None while all values
        are kept.
    """

    parts: tuple[Array, ...] = ()
    buckets: tuple[tuple[Array, Array], ...] | None = None

    @property
    def exact(self) -> bool:
        return self.buckets is None

    @staticmethod
    def of(values: Array) -> Distribution:
        """Of values (D, N)."""
        return Distribution((values,))._bounded()

    @staticmethod
    def counted(values: Array) -> Distribution:
        """Of values (D, N), which are not kept, however few they are."""
        return Distribution((), tuple(map(_count, values)))

    def merge(self, *others: Distribution) -> Distribution:
        """All of the values."""
        every = (self, *others)
        kept = tuple(part for one in every for part in one.parts)
        counted = [one.buckets for one in every if one.buckets is not None]
        if not counted:
            return Distribution(kept)._bounded()
        if kept:
            counted.append(tuple(_count(values) for values in np.concatenate(kept, axis=1)))
        return Distribution((), tuple(_add([c[d] for c in counted]) for d in range(len(counted[0]))))

    def quantiles(self, q: list[float]) -> Array:
        """float64 (len(q), D), with linear interpolation as in `np.quantile`. NaN where there are no values."""
        if self.buckets is not None:
            return np.stack([_quantiles(*bucket, q) for bucket in self.buckets], axis=1)
        values = np.concatenate(self.parts, axis=1).astype(np.float64)
        if not values.shape[1]:
            return np.full((len(q), len(values)), np.nan)
        return cast(Array, np.quantile(values, q, axis=1))

    def _bounded(self) -> Distribution:
        """Counted, where there are too many values to keep."""
        parts = self.parts
        if sum(part.shape[1] for part in parts) <= exact_rows(len(parts[0])):
            return self
        return Distribution.counted(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))


def _count(values: Array) -> tuple[Array, Array]:
    """The buckets of the values (N,) of one dimension."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return _sparse(np.bincount(bits >> np.uint32(_SHIFT), minlength=_BUCKETS))


def _sparse(counts: Array) -> tuple[Array, Array]:
    numbers = np.flatnonzero(counts != 0)
    return numbers, counts[numbers]


def _add(buckets: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    counts = np.zeros(_BUCKETS, np.int64)
    for numbers, more in buckets:
        counts[numbers] += more
    return _sparse(counts)


def _middle(numbers: Array) -> Array:
    """The number in the middle of each bucket, float64."""
    bits = (numbers.astype(np.uint32) << np.uint32(_SHIFT)) + np.uint32(1 << (_SHIFT - 1))
    return bits.view(np.float32).astype(np.float64)


def _quantiles(numbers: Array, counts: Array, q: list[float]) -> Array:
    """Between the two values on whose ranks a quantile lies, as `np.quantile` does."""
    # Bits count up from 0 to infinity, then from -0 to minus infinity.
    negative = np.searchsorted(numbers, _SIGN)
    numbers, counts = (np.concatenate([part[negative:][::-1], part[:negative]]) for part in (numbers, counts))
    ends, values = np.cumsum(counts), _middle(numbers)
    places = np.asarray(q) * (ends[-1] - 1)
    low = np.floor(places).astype(np.int64)
    below = values[np.searchsorted(ends, low, side="right")]
    above = values[np.searchsorted(ends, np.minimum(low + 1, ends[-1] - 1), side="right")]
    return cast(Array, below + (above - below) * (places - low))
