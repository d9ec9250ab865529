"""The RLDS step flags, and the step types of dm_env and TF-Agents."""

from __future__ import annotations

import numpy as np

from rlds_beam.typing import Array

FLAGS = ("is_first", "is_last", "is_terminal")
"""The RLDS step flags."""

FIRST, MID, LAST = 0, 1, 2
"""Step type values."""


def episode_flags(length: int, *, last: bool = True, terminal: bool = True) -> dict[str, Array]:
    """The flags of an episode's steps, bool [T]; `last` and `terminal` set the flags of the last step."""
    index = np.arange(length)
    end = index == length - 1
    return {"is_first": index == 0, "is_last": end & last, "is_terminal": end & terminal}
