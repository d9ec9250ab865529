"""Idle steps, by openpi's rule for DROID (`compute_droid_nonidle_ranges.py`)."""

from __future__ import annotations

import numpy as np

from rlds_beam.typing import Array

IDLE = 1e-3
"""A step is idle if every value differs from the step before by less than this."""


MIN_IDLE_STEPS = 7
"""The shortest run of idle steps that counts; shorter pauses belong to the motion."""


def idle_steps(values: Array, threshold: float = IDLE) -> Array:
    """Whether each step of (T, D) is idle, bool (T,); the first is not."""
    idle = np.zeros(len(values), bool)
    idle[1:] = np.all(np.abs(values[1:] - values[:-1]) < threshold, axis=1)
    return idle


def runs(mask: Array) -> Array:
    """[start, stop) of each run of True (runs, 2)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).view(np.int8)))
    return edges.reshape(-1, 2)
