"""Casts columns to other dtypes, and finds values that a cast would change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rlds_beam.episodes.schema import Field
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.text import count, printable
from rlds_beam.typing import Array

STORE_FLOAT32 = "--connectors=CastFields stores float32, as LeRobot's recorders do"


def double_fields(fields: Iterable[Field]) -> list[str]:
    """The paths of actions and observations of float64, which robots' recorders store as float32."""
    roles = ("action", "observation")
    return [printable(f.path, 100) for f in fields if f.dtype == "float64" and f.path.split("/")[0] in roles]


def exact_cast(values: Array, dtype: np.dtype[Any], path: str, rule: str = "wrong_dtype_or_shape") -> Array:
    """Casts values to a dtype without changing them; returns the same array if it has this dtype.

    Args:
      values: a step field [T, ...], or one value of the episode.
      path: the field's path, for the violation.
      rule: the rule of the violation; outputs use `not_representable`.

    Raises:
      BadEpisode: a value would change, or the values are not numbers.
    """
    if values.dtype == dtype:
        return values
    if not (is_number(values.dtype) and is_number(dtype)):
        actual = "text" if values.dtype.kind in "OSU" else f"{values.dtype.name} values"
        expected = "text" if dtype.kind == "O" else dtype.name
        raise BadEpisode(Violation(rule, f"{actual}, but the schema says {expected}", path))
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        bad = changed(values, cast)
    if bad.any():
        raise BadEpisode(violation_of(rule, path, values, cast, bad))
    return cast


def exact_flags(values: Array, path: str) -> Array:
    """Casts 0 and 1 of any numeric dtype to bool. Raises BadEpisode for other values: 2, 0.5, NaN."""
    return exact_cast(values, np.dtype(bool), path)


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is bool, integer, or float (including bfloat16), as a field requires."""
    return dtype.kind in "biuf" or dtype.name == "bfloat16"


def changed(old: Array, new: Array, *, rounding: bool = False) -> Array:
    """Finds values that a cast changed: bool of the same shape.

    Args:
      old, new: numbers, before and after the cast.
      rounding: accept rounding to a shorter float, unless it makes a finite value infinite.
    """
    if new.dtype.kind == "b":
        return np.asarray((old != 0) & (old != 1))
    if old.dtype.kind == "b":
        return np.zeros(old.shape, bool)
    old, new = _known(old), _known(new)
    if old.dtype.kind == "f" and new.dtype.kind == "f":
        if rounding:
            return np.asarray(np.isfinite(old) & ~np.isfinite(new))
        return np.asarray((new.astype(old.dtype) != old) & ~np.isnan(old))
    # As a float, an integer's upper limit may round up to limit + 1, which is out of range.
    if new.dtype.kind == "f":
        limits = np.iinfo(old.dtype)
        out = ~(np.isfinite(new) & (new.astype(np.float64) < float(limits.max) + 1))
        return np.asarray(out | (new.astype(old.dtype) != old))
    limits = np.iinfo(new.dtype)
    if old.dtype.kind == "f":
        return np.asarray(~((old >= float(limits.min)) & (old < float(limits.max) + 1) & (np.trunc(old) == old)))
    source = np.iinfo(old.dtype)
    return np.asarray((old < max(limits.min, source.min)) | (old > min(limits.max, source.max)))


def _known(values: Array) -> Array:
    """Widens bfloat16, unknown to numpy, and float16, in which integer limits are infinite, to float32."""
    return values.astype(np.float32) if values.dtype.kind not in "iuf" or values.dtype == np.float16 else values


def violation_of(rule: str, path: str, old: Array, new: Array, bad: Array) -> Violation:
    """The violation for values that a cast changed.

    Args:
      bad: the result of `changed`; at least one is True.
    """
    if not bad.ndim:
        return Violation(rule, f"{old[()]} becomes {new[()]} as {new.dtype.name}", path)
    flat = bad.reshape(len(bad), -1)
    step = int(np.argmax(flat.any(axis=1)))
    at = int(np.argmax(flat[step]))
    before, after = (values.reshape(len(bad), -1)[step, at] for values in (old, new))
    number = int(np.count_nonzero(bad))
    more = f" ({count(number, 'such value')} in the episode)" if number > 1 else ""
    return Violation(rule, f"{before} at step {step} becomes {after} as {new.dtype.name}{more}", path, step)
