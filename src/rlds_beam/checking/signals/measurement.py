"""The signals that need the steps of an episode, for many episodes laid end to end."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.checking.idle import IDLE, MIN_IDLE_STEPS, runs
from rlds_beam.checking.signals import images, texts
from rlds_beam.checking.signals.context import Context, find_gripper
from rlds_beam.checking.signals.lag import measure_lag
from rlds_beam.checking.signals.motion import Laid, Motion, lay, longest_runs
from rlds_beam.checking.signals.repeats import sketch
from rlds_beam.checking.signals.rows import RowPart, clock_signals
from rlds_beam.episodes.columns import JoinedColumns, join_columns
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

if TYPE_CHECKING:
    from rlds_beam.checking.verdicts import Verdict


_STILL = 0.01
"""The robot moves while an image repeats if a state changes by more than this share of its range in the episode."""

_MIN_FROZEN = 3
"""The shortest run of repeated images that counts as frozen: a camera slower than the loop has shorter ones."""


@dataclasses.dataclass(frozen=True)
class MeasuredSteps:
    """The measurements of E episodes.

    Attributes:
      numbers: column -> (E,).
      vectors: (field, statistic) -> (D, E).
    """

    numbers: dict[str, Array]
    vectors: dict[tuple[str, str], Array]

    @classmethod
    def of(
        cls,
        context: Context,
        laid: Laid,
        columns: Mapping[str, JoinedColumns],
        repeats: Mapping[str, Sequence[list[int]]],
        moving: Array,
    ) -> MeasuredSteps:
        """Measures episodes.

        Args:
          columns: field -> the numbers of all episodes.
          repeats: camera -> the steps of each episode whose image is the one before.
          moving: the number of steps of each episode without a last one that has no action (E,).
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
                motions[path] = motion = Motion.of(values, laid)
                if context.only is None:
                    vectors |= {(path, name): found for name, found in motion.vectors().items()}
                    vectors[path, "sketch"] = sketch(values, laid, moving)
        for path in context.clocks:
            times = columns[path]
            if isinstance(times, np.ndarray) and times.size == len(times):
                numbers |= {_column(name, path): found for name, found in clock_signals(times.ravel(), laid).items()}
        for camera, steps in repeats.items():
            numbers |= _repeat(camera, steps, context, motions, laid)
        for signal, measure in _OF_MOTION.items():
            if context.wants(signal):
                numbers |= measure(context, motions, laid)
        return cls(numbers, vectors)


def _column(name: str, path: str) -> str:
    """`dropped_frames/timestamp@step` of `dropped_frames@step`; what is no signal begins with `#`."""
    signal, at, place = name.partition("@")
    return f"{'#' if signal == 'interval' else ''}{signal}/{path}{at}{place}"


