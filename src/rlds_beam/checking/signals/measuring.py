"""Measures episodes, many at a time: all that needs their steps."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.checking.signals import images, texts
from rlds_beam.checking.signals.clocks import clock_signals
from rlds_beam.checking.signals.context import Context, is_gripper
from rlds_beam.checking.signals.following import following
from rlds_beam.checking.signals.motion import Laid, Motion, lay, runs
from rlds_beam.checking.signals.rows import Rows
from rlds_beam.checking.verdicts import Verdict
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.images.encoded_images import EncodedImages

Array: TypeAlias = "np.ndarray[Any, Any]"

IDLE, LEAST_IDLE = 1e-3, 7
"""openpi's rule for idle steps in DROID (`DropIdleSteps`): the largest change of each value, and the shortest run."""

_MOST_STEPS, _MOST_EPISODES, _MOST_BYTES = 1 << 13, 512, 8 << 20
_STILL = 0.01
"""The robot moves in a step if a state changes by more than this share of its range in the episode."""


class Block:
    """Collects episodes and measures them together: the numbers of each are the same in any block.

    Args:
      context: the fields to measure.
    """

    def __init__(self, context: Context):
        self.context = context
        self._keys: list[tuple[str, str, int, int, int]] = []
        self._numbers: defaultdict[str, list[float]] = defaultdict(list)
        self._values: dict[str, list[Any]] = {}
        self._lengths: list[int] = []
        self._void: list[bool] = []
        self._measured: list[int] = []
        self._columns: dict[str, list[Array | None]] = {
            path: [] for path in (*context.motion, *context.clocks, "reward")
        }
        self._hashes: list[int] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def full(self) -> bool:
        """Whether it is time to measure: columns are views of records, which stay in memory until then."""
        return len(self) >= _MOST_EPISODES or sum(self._lengths) >= _MOST_STEPS or self._bytes >= _MOST_BYTES

    def add(self, episode: Episode, verdict: Verdict | None = None) -> None:
        """Adds an episode as read; with its verdict, if it was checked."""
        key, steps, row = episode.key, episode.steps, len(self._keys)
        self._keys.append((key.dataset, key.split, key.shard, key.position, key.part))
        self._bytes += len(episode.payload)
        length = len(episode)
        values: dict[str, Any] = texts.scalars(episode.metadata)
        self._numbers["wrong_metadata"].append(texts.wrong_numbers(values, length))
        self._add_instructions(episode, values, length)
        if verdict is not None and verdict.rejected is not None:
            values["rule"], values["detail"] = verdict.rejected.rule, texts.text_of(verdict.rejected.detail)
        for name in values.keys() - self._values.keys():
            self._values[name] = [None] * row
        for name, known in self._values.items():
            known.append(values.get(name))
        if not length:
            return
        self._measured.append(row)
        self._lengths.append(length)
        last: Any = steps.get("is_last")
        void = last is not None and bool(last[-1])
        self._void.append(void)
        for path, columns in self._columns.items():
            column: Any = steps.get(path)
            usable = column is not None and is_numeric(column) and column.dtype != object
            columns.append(column if usable else None)
        self._hashes.append(self._hash(episode, length - void))
        for path in self.context.cameras:
            self._add_camera(path, steps.get(path), episode)

    def _add_instructions(self, episode: Episode, values: dict[str, Any], length: int) -> None:
        found = texts.instructions(episode, self.context.instructions)
        first = next((text for one in found for text in one if text.strip()), None)
        if first is not None:
            values["instruction"] = first
        known = bool(found) and length > 0
        self._numbers["missing_instruction"].append(float(first is None) if known else np.nan)
        self._numbers["generic_instruction"].append(float(texts.is_generic(first or "")) if known else np.nan)
        changes = max((len(one) for one in found), default=1) - 1
        self._numbers["instruction_changes"].append(float(max(changes, 0)) if known else np.nan)

    def _hash(self, episode: Episode, steps: int) -> int:
        """A hash of all actions; 0 if they are constant, so that two idle episodes are no duplicates."""
        import xxhash

        digest, constant = xxhash.xxh3_64(), True
        for path, column in episode.steps.items():
            if path.startswith("action") and not isinstance(column, EncodedImages) and column.dtype != object:
                data = np.ascontiguousarray(column[:steps])
                constant = constant and bool((data[1:] == data[:-1]).all())
                digest.update(data.tobytes())
        return 0 if constant else digest.intdigest() or 1

    def _add_camera(self, path: str, column: Column | None, episode: Episode) -> None:
        row = self._measured[-1]
        if column is None:
            return
        repeats = images.repeated(column)
        moving = [t for t in repeats if self._moves(episode)[t]] if repeats else []
        if moving and len(repeats) == len(column) - 1 and images.is_uniform(column):
            moving = []  # padding in place of a camera, which `black_images` shows
        start, stop = _longest(moving)
        self._set(f"frozen_camera/{path}", row, (stop - start) / len(column))
        self._set(f"repeated_images/{path}", row, len(moving) / len(column))
        for signal in ("frozen_camera", "repeated_images"):
            self._set(f"{signal}/{path}@step", row, start - 1 if moving else np.nan)
            self._set(f"{signal}/{path}@stop", row, stop if moving else np.nan)
        if self.context.decoded:
            pixels = images.sampled(column, self.context.decoded)
            if pixels:
                table = np.array(pixels, np.float64)
                mean = table.mean(axis=0).tolist()
                for name, value in zip(("black_images", "overexposed_images"), mean, strict=False):
                    self._set(f"{name}/{path}", row, value)
                self._set(f"#sharpness/{path}", row, float(np.median(table[:, 2])))
                for name, value in zip(("red", "green", "blue"), mean[3:], strict=True):
                    self._set(f"#{name}/{path}", row, value)

    def _set(self, name: str, row: int, value: float) -> None:
        column = self._numbers[name]
        column += [np.nan] * (row - len(column))
        column.append(value)

    def _moves(self, episode: Episode) -> Array:
        """Whether the robot moves in each step (T,); True everywhere if no field says so."""
        fields = self.context.states or self.context.actions
        moves: Array | None = None
        for path in fields:
            column = episode.steps.get(path)
            if isinstance(column, np.ndarray) and column.dtype != object:
                flat = column.reshape(len(column), -1).astype(np.float64)
                with np.errstate(invalid="ignore"):
                    changed = np.abs(np.diff(flat, axis=0)) > _STILL * np.ptp(flat, axis=0)
                moves = changed.any(axis=1) if moves is None else moves | changed.any(axis=1)
        return np.ones(len(episode), bool) if moves is None else np.concatenate([[False], moves])

    def finish(self) -> Rows:
        """Measures the episodes; the block is empty afterward."""
        size = len(self)
        numbers = {name: np.array(column + [np.nan] * (size - len(column))) for name, column in self._numbers.items()}
        rows = Rows(self._keys, numbers, {}, self._values)
        if self._lengths:
            self._measure(rows, np.array(self._measured), Laid.of(self._lengths, self._void))
        numbers.setdefault("steps", np.zeros(size))
        self.__init__(self.context)  # type: ignore[misc]
        return rows

    def _measure(self, rows: Rows, at: Array, laid: Laid) -> None:
        def put(name: str, values: Array, kind: Any = np.float64) -> None:
            column = rows.numbers.setdefault(name, np.full(len(rows), np.nan if kind is np.float64 else 0, kind))
            column[at] = values

        rows.numbers["steps"] = np.zeros(len(rows))
        put("steps", laid.lengths)
        put("#actions", np.array(self._hashes, np.uint64), np.uint64)
        reward = lay(self._columns["reward"], laid, is_action=False)
        if reward is not None and len(reward) == 1:
            reward[:, laid.void] = 0
            put("return", np.add.reduceat(reward[0].astype(np.float64), laid.starts))
        motions: dict[str, Motion] = {}
        for path in self.context.motion:
            is_action = path in self.context.actions
            values = lay(self._columns[path], laid, is_action=is_action)
            if values is None:
                continue
            motions[path] = motion = Motion.of(values, laid)
            if not is_action:
                motion.vectors["jerk"] = motion.jerk(laid)
            for name, vectors in motion.vectors.items():
                full = np.full((len(rows), vectors.shape[1]), np.nan, np.float32)
                full[at] = vectors
                rows.vectors[path, name] = full
        for path in self.context.clocks:
            columns = self._columns[path]
            if all(column is not None and column.size == len(column) for column in columns):
                for name, found in clock_signals([c for c in columns if c is not None], laid).items():
                    signal, _, place = name.partition("@")
                    put(f"{'#' if signal == 'interval' else ''}{signal}/{path}" + (f"@{place}" if place else ""), found)
        for name, found in idle_share(self.context, motions, laid).items():
            put(name, found)
        for name, found in following(self.context, motions, laid).items():
            put(name, found)
        for name, found in grippers(self.context, motions, laid).items():
            put(name, found)


