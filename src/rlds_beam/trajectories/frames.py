"""Frames: the steps of an episode as TF-Agents `Trajectory` leaves, columnar.

A frame tells of one step: what was seen, what was done, what came of it, and of which type this
step and the next one are. Written for an episode of T steps with `last_step=drop` (n = T):

    frame            0      1 ... n-2     n-1 (the boundary)
    step_type        FIRST  MID           LAST
    next_step_type   MID    MID, LAST     FIRST

and (LAST, LAST) for an episode of one step. Observation, action, reward and discount are those of
the step itself, save for the discount of a terminal episode:

- `terminal_discount=boundary`: 0 on frame n-1. Bit for bit TF-Agents' `convert_rlds_to_trajectories`.
- `terminal_discount=transition`: also 0 on frame n-2, which steps into the terminal state. TF-Agents
  trains on the discount of frame t for the step from t to t+1 and masks the boundary, so this is
  what keeps it from bootstrapping through the end.

With `last_step=absorbing` one step is added first, and the rules above hold for the T + 1 steps.
The recorded last step becomes an ordinary one, so that its action and reward are trained on, and
the added step is the `is_last` one. In a terminal episode it is all zeros, the absorbing state of
RLDS's `concat_if_terminal`, and is terminal; `transition` then puts the 0 on the recorded last step.
In a truncated episode what follows is unknown: the added step repeats the last one, with action and
reward zero, so that the value of the last transition is bootstrapped from the last state that was
really seen and never from a made-up one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from rlds_beam.episodes.columns import concatenate, is_text, zeros_like
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.flags import FIRST, LAST, MID
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.trajectories.casting import cast_columns
from rlds_beam.trajectories.keeping import Kept
from rlds_beam.trajectories.leaves import TrajectoryLayout, layout
from rlds_beam.trajectories.options import FrameOptions
from rlds_beam.trajectories.policy_info import policy_info_columns

Array = np.ndarray[Any, Any]
AnyColumn = TypeVar("AnyColumn", bound=Column)


@dataclasses.dataclass(frozen=True)
class Frames:
    """The frames of one episode (or of a piece of a stream of episodes).

    Attributes:
      columns: from the path of a `Trajectory` leaf to a column with leading axis n, in the order in
        which `tf.nest` flattens a `Trajectory`: `step_type` int32, `observation[/...]`,
        `action[/...]`, `policy_info[/...]`, `next_step_type` int32, `reward[/...]`, `discount`
        float32 (a scalar a frame, whatever the data has). All others are of the dtype and shape of
        the data. Images are still encoded; an added image of zeros is `columns.ZERO_IMAGE`. Often
        views: never write into one.
      key: of the (last) episode.
      kept: what items carry beside the trajectory (`keeping.Kept`), by path, with leading axis n.
    """

    columns: Mapping[str, Column]
    key: EpisodeKey
    kept: Mapping[str, Column] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        """Number of frames, n."""
        return len(next(iter(self.columns.values())))

    def __getitem__(self, path: str) -> Column:
        return self.columns[path]

    def slice(self, start: int, stop: int | None = None) -> Frames:
        """The frames `start:stop` (views)."""
        columns, kept = (
            {path: column[start:stop] for path, column in part.items()} for part in (self.columns, self.kept)
        )
        return dataclasses.replace(self, columns=columns, kept=kept)

    def append(self, other: Frames) -> Frames:
        """These frames followed by those of `other`, under the key of `other`."""
        columns = {path: concatenate([column, other[path]]) for path, column in self.columns.items()}
        kept = {path: concatenate([column, other.kept[path]]) for path, column in self.kept.items()}
        return dataclasses.replace(other, columns=columns, kept=kept)


def padding_frames(path: str, column: AnyColumn, count: int) -> AnyColumn:
    """`count` padding frames of the leaf at `path`, which has this column: 0, but for the step type, which is LAST.

    Their next_step_type, 0, is FIRST: to a learner the padding frame is a boundary.
    """
    padding = zeros_like(column, count)
    if path == "step_type":
        cast(Array, padding)[:] = LAST
    return cast(AnyColumn, padding)


def padded(path: str, column: AnyColumn, count: int) -> AnyColumn:
    """The column followed by `count` padding frames; the column itself where that is none."""
    return cast(AnyColumn, concatenate([column, padding_frames(path, column, count)])) if count else column


def frame_count(steps: int, options: FrameOptions) -> int:
    """Number of frames n of an episode of `steps` steps."""
    return steps + (options.last_step == "absorbing")


def to_frames(episode: Episode, options: FrameOptions, keep: Sequence[Kept] = ()) -> Frames:
    """The frames of a valid episode (`validate_episode` found nothing), as this module describes them.

    Text fields of the observation are left out (`trajectory_spec` names them); nothing is copied
    that need not change.

    Args:
      keep: what the frames carry beside the trajectory.

    Raises:
      UsageError: the options name a field that is not there or is text, the steps lack a field that
        a trajectory is made of, or `policy_info_fn` cannot be had or returns the wrong thing.
      BadEpisode: a cast would change a value.
      RldsBeamError: `policy_info_fn` raised.
    """
    steps = episode.steps
    plan = layout(tuple(steps), tuple(p for p, c in steps.items() if is_text(c)), options)
    if options.last_step == "absorbing":
        more = [one.field.path for one in keep if one.of_step]
        steps = _with_absorbing_step(steps, plan, steps if options.policy_info_fn is not None else more)
    step_types, next_step_types = _step_types(len(steps["discount"]))
    policy_info: Mapping[str, Column] = {path: steps[source] for path, source in plan.policy_info}
    if options.policy_info_fn:
        policy_info = policy_info_columns(options.policy_info_fn, steps, policy_info, episode.key)
    columns: dict[str, Column] = {"step_type": step_types}
    columns |= {path: steps[path] for path in (*plan.observation, *plan.action)}
    columns |= policy_info
    columns["next_step_type"] = next_step_types
    columns |= {path: steps[path] for path in plan.reward}
    columns["discount"] = _discounts(steps, options)
    if options.cast:
        void = dict.fromkeys((*plan.action, *plan.reward), 1)  # of the last step, which is `is_last`
        columns = cast_columns(columns, options.casts, void)
    kept = {one.field.path: one.column(episode, steps, len(step_types)) for one in keep}
    return Frames(columns, episode.key, kept)


def _step_types(n: int) -> tuple[Array, Array]:
    """step_type and next_step_type of n frames."""
    types = np.full(n + 1, MID, np.int32)
    types[0], types[n - 1], types[n] = FIRST, LAST, FIRST
    return (types[:-1], types[1:]) if n > 1 else (types[:1], types[:1])


def _discounts(steps: Mapping[str, Column], options: FrameOptions) -> Array:
    """Discounts float32 [n], also where the steps have them as [n, 1], with the zeros of a terminal episode."""
    discounts = cast(Array, steps["discount"]).astype(np.float32, copy=False).reshape(len(steps["discount"]))
    if _terminal(steps):
        discounts = discounts.copy()
        discounts[-2 if options.terminal_discount == "transition" else -1 :] = 0
    return discounts


def _terminal(steps: Mapping[str, Column]) -> bool:
    return bool(cast(Array, steps["is_terminal"])[-1])


def _with_absorbing_step(steps: Mapping[str, Column], plan: TrajectoryLayout, more: Iterable[str]) -> dict[str, Column]:
    """The steps with the added one: the columns that the frames are made of, and `more`."""
    terminal, void = _terminal(steps), {*plan.action, *plan.reward}
    used = {*void, *plan.observation, *(path for _, path in plan.policy_info), "discount", "is_terminal", *more}
    longer: dict[str, Column] = {}
    for path in (path for path in steps if path in used):
        column = steps[path]
        added = zeros_like(column, 1) if terminal or path in void else column[-1:]
        longer[path] = concatenate([column, added])
    for path in ("is_last", "is_terminal"):
        if path in longer:
            flags = cast(Array, longer[path])
            flags[-2], flags[-1] = False, terminal if path == "is_terminal" else True
    return longer