def _repeat(
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
        _drop_rests(mask, context, motions, laid)
    share = np.add.reduceat(mask.view(np.int8), laid.starts, dtype=np.int64) / laid.lengths
    longest, first, stop = longest_runs(mask, laid, _MIN_FROZEN)
    found: dict[str, Array] = {f"frozen_camera/{camera}": longest / laid.lengths, f"repeated_images/{camera}": share}
    for signal in ("frozen_camera", "repeated_images"):
        if signal == "repeated_images":
            _, first, stop = longest_runs(mask, laid)
        # The image that is repeated belongs to the run.
        found |= {f"{signal}/{camera}@step": first - 1, f"{signal}/{camera}@stop": stop}
    return found


def _drop_rests(mask: Array, context: Context, motions: Mapping[str, Motion], laid: Laid) -> None:
    """Clears the runs of repeated images (N,) in which the robot stays where it was; none if no field says so.

    The whole run counts if a state moves away from its value at the repeated image by more than `_STILL`: a slow robot
    takes several steps for that, and one that works also pauses.
    """
    fields = [motions[path] for path in context.states or context.actions if path in motions]
    if not fields:
        return
    edges = runs(mask)
    lengths = edges[:, 1] - edges[:, 0]
    at, base = np.flatnonzero(mask), np.repeat(edges[:, 0] - 1, lengths)
    episode = laid.find_episode(at)
    moved = np.zeros(len(at), bool)
    for motion in fields:
        limit = _STILL * (motion.high - motion.low)[:, episode]
        moved |= (np.abs(motion.values[:, at] - motion.values[:, base]) > limit).any(axis=0)
    moves = np.add.reduceat(moved.view(np.int8), np.cumsum(lengths) - lengths, dtype=np.int64) > 0
    mask[at[~np.repeat(moves, lengths)]] = False


def idle_share(context: Context, motions: Mapping[str, Motion], laid: Laid) -> dict[str, Array]:
    """The share of steps in runs of at least `MIN_IDLE_STEPS` idle steps (`checking.idle`), and the longest run.

    In an idle step, neither an action nor a state changes by `IDLE` or more.
    """
    if not motions:
        return {}
    idle = np.ones(int(laid.lengths.sum()), bool)
    for motion in motions.values():
        idle &= motion.sizes.max(axis=0) < IDLE
    idle[laid.starts] = False
    total, _, first, stop = longest_runs(idle, laid, MIN_IDLE_STEPS, with_total=True)
    return {"idle_share": total / laid.lengths, "idle_share@step": first, "idle_share@stop": stop}


def grippers(context: Context, motions: Mapping[str, Motion], laid: Laid) -> dict[str, Array]:
    """Openings and closings of each gripper: crossings from one outer third of its range to the other."""
    found: dict[str, Array] = {}
    for path in context.actions:
        motion = motions.get(path)
        at = None if motion is None else find_gripper(context, path, len(motion.values))
        if motion is None or at is None:
            continue
        values = motion.values[at]
        lows, highs = (np.repeat(bound[at], laid.lengths) for bound in (motion.low, motion.high))
        third = (highs - lows) / 3
        side = np.where(values >= highs - third, 1, np.where(values <= lows + third, -1, 0))
        places = np.flatnonzero(side)
        episode = laid.find_episode(places)
        turns = (side[places][1:] != side[places][:-1]) & (episode[1:] == episode[:-1])
        found[f"#crossings/{path}"] = np.bincount(episode[1:][turns], minlength=len(laid.starts)).astype(float)
        tenth = (highs - lows) / 10
        ends = (values >= highs - tenth) | (values <= lows + tenth)
        found[f"#ends/{path}"] = np.add.reduceat(ends.view(np.int8), laid.starts, dtype=np.int64) / laid.lengths
    return found


_OF_MOTION = {"idle_share": idle_share, "lag": measure_lag, "gripper_chatter": grippers}
"""The signals of motion that need steps, not only statistics of them."""


_MAX_STEPS, _MAX_EPISODES, _MAX_BYTES = 1 << 13, 2048, 8 << 20


class Block:
    """Collects episodes and measures them together: the numbers of each are the same in any block.

    Args:
      context: the fields to measure.
    """

    def __init__(self, context: Context):
        self.context = context
        self._keys: list[EpisodeKey] = []
        self._values: dict[str, dict[int, Any]] = {}
        self._numbers: dict[str, dict[int, float]] = {}
        self._lengths: list[int] = []
        self._void: list[bool] = []
        self._moving: list[int] = []
        self._measured: list[int] = []
        self._columns: dict[str, list[Any]] = {path: [] for path in (*context.motion, *context.clocks, "reward")}
        self._repeats: dict[str, list[list[int]]] = {path: [] for path in context.cameras}
        self._paths: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._hashes: list[int] = []
        self._steps = self._bytes = 0

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def full(self) -> bool:
        """Whether it is time to measure: columns are views of records, which stay in memory until then."""
        return len(self) >= _MAX_EPISODES or self._steps >= _MAX_STEPS or self._bytes >= _MAX_BYTES

    def add(self, episode: Episode, verdict: Verdict | None = None) -> None:
        """Adds an episode as read; with its verdict, if it was checked."""
        steps, row, length = episode.steps, len(self._keys), len(episode)
        self._keys.append(episode.key)
        self._bytes += len(episode.payload)
        if episode.metadata or self.context.instructions:
            self._add_texts(episode, length, row)
        if verdict is not None and verdict.rejected is not None:
            self._put_value("rule", row, verdict.rejected.rule)
            self._put_value("detail", row, texts.decode_text(verdict.rejected.detail))
        if not length:
            return
        self._steps += length
        self._measured.append(row)
        self._lengths.append(length)
        last: Any = steps.get("is_last")
        void = last is not None and bool(last[-1]) and not episode.last_action_is_real
        self._void.append(void)
        self._moving.append(length - (void and length > 1 and not self._acts(episode)))
        for path, columns in self._columns.items():
            columns.append(steps.get(path))
        if self.context.only is None:
            self._hashes.append(self._hash(episode, length - void))
        for path in self.context.cameras:
            self._add_camera(path, steps.get(path), row)

    def _acts(self, episode: Episode) -> bool:
        """Whether the last step has an action: neither zeros nor the action before, as void ones are filled."""
        actions: list[Any] = [episode.steps[path][-2:] for path in self.context.actions if path in episode.steps]
        return any(np.any(action[1]) and not np.array_equal(*action) for action in actions)

    def _put(self, name: str, row: int, value: float) -> None:
        self._numbers.setdefault(name, {})[row] = value

    def _put_value(self, name: str, row: int, value: Any) -> None:
        self._values.setdefault(name, {})[row] = value

    def _add_texts(self, episode: Episode, length: int, row: int) -> None:
        """Adds the texts and metadata, and whether an instruction is missing."""
        for name, value in texts.scalars(episode.metadata).items():
            self._put_value(name, row, value)
        if length and self.context.instructions:
            found = texts.instructions(episode, self.context.instructions)
            first = next((text for match in found for text in match if text.strip()), None)
            if first is not None:
                self._put_value("instruction", row, first)
            self._put("missing_instruction", row, float(first is None))

    def _hash(self, episode: Episode, steps: int) -> int:
        """A hash of all actions; 0 if they are constant, so that two idle episodes are no duplicates."""
        import xxhash

        paths = tuple(episode.steps)
        if paths != self._paths[0]:
            self._paths = paths, tuple(path for path in paths if path.partition("/")[0] in ("action", "actions"))
        parts, constant = [], True
        for path in self._paths[1]:
            column = episode.steps[path]
            if not isinstance(column, EncodedImages) and column.dtype != object:
                data = column[:steps].tobytes()
                parts.append(data)
                constant = constant and data == data[: len(data) // max(steps, 1)] * steps
        return 0 if constant else xxhash.xxh3_64_intdigest(parts[0] if len(parts) == 1 else b"".join(parts)) or 1

    def _add_camera(self, path: str, column: Column | None, row: int) -> None:
        repeats = [] if column is None else images.find_repeated(column)
        if column is not None and repeats and len(repeats) == len(column) - 1 and images.is_uniform(column):
            repeats = []  # padding in place of a camera, which `black_images` shows
        self._repeats[path].append(repeats)
        if isinstance(column, EncodedImages) and column.seconds is not None and self.context.fps:
            # lerobot-doctor's issue 7: 128 of 170 episodes drift. A video that is too short breaks a rule.
            self._put(f"video_length/{path}", row, abs(column.seconds * self.context.fps - len(column)))
        pixels = (
            images.sample_images(column, self.context.decoded) if column is not None and self.context.decoded else []
        )
        if pixels:
            table = np.array(pixels, np.float64)
            black, overexposed, _ = table.mean(axis=0).tolist()
            self._put(f"black_images/{path}", row, black)
            self._put(f"overexposed_images/{path}", row, overexposed)
            self._put(f"#sharpness/{path}", row, float(np.median(table[:, 2])))

    def finish(self) -> RowPart:
        """Measures the episodes; the block is empty afterward."""
        size = len(self)
        numbers = {"steps": np.zeros(size)}
        vectors: dict[tuple[str, str], Array] = {}
        if self._lengths:
            laid = Laid.of(self._lengths, self._void)
            at = np.array(self._measured, np.int64)
            numbers["steps"][at] = laid.lengths
            columns = {path: join_columns(columns, self._lengths) for path, columns in self._columns.items()}
            if self.context.only is None:
                numbers["#actions"] = np.zeros(size, np.uint64)
                numbers["#actions"][at] = self._hashes
            found = MeasuredSteps.of(self.context, laid, columns, self._repeats, np.array(self._moving))
            for name, values in found.numbers.items():
                numbers[name] = np.full(size, np.nan)
                numbers[name][at] = values
            vectors |= found.vectors
            for key, rows in found.vectors.items() if len(at) < size else ():
                vectors[key] = np.full((len(rows), size), np.nan, np.float32)
                vectors[key][:, at] = rows
        for name, known in self._numbers.items():
            numbers.setdefault(name, np.full(size, np.nan))[[*known]] = [*known.values()]
        texts_of = {name: [known.get(row) for row in range(size)] for name, known in self._values.items()}
        groups = {(key.dataset, key.split): (key.dataset, key.split) for key in self._keys}  # one object for each
        texts_of["#group"] = [groups[key.dataset, key.split] for key in self._keys]
        for name in ("shard", "position", "part"):
            numbers[f"#key/{name}"] = np.array([getattr(key, name) for key in self._keys], np.int64)
        made = RowPart(size, numbers, vectors, texts_of)
        self.__init__(self.context)  # type: ignore[misc]
        return made
