"""Quantiles of any amount of numbers: exact up to a bound, and within a stated relative error above it.

Up to `EXACT` values of a dimension are all kept. More of them are counted in buckets, which are the numbers that share
their first 20 bits as float32: sign, exponent, and 11 bits of the mantissa.

    value     1.0000      1.0001      1.0005      1.0010
    bits      0 01111111 00000000000|...          (12 more bits are left out)
    bucket    [ 1.0000 ........ 1.0005 )[ 1.0005 ....... 1.0010 )

A bucket is 2**-11 of its value wide and stands for its middle, so a quantile is off by at most 2**-12 of its value, or
0.025 %. Counts are whole numbers: the result is the same however the data were divided, and in any order of merging.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias, cast

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

EXACT = 1 << 18
"""Values of a dimension that are kept: up to so many, quantiles are exact."""

RELATIVE_ERROR = 2.0**-12
"""Of a quantile, where there are more."""

_SHIFT, _BUCKETS = 12, 1 << 20
_SIGN = np.uint32(1 << 31)


@dataclasses.dataclass(frozen=True)
class Distribution:
    """The values of D dimensions. Immutable, mergeable, picklable.

    Attributes:
      parts: values that are kept, arrays (N, D); empty once they are counted.
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
        """Of values (N, D)."""
        return Distribution((values,))._bounded()

    def merge(self, *others: Distribution) -> Distribution:
        """All of the values."""
        every = (self, *others)
        kept = tuple(part for one in every for part in one.parts)
        counted = [one.buckets for one in every if one.buckets is not None]
        if not counted:
            return Distribution(kept)._bounded()
        if kept:
            counted.append(_count(kept))
        return Distribution((), tuple(_add([c[d] for c in counted]) for d in range(len(counted[0]))))

    def quantiles(self, q: list[float]) -> Array:
        """float64 (len(q), D), with linear interpolation as in `np.quantile`. NaN where there are no values."""
        if self.buckets is not None:
            return np.stack([_quantiles(*bucket, q) for bucket in self.buckets], axis=1)
        values = np.concatenate(self.parts).astype(np.float64)
        if not len(values):
            return np.full((len(q), values.shape[1]), np.nan)
        return cast(Array, np.quantile(values, q, axis=0))

    def _bounded(self) -> Distribution:
        """Counted, where there are too many values to keep."""
        if sum(map(len, self.parts)) <= EXACT:
            return self
        return Distribution((), _count(self.parts))


def _count(parts: tuple[Array, ...]) -> tuple[tuple[Array, Array], ...]:
    values = np.concatenate(parts).astype(np.float32)
    keys = _ordered(values) >> np.uint32(_SHIFT)
    return tuple(_sparse(np.bincount(keys[:, d], minlength=_BUCKETS)) for d in range(keys.shape[1]))


def _sparse(counts: Array) -> tuple[Array, Array]:
    numbers = np.flatnonzero(counts)
    return numbers, counts[numbers]


def _add(buckets: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    numbers = np.concatenate([n for n, _ in buckets])
    different, place = np.unique(numbers, return_inverse=True)
    counts = np.zeros(len(different), np.int64)
    np.add.at(counts, place, np.concatenate([c for _, c in buckets]))
    return different, counts


def _ordered(values: Array) -> Array:
    """uint32 in the order of the float32 values: positive ones get the sign bit, of negative ones all bits turn."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _middle(numbers: Array) -> Array:
    """The number in the middle of each bucket, float64."""
    ordered = (numbers.astype(np.uint32) << np.uint32(_SHIFT)) + np.uint32(1 << (_SHIFT - 1))
    bits = np.where(ordered & _SIGN, ordered ^ _SIGN, ~ordered)
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def _quantiles(numbers: Array, counts: Array, q: list[float]) -> Array:
    """Between the two values on whose ranks a quantile lies, as `np.quantile` does."""
    ends, values = np.cumsum(counts), _middle(numbers)
    places = np.asarray(q) * (ends[-1] - 1)
    low = np.floor(places).astype(np.int64)
    below = values[np.searchsorted(ends, low, side="right")]
    above = values[np.searchsorted(ends, np.minimum(low + 1, ends[-1] - 1), side="right")]
    return cast(Array, below + (above - below) * (places - low))
