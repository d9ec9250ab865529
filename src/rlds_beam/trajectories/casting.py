"""Casts leaves to other dtypes: `--cast`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_beam.episodes.casting import changed, violation_of
from rlds_beam.episodes.episode import Column
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.text import did_you_mean
from rlds_beam.trajectories.options import Cast

Array = np.ndarray[Any, Any]


def cast_columns(
    columns: Mapping[str, Column], casts: Mapping[str, Cast], void: Mapping[str, int]
) -> dict[str, Column]:
    """Casts the columns that `casts` names.

    Args:
      columns: the columns of a trajectory, by path.
      casts: the casts, by path.
      void: path -> the number of void last steps, which are cast but not checked.

    Raises:
      UsageError: a leaf does not exist or cannot be cast.
      BadEpisode: a cast would change a value and is not lossy; one violation per leaf.
    """
    casted, violations = dict(columns), []
    for path, cast in casts.items():
        column = _numbers(path, cast, columns)
        with np.errstate(all="ignore"):
            casted[path] = new = column.astype(cast.dtype, copy=False)
            meant = slice(0, len(column) - void.get(path, 0))
            if (
                not cast.lossy
                and new is not column
                and (bad := changed(column[meant], new[meant], rounding=True)).any()
            ):
                violations.append(violation_of("cast", path, column[meant], new[meant], bad))
    if violations:
        raise BadEpisode(*violations)
    return casted


def _numbers(path: str, cast: Cast, columns: Mapping[str, Column]) -> Array:
    column = columns.get(path)
    if column is None:
        hint = did_you_mean(path, columns) or "."
        raise UsageError(f"--cast={path}={cast}: there is no such leaf{hint} The leaves are:  {', '.join(columns)}")
    if isinstance(column, EncodedImages) or path in ("step_type", "next_step_type", "discount"):
        raise UsageError(f"--cast={path}={cast}: images, step types, and the discount cannot be cast")
    return column
