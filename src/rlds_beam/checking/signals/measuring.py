"""The signals that need the steps of an episode, for many episodes laid end to end."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.checking.idle import IDLE, LEAST_IDLE
from rlds_beam.checking.signals.clocks import clock_signals
from rlds_beam.checking.signals.context import Context, is_gripper
from rlds_beam.checking.signals.following import following
from rlds_beam.checking.signals.motion import Laid, Motion, lay, longest_runs

Array: TypeAlias = "np.ndarray[Any, Any]"

_STILL = 0.01
"""The robot moves in a step if a state changes by more than this share of its range in the episode."""


@dataclasses.dataclass(frozen=True)
class MeasuredSteps:
    """The measurements of E episodes.

    Attributes:
      numbers: column -> (E,).
      vectors: (field, statistic) -> (E, D).
    """

    numbers: dict[str, Array]
    vectors: dict[tuple[str, str], Array]

    @classmethod
    def of(
        cls,
        context: Context,
        laid: Laid,
        columns: Mapping[str, Sequence[Array | None]],
        repeats: Mapping[str, Sequence[list[int]]],
    ) -> MeasuredSteps:
        """Measures episodes.

        Args:
          columns: field -> the column of each episode; None if it has none.
          repeats: camera -> the steps of each episode whose image is the one before.
        """
        numbers: dict[str, Array] = {}
        vectors: dict[tuple[str, str], Array] = {}
        reward = lay(columns["reward"], laid, is_action=False)
        if reward is not None and len(reward) == 1:
            reward[:, laid.void] = 0
            numbers["return"] = np.add.reduceat(reward[0].astype(np.float64), laid.starts)
        motions: dict[str, Motion] = {}
        for path in context.motion if any(map(any, repeats.values())) or context.wants(*_OF_MOTION) else ():
            values = lay(columns[path], laid, is_action=path in context.actions)
            if values is not None:
                motions[path] = motion = Motion.of(values, laid, with_jerk=path in context.states)
                if context.only is None:
                    vectors |= {(path, name): found for name, found in motion.vectors().items()}
        for path in context.clocks:
            known = [column for column in columns[path] if column is not None and column.size == len(column)]
            if len(known) == len(laid.lengths):
                numbers |= {_column(name, path): found for name, found in clock_signals(known, laid).items()}
        for camera, steps in repeats.items():
            numbers |= _repeated(camera, steps, context, motions, laid)
        for signal, measure in _OF_MOTION.items():
            if context.wants(signal):
                numbers |= measure(context, motions, laid)
        return cls(numbers, vectors)


def _column(name: str, path: str) -> str:
    """`dropped_frames/timestamp@step` of `dropped_frames@step`; what is no signal begins with `#`."""
    signal, at, place = name.partition("@")
    return f"{'#' if signal == 'interval' else ''}{signal}/{path}{at}{place}"


def _repeated(
    camera: str, steps: Sequence[list[int]], context: Context, motions: Mapping[str, Motion], laid: Laid
) -> dict[str, Array]:
    """Images that repeat while the robot moves: all of them, and the longest run.

    A repeated image of a robot at rest is no defect: simulators draw the same one again. lerobot-doctor's issue 7 asks
    for this signal by bytes, because rules that compare pixels loosely find scenes in which little happens.
    """
    mask = np.zeros(int(laid.lengths.sum()), bool)
    for start, repeated in zip(laid.starts.tolist(), steps, strict=True):
        if repeated:
            mask[np.array(repeated) + start] = True
    if mask.any():
        mask &= _moves(context, motions, laid)
    share = np.add.reduceat(mask.view(np.int8), laid.starts, dtype=np.int64) / laid.lengths
    longest, first, stop = longest_runs(mask, laid)
    found: dict[str, Array] = {f"frozen_camera/{camera}": longest / laid.lengths, f"repeated_images/{camera}": share}
    for signal in ("frozen_camera", "repeated_images"):
        # The image that is repeated belongs to the run.
        found |= {f"{signal}/{camera}@step": first - 1, f"{signal}/{camera}@stop": stop}
    return found


def _moves(context: Context, motions: Mapping[str, Motion], laid: Laid) -> Array:
    """Whether the robot moves in each step (N,); True everywhere if no field says so."""
    fields = [motions[path] for path in context.states or context.actions if path in motions]
    moves = np.full(int(laid.lengths.sum()), not fields)
    for motion in fields:
        width = motion.high - motion.low
        moves |= (motion.sizes > np.repeat(_STILL * width, laid.lengths, axis=1)).any(axis=0)
    return moves


def idle_share(context: Context, motions: Mapping[str, Motion], laid: Laid) -> dict[str, Array]:
    """The share of steps in runs of at least `LEAST_IDLE` idle steps (`checking.idle`), and the longest run.

    In an idle step, neither an action nor a state changes by `IDLE` or more.
    """
    if not motions:
        return {}
    idle = np.ones(int(laid.lengths.sum()), bool)
    for motion in motions.values():
        idle &= motion.sizes.max(axis=0) < IDLE
    idle[laid.starts] = False
    total, _, first, stop = longest_runs(idle, laid, LEAST_IDLE, with_total=True)
    return {"idle_share": total / laid.lengths, "idle_share@step": first, "idle_share@stop": stop}


def grippers(context: Context, motions: Mapping[str, Motion], laid: Laid) -> dict[str, Array]:
    """Openings and closings of each gripper: crossings from one outer third of its range to the other."""
    found: dict[str, Array] = {}
    for path in context.actions:
        motion = motions.get(path)
        if motion is None or (not is_gripper(path) and motion.values.shape[0] < 4):
            continue
        values = motion.values[-1]
        lows, highs = (np.repeat(bound[-1], laid.lengths) for bound in (motion.low, motion.high))
        third = (highs - lows) / 3
        side = np.where(values >= highs - third, 1, np.where(values <= lows + third, -1, 0))
        places = np.flatnonzero(side)
        episode = laid.episode_of(places)
        turns = (side[places][1:] != side[places][:-1]) & (episode[1:] == episode[:-1])
        found[f"#crossings/{path}"] = np.bincount(episode[1:][turns], minlength=len(laid.starts)).astype(float)
        tenth = (highs - lows) / 10
        ends = (values >= highs - tenth) | (values <= lows + tenth)
        found[f"#ends/{path}"] = np.add.reduceat(ends.view(np.int8), laid.starts, dtype=np.int64) / laid.lengths
    return found


_OF_MOTION = {"idle_share": idle_share, "lag": following, "gripper_chatter": grippers}
"""The signals of motion that need steps, not only statistics of them."""