def _longest(steps: list[int]) -> tuple[int, int]:
    """The longest run of consecutive steps, [start, stop)."""
    if not steps:
        return 0, 0
    mask = np.zeros(steps[-1] + 1, bool)
    mask[steps] = True
    starts, stops = runs(mask)
    longest = int(np.argmax(stops - starts))
    return int(starts[longest]), int(stops[longest])


def idle_share(context: Context, motions: dict[str, Motion], laid: Laid) -> dict[str, Array]:
    """The share of steps in runs of `LEAST_IDLE` or more without a change of action and state, and the longest run."""
    if not motions:
        return {}
    idle = np.ones(motions[next(iter(motions))].sizes.shape[1], bool)
    for motion in motions.values():
        idle &= motion.sizes.max(axis=0) < IDLE
    idle[laid.starts] = False
    starts, stops = runs(idle)
    long = stops - starts >= LEAST_IDLE
    starts, stops = starts[long], stops[long]
    episode = laid.episode_of(starts)
    total = np.bincount(episode, stops - starts, len(laid.starts))
    first, last = np.full(len(total), np.nan), np.full(len(total), np.nan)
    order = np.argsort(stops - starts, kind="stable")  # the longest is written last
    first[episode[order]], last[episode[order]] = (
        edge[order] - laid.starts[episode[order]] for edge in (starts, stops)
    )
    return {"idle_share": total / laid.lengths, "idle_share@step": first, "idle_share@stop": last}


def grippers(context: Context, motions: dict[str, Motion], laid: Laid) -> dict[str, Array]:
    """Openings and closings of each gripper: crossings from one outer third of its range to the other."""
    found: dict[str, Array] = {}
    for path in context.actions:
        motion = motions.get(path)
        if motion is None or (not is_gripper(path) and motion.values.shape[0] < 4):
            continue
        values = motion.values[-1]
        low, high = (motion.vectors[name][:, -1] for name in ("low", "high"))
        lows, highs = (np.repeat(bound, laid.lengths) for bound in (low, high))
        third = (highs - lows) / 3
        side = np.where(values >= highs - third, 1, np.where(values <= lows + third, -1, 0))
        places = np.flatnonzero(side)
        episode = laid.episode_of(places)
        turns = (side[places][1:] != side[places][:-1]) & (episode[1:] == episode[:-1])
        found[f"#crossings/{path}"] = np.bincount(episode[1:][turns], minlength=len(laid.starts)).astype(float)
        ends = (values >= highs - 0.1 * (highs - lows)) | (values <= lows + 0.1 * (highs - lows))
        found[f"#ends/{path}"] = np.add.reduceat(ends.view(np.int8), laid.starts, dtype=np.int64) / laid.lengths
    return found
