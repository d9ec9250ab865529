"""Exact sums of float32 values and of their squares, in fixed point: a few passes over each block.

Values of similar size are multiples of a common unit. Scaled by the largest of its dimension, a value is the sum of an
integer and a fraction, and both have so few bits that float64 adds their products without error, in any order:

    x 2^(19-e)       174762.    6666...        |x| < 2^e
                     a          b              |a| <= 2^19      b: multiples of 2^-20, |b| <= 1/2
    a a, a b, b b    at most 38 bits each, so sums of 2^14 of them have at most 52

Values below 2^(e-16) may need more bits; they are few, and are added one by one.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

_INTEGER, _FRACTION = 19, 20
_ROWS = 1 << 14
_BLOCK = 1 << 16
"""The number of values to process at once: their buffers stay in a core's cache."""

_LEAST_EXPONENT = -100
_MOST_VALUES = 1 << 24
_FEW = 64
"""At most one in so many values may be added on its own."""


def fixed_point_sums(columns: Array, point: int) -> tuple[list[int], list[int]] | None:
    """The sums of values and of their squares; None if they are too different in size, too many, or not finite.

    Args:
      columns: float32 (D, N), N > 0.
      point: the results are integers in the unit 2**-point.
    """
    dimensions, count = columns.shape
    largest = np.maximum(-columns.min(axis=1), columns.max(axis=1)).astype(np.float64)
    exponents = np.frexp(largest)[1]
    if not np.isfinite(largest).all() or exponents.min(initial=0) < _LEAST_EXPONENT or count > _MOST_VALUES:
        return None
    sums = _Sums(dimensions, exponents)
    width = min(count, _ROWS)
    height = max(1, _BLOCK // width)
    shape = min(height, dimensions), width
    room = np.empty((2, *shape)), np.empty(shape, np.uint32)
    for top in range(0, dimensions, height):
        rows = slice(top, min(top + height, dimensions))
        for left in range(0, count, width):
            if not sums.add(rows, columns[rows, left : left + width], room):
                return None
    return sums.finish(point)


class _Sums:
    """The sums of a, b, aa, ab, and bb over the values of D dimensions, as integers."""

    def __init__(self, dimensions: int, exponents: Array):
        self._exponents = exponents.tolist()
        self._scales = np.ldexp(1.0, _INTEGER - exponents)[:, None]
        # A small value is compared as an integer: one less than its bits without the sign, so that 0 is not small.
        least = np.ldexp(1.0, exponents - _INTEGER - _FRACTION + 23).astype(np.float32)
        self._least = (least.view(np.uint32) - np.uint32(1))[:, None]
        self._sums = np.zeros((5, dimensions), np.int64)
        self._small: list[tuple[int, float]] = []

    def add(self, rows: slice, block: Array, room: tuple[Array, Array]) -> bool:
        """Adds values (d, n) to the dimensions `rows`; False if too many of them are small.

        Args:
          room: buffers for float64 (2, d, n) and uint32 (d, n), or larger.
        """
        whole, rest, sizes = (buffer[: block.shape[0], : block.shape[1]] for buffer in (*room[0], room[1]))
        np.bitwise_and(block.view(np.uint32), np.uint32(0x7FFFFFFF), out=sizes)
        sizes -= np.uint32(1)
        small = sizes < self._least[rows]
        np.copyto(rest, block)
        if small.any():
            dimensions, places = np.divmod(np.flatnonzero(small), block.shape[1])
            if len(places) * _FEW > block.size:
                return False
            self._small += zip((dimensions + rows.start).tolist(), rest[dimensions, places].tolist(), strict=True)
            rest[dimensions, places] = 0
        rest *= self._scales[rows]
        np.rint(rest, out=whole)
        rest -= whole
        parts = whole.sum(axis=1), rest.sum(axis=1), _dots(whole, whole), _dots(whole, rest), _dots(rest, rest)
        for total, part, bits in zip(self._sums, parts, (0, 1, 0, 1, 2), strict=True):
            total[rows] += np.ldexp(part, bits * _FRACTION).astype(np.int64)
        return True

    def finish(self, point: int) -> tuple[list[int], list[int]]:
        """The sums of the values and of their squares, in the unit 2**-point."""
        totals, squares = [], []
        for exponent, a, b, aa, ab, bb in zip(self._exponents, *self._sums.tolist(), strict=True):
            unit = exponent - _INTEGER - _FRACTION
            totals.append((a << _FRACTION) + b << point + unit)
            squares.append((aa << 2 * _FRACTION) + (ab << _FRACTION + 1) + bb << point + 2 * unit)
        for dimension, value in self._small:
            numerator, denominator = value.as_integer_ratio()
            bits = denominator.bit_length() - 1
            totals[dimension] += numerator << point - bits
            squares[dimension] += numerator**2 << point - 2 * bits
        return totals, squares


def _dots(left: Array, right: Array) -> Array:
    """The dot product of each pair of rows (d, n): (d,)."""
    products: Array = np.einsum("dn,dn->d", left, right)  # faster than BLAS, which starts threads
    return products
