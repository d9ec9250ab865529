"""Casting leaves to other dtypes, and finding the values that would not survive it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.images import EncodedImages
from rlds_beam.episodes.violations import BadEpisode, Violation
from rlds_beam.errors import UsageError
from rlds_beam.trajectories.options import Cast
from rlds_beam.wording import count, did_you_mean

Array = np.ndarray[Any, Any]


def cast_columns(
    columns: Mapping[str, Column], casts: Mapping[str, Cast], void: Mapping[str, int]
) -> dict[str, Column]:
    """The columns with those that `casts` name in their new dtypes.

    Args:
      columns: of a trajectory, by path.
      casts: by path.
      void: of a path whose last steps mean nothing, how many these are: they are cast, and not judged.

    Raises:
      UsageError: there is no such leaf, or it cannot be cast.
      BadEpisode: a value is changed by its cast, which does not allow it; one violation for each such leaf.
    """
    casted, violations = dict(columns), []
    for path, cast in casts.items():
        column = _numbers(path, cast, columns)
        with np.errstate(all="ignore"):
            casted[path] = new = column.astype(cast.dtype, copy=False)
            meant = slice(0, len(column) - void.get(path, 0))
            if not cast.lossy and new is not column and (bad := changed(column[meant], new[meant])).any():
                violations.append(_violation(path, cast, column[meant], new[meant], bad))
    if violations:
        raise BadEpisode(*violations)
    return casted


def changed(old: Array, new: Array) -> Array:
    """Which values are others after a cast, bool of the same shape.

    Changed are integers that are out of range, or that a float does not hold exactly; floats that become integers and
    are out of range, not finite or have a fraction; floats that become infinite. Rounding to a shorter float is not a
    change, nor is what it rounds to zero.
    """
    if old.dtype.kind == "b":
        return np.zeros(old.shape, bool)
    if old.dtype.kind not in "iuf" or old.dtype == np.float16:  # bfloat16; a limit as float16 would be infinite
        old = old.astype(np.float32)
    if old.dtype.kind == "f" and new.dtype.kind == "f":
        return np.asarray(np.isfinite(old) & ~np.isfinite(new))
    if new.dtype.kind == "f":  # an integer before
        return np.asarray(~np.isfinite(new) | (new.astype(old.dtype) != old))
    limits = np.iinfo(new.dtype)
    if old.dtype.kind == "f":
        # The limits as floats may be rounded up: what equals the upper one plus 1 is out of range.
        return np.asarray(~((old >= float(limits.min)) & (old < float(limits.max) + 1) & (np.trunc(old) == old)))
    source = np.iinfo(old.dtype)
    return np.asarray((old < max(limits.min, source.min)) | (old > min(limits.max, source.max)))


def _numbers(path: str, cast: Cast, columns: Mapping[str, Column]) -> Array:
    column = columns.get(path)
    if column is None:
        hint = did_you_mean(path, columns) or "."
        raise UsageError(f"--cast={path}={cast}: there is no such leaf{hint} There are: {', '.join(columns)}")
    if isinstance(column, EncodedImages) or path in ("step_type", "next_step_type", "discount"):
        raise UsageError(f"--cast={path}={cast}: images, step types and the discount cannot be cast")
    return column


def _violation(path: str, cast: Cast, old: Array, new: Array, bad: Array) -> Violation:
    flat = bad.reshape(len(bad), -1)
    step = int(np.argmax(flat.any(axis=1)))
    at = int(np.argmax(flat[step]))
    before, after = (values.reshape(len(bad), -1)[step, at] for values in (old, new))
    number = int(np.count_nonzero(bad))
    more = f" ({count(number, 'such value')} in the episode)" if number > 1 else ""
    return Violation("cast", f"{before} at step {step} becomes {after} as {cast.dtype}{more}", path, step)
