"""Windows of steps around a step: a history of observations, a chunk of actions.

an episode of 5 steps; history=3, chunk=3 at its second step, t = 1

step                 0     1     2     3     4
observations   (0)   0     1                            [t-2, t-1, t]: the first step is repeated, and marked as padding
actions                    1     2     3                [t, t+1, t+2]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean, some

Indices = npt.NDArray[np.int64]
Size = int | Mapping[str, int] | None
"""Steps of a window: of the usual fields, or by field."""

IS_PAD = "_is_pad"
"""The end of the name of a column that marks padding, as in LeRobot."""


def make_offsets(history: Size, chunk: Size, paths: Iterable[str]) -> dict[str, Indices]:
    """The offsets of each field's window, in steps from the current one. A field that is not among them has no window.

    Args:
      history: the observations up to the current one; a number is for all fields of the observation.
      chunk: the actions from the current one on; a number is for all fields of the action.

    Raises:
      UsageError: there is no such field, or a number is not positive.
    """
    known = list(paths)
    offsets: dict[str, Indices] = {}
    for name, size, root in (("history", history, "observation"), ("chunk", chunk, "action")):
        sizes = _sizes(name, size, root, known)
        for path, steps in sizes.items():
            if path in offsets:
                raise UsageError(f"{path} has both a history and a chunk: choose one")
            if path + IS_PAD in known:
                raise UsageError(
                    f"{path} cannot have a window: there is also a field {path}{IS_PAD}, which would mark padding"
                )
            offsets[path] = np.arange(steps) - (steps - 1 if name == "history" else 0)
    return offsets


def _sizes(name: str, size: Size, root: str, known: list[str]) -> Mapping[str, int]:
    if size is None:
        return {}
    if not isinstance(size, Mapping):
        below = [path for path in known if path == root or path.startswith((f"{root}/", f"{root}."))]
        if not below:
            raise UsageError(f"{name}={size}: there is no field {root}; name the fields: {name}={{'field': {size}}}")
        size = dict.fromkeys(below, size)
    for path, steps in size.items():
        if path not in known:
            raise UsageError(f"{name}: there is no field {path}{did_you_mean(path, known)}; there are {some(known)}")
        if type(steps) is not int or steps < 1:
            raise UsageError(f"{name}={steps}: expected a number of steps, 1 or more")
    return size


class KeptSteps:
    """The steps that become rows of batches: all but the last ones of some episodes.

    Args:
      starts: the index of each episode's first step, then the number of steps, [E + 1].
      left_out: whether the last step of each episode is left out, bool [E].
    """

    def __init__(self, starts: Indices, left_out: npt.NDArray[np.bool_]):
        self.starts, self.left_out = starts, left_out
        self._before = np.concatenate([[0], np.cumsum(left_out)])
        self._kept = starts - self._before

    def __len__(self) -> int:
        return int(self._kept[-1])

    def steps(self, numbers: Indices) -> Indices:
        """The indices of kept steps, from their numbers among the kept ones."""
        episodes = np.searchsorted(self._kept, numbers, side="right") - 1
        steps: Indices = numbers + self._before[episodes]
        return steps


def window(
    rows: Indices, starts: npt.NDArray[Any], offsets: Indices, left_out: npt.NDArray[np.bool_] | None = None
) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """The rows of windows, [B, W], and which of them are padding.

    Windows end where their episode does, or before a last step that is left out: beyond that, a step is repeated.

    Args:
      rows: the current steps, [B].
      starts: the index of each episode's first step, then the number of steps.
      offsets: the offsets in steps, [W].
      left_out: whether windows of each episode end before its last step, bool [E].
    """
    episodes = np.searchsorted(starts, rows, side="right") - 1
    first, last = starts[episodes], starts[episodes + 1] - 1
    if left_out is not None:
        last = np.maximum(last - left_out[episodes], first)
    wanted = rows[:, None] + offsets
    clipped = np.clip(wanted, first[:, None], last[:, None])
    return clipped, wanted != clipped
