"""Which message of each topic belongs to a step: the latest one at or before it, never one from the future."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rlds_beam.typing import Array


class AlignedSteps(NamedTuple):
    """The steps of an episode.

    Attributes:
      times: the time of each complete step, int64 nanoseconds.
      chosen: the index of the message of each step, by field.
      dropped: the number of incomplete steps.
      lacking: by field, the number of steps for which it has no message, or only one that is too old.
    """

    times: Array
    chosen: Mapping[str, Array]
    dropped: int
    lacking: Mapping[str, int]


def align(steps: Array, streams: Mapping[str, Array], max_ages: Mapping[str, int | None]) -> AlignedSteps:
    """Chooses messages for steps.

    Args:
      steps: the times of the steps, int64 nanoseconds. Equal ones give one step.
      streams: by field, the times of its messages, int64, ascending; of equal ones the last is the latest.
      max_ages: by field, the largest allowed age in nanoseconds; None is any.
    """
    steps = np.unique(steps)
    complete = np.ones(len(steps), bool)
    chosen: dict[str, Array] = {}
    lacking: dict[str, int] = {}
    for field, times in streams.items():
        index = np.searchsorted(times, steps, side="right") - 1
        fits = index >= 0
        max_age = max_ages[field]
        if max_age is not None and len(times):
            fits &= steps - times[np.maximum(index, 0)] <= max_age
        chosen[field], lacking[field] = index, int(np.count_nonzero(~fits))
        complete &= fits
    kept = {field: index[complete] for field, index in chosen.items()}
    return AlignedSteps(steps[complete], kept, int(np.count_nonzero(~complete)), lacking)


def grid(first: int, last: int, rate: float) -> Array:
    """The times of steps at a fixed rate, from the first message to the last, int64 nanoseconds."""
    thousandths = round(rate * 1_000_000)
    count = (last - first) * thousandths // 1_000_000_000_000_000 + 1
    numbers = np.arange(count, dtype=np.int64)
    whole, rest = np.divmod(numbers * 1_000_000, thousandths)  # seconds
    times: Array = first + whole * 1_000_000_000 + np.round(rest * (1_000_000_000 / thousandths)).astype(np.int64)
    return times
