"""The signals of motion: actions and states in floats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from rlds_beam.checking.signals.base import Measured, signal, statistics
from rlds_beam.checking.signals.episodes import Context, Episodes, Layout, Motion, find_gripper, is_gripper
from rlds_beam.checking.signals.rows import Rows, find_stepped, largest_dimension, median, quantile
from rlds_beam.checking.steps import IDLE, MIN_IDLE_STEPS
from rlds_beam.typing import Array

_COMPARED = 8
"""The steps of an episode whose values are compared."""
MAX_LAG = 10
"""The largest lag that is tried, in steps."""
_MIN_STEPS = 15
"""Steps below which a correlation says nothing."""
_MAX_STEPS = 64
"""The steps in the middle of a longer episode that are compared."""
_MAX_PAIRS = 4
_MAX_ACTIONS, _MAX_STATES = 16, 32
"""The dimensions that are compared."""
_CORRELATED = 0.5
"""Correlation below which there is no lag: the state may not be what the action moves."""
_BY_CHANCE = 15.0
"""Squared correlation times compared steps, below which it may be chance: noise exceeds it at any of 22 tried lags in
one of 80 episodes (22 * exp(-15 / 2))."""


@statistics
def _measure_motion(episodes: Episodes) -> dict[str, Array]:
    """What the signals that compare episodes need of each dimension, float32 (E, D)."""
    found = {}
    for path, motion in episodes.motions.items():
        for name, values in _measure_field(motion).items():
            found[f"#{name}/{path}"] = np.ascontiguousarray(values.T.astype(np.float32))
        if path in episodes.context.actions[:1]:
            outline = _pick_steps(motion.values, episodes.layout).transpose(2, 0, 1)
            found[f"#outline/{path}"] = outline.reshape(len(outline), -1).astype(np.float32)
    return found


def _measure_field(motion: Motion) -> dict[str, Array]:
    """Statistic -> (D, E)."""
    layout, values, sizes = motion.layout, motion.values, motion.sizes
    moved = sizes > 0
    times = layout.sum(moved)
    last = np.maximum.reduceat(moved * np.arange(moved.shape[1], dtype=np.int32), layout.starts, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            "largest": np.maximum.reduceat(sizes, layout.starts, axis=1),
            "largest_at": layout.find_largest(sizes),
            "travel": layout.sum(sizes),
            "times": times,
            "still": layout.sum(moved.any(axis=0)) - times,
            "last_moved": np.maximum(last - layout.starts, 0),
            "low": motion.low,
            "high": motion.high,
            "distinct": _count_distinct(values, layout),
        }


def _count_distinct(values: Array, layout: Layout) -> Array:
    """The share of different values among `_COMPARED` evenly spaced steps (D, E); of all steps, if there are fewer."""
    few = _pick_steps(values, layout)
    known = np.zeros(few.shape, bool)
    for n in range(1, _COMPARED):
        known[:, n] = (few[:, n, None] == few[:, :n]).any(axis=1)
    return np.asarray((_COMPARED - known.sum(axis=1)) / np.minimum(layout.lengths, _COMPARED))


def _pick_steps(values: Array, layout: Layout) -> Array:
    """The values (D, N) at evenly spaced steps (D, _COMPARED, E); the last step is repeated if there are fewer."""
    counts = np.minimum(layout.lengths, _COMPARED)
    number = np.minimum(np.arange(_COMPARED)[:, None], counts - 1)
    return np.asarray(values[:, layout.starts + number * layout.lengths // counts])


def outline_actions(rows: Rows) -> Array | None:
    """One dimension of the first action at 8 steps of each episode (E, 8); None without such an action.

    It is the dimension that moves most within an episode, in units of its range in the dataset.
    """
    path = next((path for path in rows.context.actions if f"#outline/{path}" in rows.numbers), None)
    if path is None:
        return None
    steps = rows.numbers[f"#outline/{path}"].reshape(len(rows), -1, 8)
    low, high = rows.vector("low", path), rows.vector("high", path)
    with np.errstate(invalid="ignore"):
        width = quantile(high, 1.0) - quantile(low, 0.0)
        moved = median(high - low) / np.maximum(width, 1e-9)
    return np.asarray(steps[:, np.argmax(np.nan_to_num(moved))])


@signal(
    "Motion",
    "z",
    4,
    misses="jumps no larger than usual changes: half the range of a joint that also moves fast",
    relative=True,
)
def jump(rows: Rows) -> dict[str, Measured]:
    """Largest change of a value between steps, as a robust z-score of its logarithm.

    It is compared with those of the episodes that move the dimension; only larger changes than usual count.
    lerobot-doctor flags 8 standard deviations of one episode's changes (checks/actions.py), which a spike in smooth
    data never reaches.
    """
    found = {}
    for path in rows.fields:
        largest = rows.vector("largest", path)
        with np.errstate(divide="ignore"):
            logarithm = np.log(np.where(largest > 0, largest, np.nan))
        center = median(logarithm)
        scale = np.maximum(1.4826 * median(np.abs(logarithm - center)), 0.15)
        # The 80th percentile of a normal distribution: there may be a task that only some episodes have.
        scale = np.maximum(scale, (quantile(logarithm, 0.8) - center) / 0.8416)
        score, dimension = largest_dimension((logarithm - center) / scale)
        score = np.where(np.isnan(largest[:, 0]), np.nan, np.maximum(np.nan_to_num(score), 0.0))  # 0 if nothing moves
        step = np.where(score > 0, _pick(rows.vector("largest_at", path), dimension), np.nan)
        found[path] = Measured(score, step, step + 1)
    return found


def _pick(values: Array, dimension: Array) -> Array:
    return np.take_along_axis(values, dimension[:, None], axis=1)[:, 0]


@signal(
    "Motion",
    "share of moving steps",
    0.4,
    misses="sensors with noise, dimensions with few values (grippers, cells of a grid)",
    relative=True,
)
def stuck(rows: Rows) -> dict[str, Measured]:
    """A dimension that usually moves stays exactly the same while others move.

    lerobot-doctor calls a dimension stuck if it is unchanged in 80 % of the steps (checks/anomalies.py); only what is
    unusual for the dimension counts here. One with few values, as a gripper or a cell of a grid, often rests.
    """
    moves = {
        path: np.nanmax(rows.vector("times", path) + rows.vector("still", path), axis=1, initial=0)
        for path in rows.fields
    }  # the steps in which any dimension changes (E,)
    anything = np.max([np.nan_to_num(move) for move in moves.values()], axis=0) if moves else None
    found = {}
    for path, move in moves.items():
        with np.errstate(divide="ignore", invalid="ignore"):
            share = rows.vector("still", path) / move[:, None]
        share[(move == 0) & (anything > 2)] = 1.0  # the whole field is stuck while another one moves
        usual = median(share)
        usual[find_stepped(rows)[path]] = np.nan
        score, dimension = largest_dimension(share - usual)
        known = ~np.isnan(rows.vector("low", path)[:, 0])
        score = np.where(known, np.maximum(np.nan_to_num(score), 0.0), np.nan)
        found[path] = Measured(score, np.where(score > 0, _pick(rows.vector("last_moved", path), dimension), np.nan))
    return found


@signal(
    "Motion",
    "share of steps",
    0.5,
    remedy="the connectors DropIdleSteps and DropNoOpSteps remove idle steps",
    misses="rest of a robot whose sensor noise is 0.001 or more",
)
def idle_share(episodes: Episodes) -> Mapping[str, Measured] | Measured:
    """Steps in which the robot rests, by openpi's rule for DROID.

    They are in runs of at least `MIN_IDLE_STEPS` steps in which neither an action nor a state changes by `IDLE` or
    more. The place is that of the longest run.
    """
    if not episodes.motions:
        return {}
    idle = np.ones(int(episodes.layout.lengths.sum()), bool)
    for motion in episodes.motions.values():
        idle &= motion.sizes.max(axis=0) < IDLE
    idle[episodes.layout.starts] = False
    total, _, first, stop = episodes.layout.find_runs(idle, MIN_IDLE_STEPS)
    return Measured(total / episodes.layout.lengths, first, stop)


@statistics
def _measure_grippers(episodes: Episodes) -> dict[str, Array]:
    """Crossings of each gripper from one outer third of its range to the other, and the share of steps at its ends."""
    found = {}
    for path in episodes.context.actions:
        motion = episodes.motions.get(path)
        at = None if motion is None else find_gripper(episodes.context, path, len(motion.values))
        if motion is None or at is None:
            continue
        values, layout = motion.values[at], episodes.layout
        low, high = layout.spread(motion.low[at]), layout.spread(motion.high[at])
        third, tenth = (high - low) / 3, (high - low) / 10
        side = np.where(values >= high - third, 1, np.where(values <= low + third, -1, 0))
        places = np.flatnonzero(side)
        episode = layout.find_episode(places)
        turns = (side[places][1:] != side[places][:-1]) & (episode[1:] == episode[:-1])
        found[f"#crossings/{path}"] = np.bincount(episode[1:][turns], minlength=len(episodes)).astype(float)
        found[f"#ends/{path}"] = episodes.share((values >= high - tenth) | (values <= low + tenth))
    return found


@signal(
    "Motion",
    "per 100 steps",
    20,
    misses="fewer than four turns, and grippers without a name that are not the last of four or more values",
    needs="a moving gripper",
    relative=True,
)
def gripper_chatter(rows: Rows) -> dict[str, Array]:
    """Openings and closings of the gripper.

    Grippers are fields of that name, or an action's last dimension if mostly at its ends. forge counts crossings of the
    middle per second (`gripper_chatter`). Here the gripper must cross the outer thirds of at least half its usual
    range, at least 4 times, so noise of a resting gripper does not count.
    """
    found, context = {}, rows.context
    for path in context.actions:
        if f"#crossings/{path}" not in rows.numbers:
            continue
        width = rows.vector("high", path) - rows.vector("low", path)
        at = find_gripper(context, path, width.shape[1])
        if at is None:
            continue
        width, crossings = width[:, at], rows.numbers[f"#crossings/{path}"]
        used = width[width > 0]
        if not len(used) or (not is_gripper(context, path) and median(rows.numbers[f"#ends/{path}"]) < 0.8):
            continue
        real = (width >= np.median(used) / 2) & (crossings >= 4)
        rate = np.where(real, 100 * crossings / np.maximum(rows.numbers["steps"], 1), 0.0)
        found[path] = np.where(np.isnan(width), np.nan, rate)
    return found


def _pair_fields(context: Context, sizes: Mapping[str, int]) -> list[tuple[str, str]]:
    """The actions and states of the same thing: those with equally many dimensions, at least 2, at most `_MAX_PAIRS`.

    Fields with the same last name come first (`action/joint_position`, `observation/joint_position`).

    Args:
      sizes: field -> its number of dimensions.
    """
    found = [
        (action, state)
        for action in context.actions
        for state in context.states
        if sizes.get(action, 0) == sizes.get(state, 1) > 1
    ]
    return sorted(found, key=lambda pair: pair[0].rpartition("/")[2] != pair[1].rpartition("/")[2])[:_MAX_PAIRS]


@signal(
    "Motion",
    "steps",
    3,
    remedy="shift the action with your own connector",
    misses="delays of up to three steps, which fast control loops have; episodes shorter than 15 steps",
    needs="an observation of the action",
)
def lag(episodes: Episodes) -> Mapping[str, Array] | Array:
    """Steps from an action to the motion that it correlates with, besides the next step.

    Changes of an action are correlated with changes of a state (positions), and with changes of these changes
    (velocities, torques), for each lag. Changes differ from step to step even if the motion is smooth or periodic;
    values would fit several lags. Lag 0 is an action that changes the next step.

    Fields of the same size are compared by the sum of their dimensions, as LeRobot's visualizer compares them. If no
    action has the size of a state, all dimensions of the first ones are compared with each other. The pair, the kind,
    and the lag with the largest mean square count.
    """
    context, motions, layout = episodes.context, episodes.motions, episodes.layout
    sizes = {path: len(motion.values) for path, motion in motions.items()}
    alike = _pair_fields(context, sizes)
    others = [
        (action, state) for action in context.actions for state in context.states if {action, state} <= sizes.keys()
    ]
    size = len(episodes)
    best, found = np.zeros(size), np.full(size, np.nan)
    for action, state in alike or others[:1]:
        if alike:
            fields = [motions[path].changes.sum(axis=0, dtype=np.float64)[None] for path in (action, state)]
        else:
            fields = [motions[action].changes[:_MAX_ACTIONS], motions[state].changes[:_MAX_STATES]]
        for places, commands, moves in _cut(layout, *fields):
            squares = np.square(_correlate(commands, moves)).reshape(*commands.shape[::2], MAX_LAG + 1, 2, -1)
            lengths = np.minimum(layout.lengths[places], _MAX_STEPS)
            pairs = np.maximum(lengths[:, None] - np.arange(1, MAX_LAG + 2), lengths[:, None] / 2)
            fewer = np.square(lengths[:, None] / pairs)[..., None]  # fewer steps are compared at a larger lag
            moving = np.maximum(commands.any(axis=1).sum(axis=1), 1)
            explained = squares.max(axis=4).sum(axis=1) * fewer / moving[:, None, None]
            kind, row = explained.max(axis=1).argmax(axis=1), np.arange(len(places))  # 0 for positions
            lags = (squares[row, :, :, kind].sum(axis=(1, 3)) * fewer[..., 0]).argmax(axis=1)
            peak = np.sqrt(explained[row, lags, kind])
            certain = np.maximum(_CORRELATED, np.sqrt(_BY_CHANCE / np.maximum(lengths - 1 - lags, 1)))
            better = (peak > best[places]) & (peak >= certain)
            at = places[better]
            best[at], found[at] = peak[better], lags[better]
    return found if alike or others else {}


def _cut(layout: Layout, commands: Array, moves: Array) -> Iterator[tuple[Array, Array, Array]]:
    """The episodes of `_MIN_STEPS` or more, by length: their indices, commands (E, T, Dc), and moves (E, T, 2 * Dm).

    Moves are followed by their changes. The middle of an episode counts. Values have mean 0 and sum of squares 1, and
    are 0 after the end. T depends on the length of the episode alone: sums are the same with any other episodes.
    """
    counts = np.minimum(layout.lengths, _MAX_STEPS)
    starts = np.cumsum(counts) - counts
    middle = layout.starts + (layout.lengths - counts) // 2
    places = np.arange(counts.sum()) + np.repeat(middle - starts, counts)
    if counts.max() < _MIN_STEPS:
        return
    if len(places) < commands.shape[1]:
        commands, moves = commands[:, places], moves[:, places]
    values = np.concatenate([commands, moves, moves])
    values[-len(moves) :, 1:] -= moves[:, :-1]
    values[-len(moves) :, starts] = 0
    values = np.ascontiguousarray(_standardize(values, counts, starts).T)
    sizes = 1 << np.ceil(np.log2(counts)).astype(np.int64)
    for size in np.unique(sizes[counts >= _MIN_STEPS]).tolist():
        episodes = np.flatnonzero((sizes == size) & (counts >= _MIN_STEPS))
        steps = np.arange(size)
        inside = steps < counts[episodes, None]
        found = values[np.where(inside, starts[episodes, None] + steps, 0)]
        found[~inside] = 0
        yield episodes, found[..., : len(commands)], found[..., len(commands) :]


def _standardize(values: Array, counts: Array, starts: Array) -> Array:
    """Values (D, N) with mean 0 and sum of squares 1 in each episode, float32; 0 if they do not change."""
    few = values.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        few -= np.repeat(np.add.reduceat(few, starts, axis=1) / counts.astype(np.float32), counts, axis=1)
        power = np.add.reduceat(np.square(few), starts, axis=1)
        few *= np.repeat(np.where(power > 0, 1 / np.sqrt(power), 0), counts, axis=1)
    if not np.isfinite(power).all():
        few[~np.isfinite(few)] = 0
    return few


def _correlate(commands: Array, moves: Array) -> Array:
    """The correlation of each dimension of commands[t] and each one of moves[t + lag + 1]: (E, Dc, lags, Dm).

    Args:
      commands, moves: (E, T, Dc) and (E, T, Dm), from `_cut`.
    """
    episodes, steps, size = commands.shape
    lags = MAX_LAG + 1
    late = np.zeros((episodes, size, lags, steps), np.float32)
    turned = commands.transpose(0, 2, 1)
    for lag in range(min(lags, steps - 1)):
        late[:, :, lag, lag + 1 :] = turned[..., : -lag - 1]
    found: Array = late.reshape(episodes, size * lags, steps) @ moves
    return found.reshape(episodes, size, lags, moves.shape[2])
