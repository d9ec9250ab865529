"""Exact sums of numbers and of their squares, independent of order and grouping.

Every float is a multiple of 2**-1074, so sums are kept as large integers in that unit and rounded once, at the end. To
add a block of floats, a large power of two splits each of them in two. The upper parts have so few bits that floats add
them without error; the lower parts are split again until nothing is left (Rump, Ogita, and Oishi 2008, "Accurate
Floating-Point Summation Part I", lemma 3.3):

    sigma  1000000.                high = (x + sigma) - sigma     multiples of the last bit of sigma
    x           12.3456            low = x - high                 exact, at most 2**-38 of the largest x

Numbers of at most 24 bits, if most are of similar size, are added faster by `fixed_point`, with the same result.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.connectors.statistics.fixed_point import fixed_point_sums

Array: TypeAlias = "np.ndarray[Any, Any]"

_POINT = 1074
UNIT = 1 << _POINT
"""The inverse of the unit of the sums."""

_ROWS_BITS = 14
_ROWS = 1 << _ROWS_BITS
"""The number of values of a dimension that are added at once."""

_LARGE = 2.0**500
"""Larger values are added one by one, because their squares could overflow."""

_SPLITTER = 2.0**27 + 1
_SQUARES_ARE_EXACT = ("float16", "float32", "int8", "uint8", "int16", "uint16", "bool")


@dataclasses.dataclass(frozen=True)
class ExactSums:
    """Sums over N values of each of D dimensions. Immutable, mergeable, picklable.

    Attributes:
      count: the number of values, N.
      totals, squares: the sums of the finite values and of their squares per dimension, in units of 2**-1074.
      odd: the sum of the infinite and NaN values, float64 (D,); 0 if there are none.
    """

    count: int
    totals: tuple[int, ...]
    squares: tuple[int, ...]
    odd: Array

    @staticmethod
    def of(columns: Array) -> ExactSums:
        """Computes the sums of values (D, N)."""
        dimensions, count = columns.shape
        totals, squares, odd = [0] * dimensions, [0] * dimensions, np.zeros(dimensions)
        exact = columns.dtype.name in _SQUARES_ARE_EXACT
        if exact and count:
            fixed = fixed_point_sums(columns.astype(np.float32, copy=False), _POINT)
            if fixed is not None:
                return ExactSums(count, tuple(fixed[0]), tuple(fixed[1]), odd)
        height = max(1, _ROWS // max(1, min(count, _ROWS)))
        for top in range(0, dimensions, height):
            rows = range(top, min(top + height, dimensions))
            for left in range(0, count, _ROWS):
                block = columns[top : top + height, left : left + _ROWS].astype(np.float64)
                if not np.abs(block).max() < _LARGE:
                    block = _without_large(block, rows, totals, squares, odd)
                _add(totals, rows, block)
                for piece in (np.square(block),) if exact else _square(block):
                    _add(squares, rows, piece)
        return ExactSums(count, tuple(totals), tuple(squares), odd)

    def merge(self, *others: ExactSums) -> ExactSums:
        """Merges the sums."""
        every = (self, *others)
        with np.errstate(invalid="ignore"):
            odd = np.sum([one.odd for one in every], axis=0)
        totals = tuple(map(sum, zip(*(one.totals for one in every), strict=True)))
        squares = tuple(map(sum, zip(*(one.squares for one in every), strict=True)))
        return ExactSums(sum(one.count for one in every), totals, squares, odd)

    @property
    def mean(self) -> Array:
        """The mean, float64 (D,); NaN or infinite if a value is."""
        means = [ratio(total, self.count * UNIT) for total in self.totals]
        return np.where(self.odd == 0, means, self.odd)

    @property
    def std(self) -> Array:
        """The population standard deviation, float64 (D,); NaN if a value is NaN or infinite."""
        pairs = zip(self.totals, self.squares, strict=True)
        stds = [math.sqrt(variance(self.count, total, squares)) for total, squares in pairs]
        return np.where(self.odd == 0, stds, np.nan)


def variance(count: int, total: int, squares: int) -> float:
    """The variance of `count` values with these sums, in units of 2**-1074."""
    return ratio(max(0, ((count * squares) << _POINT) - total * total), (count * count) << (2 * _POINT))


def ratio(a: int, b: int) -> float:
    """a / b, correctly rounded; infinite if it overflows float64."""
    try:
        return a / b
    except OverflowError:
        return math.inf


def _without_large(block: Array, rows: range, totals: list[int], squares: list[int], odd: Array) -> Array:
    """Adds large, infinite, and NaN values one by one; returns the block with zeros in their places."""
    large = ~(np.abs(block) < _LARGE)
    with np.errstate(invalid="ignore"):
        for i, value in zip(np.nonzero(large)[0].tolist(), block[large].tolist(), strict=True):
            if math.isfinite(value):
                totals[rows[i]] += int(value) << _POINT
                squares[rows[i]] += int(value) ** 2 << _POINT
            else:
                odd[rows[i]] += value
    return np.where(large, 0.0, block)


def _add(sums: list[int], rows: range, block: Array) -> None:
    """Adds the values (d, n) to the sums of d dimensions."""
    while largest := float(np.abs(block).max()):
        sigma = 2.0 ** (math.frexp(largest)[1] + _ROWS_BITS + 1)
        high = (block + sigma) - sigma
        block = block - high
        for i, part in zip(rows, high.sum(axis=1).tolist(), strict=True):
            numerator, denominator = part.as_integer_ratio()
            sums[i] += numerator << (_POINT + 1 - denominator.bit_length())


def _square(values: Array) -> tuple[Array, Array]:
    """The squares and their rounding errors (Dekker 1971)."""
    scaled = _SPLITTER * values
    high = scaled - (scaled - values)
    low = values - high
    squares = values * values
    return squares, ((high * high - squares) + 2 * high * low) + low * low
