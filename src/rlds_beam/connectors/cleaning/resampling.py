"""Resamples episodes to another rate, by recorded timestamps or by the declared rate."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from rlds_beam.checking.steps import is_clock
from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.cleaning.relative_actions import (
    find_state,
    refuse_range,
    stack_vectors,
)
from rlds_beam.connectors.cleaning.rotations import (
    check_rotation_arguments,
    check_rotation_names,
    read_rotations,
    sound_rotations,
    write_rotations,
)
from rlds_beam.connectors.cleaning.selection import find_windows, merge_steps, vectors, with_value
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.columns import all_below
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.representations import Dimensions, value_names
from rlds_beam.episodes.schema import SAMPLE_TIMES, SAMPLES
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Source
from rlds_beam.text import count, some
from rlds_beam.typing import Array

if TYPE_CHECKING:
    from scipy.spatial.transform import Rotation

Mode: TypeAlias = Literal["relative", "interpolate"]
Places: TypeAlias = list[tuple[str, int]]
"""Values of a step field: the field, and the index of each."""

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_SUFFIX = re.compile(r".*_(s|ms|us|ns)")
_MAX_RATE = 1_000_000
_MAX_RATIO = 100
"""New steps for each recorded one beyond which the timestamps or their unit must be wrong."""


class _Timeline(NamedTuple):
    """How the steps of an episode become those of another rate; times are in seconds since its first step.

    Attributes:
      edges: where transitions begin, and where the last one ends, (M + 1,).
      grid: the same for the new transitions, (N + 1,).
      times: the new steps, (N,), or (N + 1,) with a void last step.
      shown: the step that each new one shows.
      receives: the new step that gets the reward of each step, (T,).
    """

    edges: Array
    grid: Array
    times: Array
    shown: Array
    receives: Array


@dataclasses.dataclass(frozen=True)
class Resample(EpisodeConnector, reads_images=False):
    """Changes the rate: a new step has the latest observation at or before its time, never one from the future.

        fps=10       step (30 Hz)   0      1      2      3      4      5      6   (last)
                     kept (10 Hz)   0                    3                    6
                     reward         r0+r1+r2             r3+r4+r5             void
                     discount       d0*d1*d2             d3*d4*d5             void

    Steps begin at the time of the first one. Images are copied without decoding. Rewards go to the transition in which
    their observation arrives, so returns do not change, and the last step stays the last one. If its action is void, it
    is at the first new time at or after its own. Windows of faster signals (`imu`, `imu_samples`) are joined, so no
    sample is lost. An action applies until the next step:

        held          (default) the action at or before the new step: targets, grippers, modes
        interpolate   targets between two actions: linear; rotations on the shortest arc
        relative      changes of the pose: added up, or split in proportion to the time, so that integrating them gives
                      the same pose. With `rotation` and `at`, rotations are composed, and split about their axis

    A value that is a difference, by its name (`delta_x`) or by what the data says of it, must be listed in `relative`.
    Differences to the state (`RelativeActions(to="state")`) add up only if the robot reaches its targets: resample
    before making them.

    Timestamps must increase; an episode whose do not is rejected (`not_representable`). They become the new times. They
    are compared within their resolution, and rates within a millionth of a step. The same rate changes nothing.

    Attributes:
      fps: the new rate in Hz.
      onto: or a field of timestamps, for example of a slow camera: one step for each new value, at an irregular rate.
      times: the field of the timestamps of steps; by default steps are at the rate of the dataset.
      unit: the unit of timestamps: `s`, `ms`, `us`, or `ns`; by default that in the field's name, and `s` for floats.
      relative: the values that are changes: indices in the action, or names of fields with all their values.
      interpolate: the values to interpolate.
      rotation: the representation of rotations in actions, as in `ConvertRotation`; None: there are none.
      at: the index of the first value of the rotation, or its field; a list for several.
      position: the index of x, before y and z, or their field; a list for several; needed with `frame=hand`.
      frame: the axes of relative values: the robot's `base`, or the `hand`.
      action: the action field; by default `fields.actions`. Fields below it are held unless they are named.
      recorded_fps: the rate of the steps in Hz, if the dataset does not say it.
      last_action: whether the action of the last step is `real` or `void`; by default what the dataset says, else void.
      compare_ranges: if `relative` lists none, whether to refuse data in whose first episodes the action does not lie
        where the state does, a field with as many values: then it seems to hold changes.
    """

    fps: float | None = None
    onto: str | None = None
    times: str | None = None
    unit: Literal["s", "ms", "us", "ns"] | None = None
    relative: int | str | Sequence[int | str] = ()
    interpolate: int | str | Sequence[int | str] = ()
    rotation: str | None = None
    at: int | str | Sequence[int | str] = ()
    position: int | str | Sequence[int | str] = ()
    frame: Literal["base", "hand"] = "base"
    action: str | None = None
    recorded_fps: float | None = None
    last_action: Literal["void", "real"] | None = None
    compare_ranges: bool = True

    def __post_init__(self) -> None:
        if (self.fps is None) == (self.onto is None):
            raise UsageError("Resample: give one of fps and onto")
        for name, rate in (("fps", self.fps), ("recorded_fps", self.recorded_fps)):
            if rate is not None and not 1 / _MAX_RATE <= rate <= _MAX_RATE:
                raise UsageError(f"Resample: {name}={rate:g}, expected a number above 0, up to {_MAX_RATE:,}")
        if self.unit is not None and (self.unit not in _UNITS or self.times is None):
            raise UsageError(f"Resample: unit={self.unit}: expected {', '.join(_UNITS)}, for the timestamps in times")
        at, position = len(_entries(self.at)), len(_entries(self.position))
        check_rotation_arguments("Resample", self.rotation, at, position, self.frame)

    def rate_after(self, fps: float | None) -> float | None:
        return None if self.fps is None else float(self.fps)

    def for_source(self, source: Source) -> Resample:
        """A copy with the rate of the source and what its last actions are; raises UsageError if it has no rate."""
        rate = source.fps
        if self.times is None and rate is None and self.recorded_fps is None:
            clocks = [path for path, field in source.schema.steps.items() if is_clock(field)]
            rates = f"has {len(source.meaning.rates)} rates" if source.meaning.rates else "says no rate"
            fix = f"pass recorded_fps, or times, a field of timestamps{', perhaps ' * bool(clocks)}{some(clocks)}"
            raise UsageError(f"Resample: {source.dataset} {rates}: {fix}")
        if self.recorded_fps is not None and rate is not None and rate != self.recorded_fps:
            raise UsageError(f"Resample: recorded_fps={self.recorded_fps:g}, but {source.dataset} says {rate:g} Hz")
        last = self.last_action or ("real" if source.last_action == "real" else "void")
        return dataclasses.replace(self, recorded_fps=rate or self.recorded_fps, last_action=last)

    @property
    def note(self) -> str | None:
        """A note for the user before the episodes are resampled."""
        new = self.rate_after(None)
        if new is None or self.recorded_fps is None or new <= self.recorded_fps:
            return None
        return f"Resample: the data is {self.recorded_fps:g} Hz, so at {new:g} Hz observations repeat"

    def represent(self, values: Dimensions, fields: StepFields) -> Dimensions:
        """What is known of the values of vectors: the same after the connector. Raises UsageError as `edit`."""
        for entry in _entries(self.at):
            path, start = (entry, 0) if isinstance(entry, str) else (self.action or fields.actions, entry)
            check_rotation_names(values.get(path, ()), [start], self.rotation or "", f"Resample: at={entry}", path)
        action = self.action or fields.actions
        listed = _entries(self.relative)
        for path in all_below(values, action):
            differences = [i for i, value in enumerate(values[path]) if value.relative_to is not None]
            if path in listed or not differences or (path == action and {*differences} <= {*listed}):
                continue
            every = path != action or len(differences) == len(values[path])
            fix = f"give relative: {[path] if every else differences}, or resample before RelativeActions"
            raise UsageError(f"Resample: {path} has differences, which must not be held or interpolated: {fix}")
        return values

    @property
    def needs_sample(self) -> bool:
        """Whether to call `check_sample`."""
        return self.compare_ranges and not _entries(self.relative)

    def check_sample(self, episodes: Sequence[Episode], fields: StepFields) -> None:
        """Raises UsageError if the actions of a dataset's first episodes seem to be changes."""
        action = self.action or fields.actions
        if action not in episodes[0].steps:  # a group of fields, which say what they are
            return
        width = vectors(episodes[0], action, "Resample: action").shape[1]
        state = find_state(episodes[0], width)
        if state is None:
            return
        actions, states = stack_vectors(episodes, action, state)
        refuse_range("Resample", action, actions, state, states, range(width), near=False)  # changes must be listed

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        action = self.action or fields.actions
        modes: dict[tuple[str, int], Mode] = {}
        kinds: tuple[Mode, ...] = ("relative", "interpolate")
        for mode in kinds:
            for path, i in itertools.chain(*self._find(episode, mode, action)):
                if (path, i) in modes:
                    raise UsageError(f"Resample: value {i} of {path} is named twice by relative and interpolate")
                modes[path, i] = mode

        def mode_of(places: Places) -> Mode | None:
            found = {modes.get(place) for place in places}
            if len(found) > 1:
                inside = f"values {places[0][1]} to {places[-1][1]} of {places[0][0]}"
                raise UsageError(f"Resample: only some of the {inside} are in relative or in interpolate")
            return found.pop()

        turns = self._find(episode, "at", action, len(value_names(self.rotation or "")))
        positions = self._find(episode, "position", action, 3)
        of_turns = [mode_of(turn) for turn in turns]
        if self.frame == "hand" and of_turns != [mode_of(position) for position in positions]:
            raise UsageError("Resample: list x, y, z in relative or interpolate if their rotation is")
        clocks = {name: self._clock(episode, name) for name in ("times", "onto") if getattr(self, name) is not None}
        short = len(episode) < (1 if self.last_action == "real" and self.times is None else 2)
        line = None if short or episode.key.of_probe else self._timeline(episode, clocks)
        windows = self._join_windows(episode, line)
        if line is None:
            return episode.with_columns(windows) if windows else episode
        made = {path: column[line.shown] for path, column in episode.steps.items()} | windows
        for path, mode in dict.fromkeys((path, mode) for (path, _), mode in modes.items()):
            places = [place for place, of_place in modes.items() if (place[0], of_place) == (path, mode)]
            old = _read_actions(episode, line, places)
            changed = _add_up(old, line) if mode == "relative" else _interpolate(line.grid[:-1], line.edges[:-1], old)
            _write(made, places, changed)
        for i, turn in enumerate(turns):
            if of_turns[i] is not None:
                self._turn(episode, line, made, turn, of_turns[i] == "relative", positions[i : i + 1])
        steps = _end_and_merge(episode, line, made, fields)
        if self.times is not None:  # the new times
            old, since = np.asarray(episode.steps[self.times]), line.times / self._second
            stamps = old[:1].reshape(1) + (since if old.dtype.kind == "f" else np.round(since).astype(old.dtype))
            steps[self.times] = stamps.astype(old.dtype).reshape(-1, *old.shape[1:])
        return episode.replace(steps=steps)

    def _join_windows(self, episode: Episode, line: _Timeline | None) -> dict[str, Any]:
        """The windows of faster signals: a new step has the samples of all steps since the one before."""
        joined: dict[str, Any] = {}
        for path in find_windows(episode.steps):
            if self.fps is None or self.times is not None:
                raise UsageError(f"Resample: the windows of {path} can be joined with fps, without times")
            counts, most = np.asarray(episode.steps[f"{path}{SAMPLES}"]), np.asarray(episode.steps[path]).shape[1]
            size = most * max(1, math.ceil((self.recorded_fps or 0) / self.fps - 1e-6))
            numbers, shift = counts, np.zeros(counts.sum())  # if the steps stay
            if line is not None:
                numbers = np.diff(np.cumsum(counts)[line.shown], prepend=0).astype(counts.dtype)
                old = np.repeat(line.edges[: len(counts)], counts)[: numbers.sum()]
                shift = old - np.repeat(line.times, numbers)
            inside, place = np.arange(most) < counts[:, None], np.arange(size) < numbers[:, None]
            for name, change in ((path, 0), (f"{path}{SAMPLE_TIMES}", shift)):
                column = np.asarray(episode.steps[name])
                joined[name] = np.zeros((len(numbers), size, *column.shape[2:]), column.dtype)
                joined[name][place] = column[inside][: len(shift)] + change  # later samples would be from the future
            joined[f"{path}{SAMPLES}"] = numbers
        return joined

    def _find(self, episode: Episode, argument: str, action: str, size: int | None = None) -> list[Places]:
        """The values that each entry of an argument names: `size` values, or one, or those of a whole field."""
        found = []
        for entry in _entries(getattr(self, argument)):
            path, start = (entry, 0) if isinstance(entry, str) else (action, entry)
            values = vectors(episode, path, f"Resample: {argument}")
            if values.dtype.kind != "f":
                raise UsageError(f"Resample: {argument}: {path} holds {values.dtype}, not floats: cast it first")
            width = values.shape[1]
            stop = width if size is None and isinstance(entry, str) else start + (size or 1)
            if start < 0 or stop > width:
                expected = f", expected {size} there" if size else ""
                raise UsageError(f"Resample: {argument}={entry}: {path} has {count(width, 'value')}{expected}")
            found.append([(path, i) for i in range(start, stop)])
        return found

    def _clock(self, episode: Episode, name: str) -> Array:
        """The timestamps of steps as recorded, (T,)."""
        path: str = getattr(self, name)
        values = vectors(episode, path, f"Resample: {name}")
        if values.shape[1] != 1 or values.dtype.kind not in "iuf":
            raise UsageError(f"Resample: {name}={path} does not hold one timestamp for each step")
        if name == "times" and values.dtype.kind != "f" and self.unit is None and not _SUFFIX.fullmatch(path):
            raise UsageError(f"Resample: times={path} holds {values.dtype}: pass its unit: {', '.join(_UNITS)}")
        return values[:, 0]

    @property
    def _second(self) -> float:
        """The unit of the timestamps, in seconds."""
        suffix = _SUFFIX.fullmatch(self.times or "")
        return _UNITS[self.unit or (suffix[1] if suffix else "s")]

    def _read_times(self, episode: Episode, raw: Array | None) -> tuple[Array, float]:
        """Seconds since the first step, (T,), and up to which difference times are equal."""
        if raw is None or self.times is None:
            if self.recorded_fps is None:
                raise UsageError("Resample: the rate of the steps is unknown: pass recorded_fps, or times")
            return np.arange(len(episode)) / self.recorded_fps, 1e-6 / self.recorded_fps
        times = _read_times(raw, self.times, strictly=True) * self._second
        one = 1.0
        if raw.dtype.kind == "f":  # some formats store float64 as float32
            short = np.array_equal(raw.astype(np.float32), raw)
            one = 2 * float(np.finfo(np.float32 if short else raw.dtype).eps * np.abs(raw).max())
        return times, min(one * self._second + 1e-12 * times[-1], float(np.diff(times).min()) / 4)

    def _timeline(self, episode: Episode, clocks: Mapping[str, Array]) -> _Timeline | None:
        """The new steps; None if they are the old ones."""
        times, near = self._read_times(episode, clocks.get("times"))
        real = self.last_action == "real"
        usual = 1 / (self.recorded_fps or 1) if self.times is None else float(np.median(np.diff(times)))
        edges = np.append(times, times[-1] + usual) if real else times
        if self.onto is not None:
            stamps = _read_times(clocks["onto"], self.onto, strictly=False)
            begins = np.append(True, np.diff(stamps) > 0)[: len(edges) - 1]
            grid = np.append(times[: len(begins)][begins], edges[-1])
        else:
            period = 1 / float(self.fps or 1)
            near = min(near, period / 4)
            number = np.ceil((edges[-1] - near) / period)
            if number > _MAX_RATIO * len(times):
                said = f"{number:,.0f} steps for {len(times):,}, which take {edges[-1]:g} s"
                raise BadEpisode(Violation("not_representable", f"{said}: are the rate and unit right?", self.times))
            grid = np.arange(int(number) + 1) * period
        new = grid[:-1] if real else grid
        shown = np.searchsorted(times, grid[:-1] + near, side="right") - 1
        receives = np.minimum(np.searchsorted(grid[1:], edges[1:] - near), len(grid) - 2)
        if not real:
            shown, receives = np.append(shown, len(times) - 1), np.append(receives, len(grid) - 1)
        if len(new) == len(times) and (np.abs(new - times) <= near).all():
            return None
        return _Timeline(edges, grid, new, shown, receives)

    def _turn(
        self,
        episode: Episode,
        line: _Timeline,
        made: dict[str, Any],
        turn: Places,
        relative: bool,
        positions: Sequence[Places],
    ) -> None:
        """Writes the rotations at `turn` of the new steps, and the changes of the hand's position along its axes."""
        rotation = self.rotation or ""
        values = _read_actions(episode, line, turn)
        sound_rotations(episode, turn[0][0], values, rotation, np.zeros(len(values), bool))
        turns = read_rotations(values, rotation)  # of transitions, (M,)
        if not relative:
            from scipy.spatial.transform import Slerp

            if len(turns) > 1:
                turns = Slerp(line.edges[:-1], turns)(np.minimum(line.grid[:-1], line.edges[-2]))
            shape = len(line.grid) - 1, len(turn)
            _write(made, turn, np.broadcast_to(write_rotations(turns, rotation), shape))
            return
        turned = self._integrate(turns, line)
        before, after = turned[:-1], turned[1:]
        hand = self.frame == "hand"
        _write(made, turn, write_rotations(before.inv() * after if hand else after * before.inv(), rotation))
        if hand:
            (position,) = positions
            moves = _accumulate(turns, "hand")[:-1].apply(_read_actions(episode, line, position))  # the base's axes
            _write(made, position, before.inv().apply(_add_up(moves, line)))

    def _integrate(self, changes: Rotation, line: _Timeline) -> Rotation:
        """The orientation at the times of the grid, (N + 1,), from the changes of transitions, (M,)."""
        at = np.clip(np.searchsorted(line.edges, line.grid, side="right") - 1, 0, len(line.edges) - 2)
        part = np.clip((line.grid - line.edges[at]) / (line.edges[at + 1] - line.edges[at]), 0, 1)
        done, begun = _accumulate(changes, self.frame)[at], changes[at]
        begun = type(begun).from_rotvec(part[:, None] * begun.as_rotvec())
        return done * begun if self.frame == "hand" else begun * done


def _entries(places: int | str | Sequence[int | str]) -> tuple[int | str, ...]:
    return (places,) if isinstance(places, (int, str)) else tuple(places)


def _read_actions(episode: Episode, line: _Timeline, places: Places) -> Array:
    """Some values of the actions of transitions, float64 (M, D). Raises BadEpisode if one is not finite."""
    path = places[0][0]
    where = [i for _, i in places]
    values = vectors(episode, path, "Resample: action")[: len(line.edges) - 1, where].astype(np.float64)
    if (bad := ~np.isfinite(values).all(axis=1)).any():
        step = int(np.argmax(bad))
        detail = f"step {step} is not finite, so it cannot be resampled"
        raise BadEpisode(Violation("not_representable", detail, path, step))
    return values


def _add_up(changes: Array, line: _Timeline) -> Array:
    """The changes from each time of the grid to the next, (N, D), given those of transitions, (M, D)."""
    total = np.concatenate([np.zeros((1, changes.shape[1])), np.cumsum(changes, axis=0)])
    return np.diff(_interpolate(line.grid, line.edges, total), axis=0)


def _interpolate(times: Array, known: Array, values: Array) -> Array:
    return np.stack([np.interp(times, known, column) for column in values.T], axis=1)


def _read_times(raw: Array, path: str, *, strictly: bool) -> Array:
    """Timestamps since the first one, float64. Raises BadEpisode if they are not finite or do not increase."""
    wide = raw.astype(np.float64 if raw.dtype.kind == "f" else np.int64)
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.diff(wide)
        wrong = ~np.isfinite(wide) | np.append(False, (steps <= 0) if strictly else (steps < 0))
    if wrong.any():
        step = int(np.argmax(wrong))
        before = f" after {raw[step - 1]}" if step else ""
        detail = f"time {raw[step]}{before} at step {step}: expected times that increase"
        raise BadEpisode(Violation("not_representable", detail, path, step))
    since: Array = (wide - wide[0]).astype(np.float64)
    return since


def _accumulate(changes: Rotation, frame: str) -> Rotation:
    """The orientation before each change, and after the last one, (M + 1,)."""
    from scipy.spatial.transform import Rotation

    turned, width = changes, 1
    while width < len(changes):  # each of the products of up to `width` changes, with the one before it
        before, after = turned[:-width], turned[width:]
        turned = Rotation.concatenate([turned[:width], before * after if frame == "hand" else after * before])
        width *= 2
    return Rotation.concatenate([Rotation.identity(1), turned])


def _write(made: dict[str, Any], places: Places, values: Array) -> None:
    """Replaces some values of the first N steps, (N, D), in a copy of their column."""
    path = places[0][0]
    column = np.array(made[path])
    column.reshape(len(column), -1)[: len(values), [i for _, i in places]] = values
    made[path] = column


def _end_and_merge(
    episode: Episode, line: _Timeline, steps: Mapping[str, Column], fields: StepFields
) -> dict[str, Column]:
    """The steps with the rewards and discounts of all transitions, and the flags at both ends."""
    made = dict(steps)
    starts = np.flatnonzero(np.append(True, np.diff(line.receives) > 0))
    for path in (*all_below(made, fields.rewards), *all_below(made, "discount")):
        column = episode.steps[path]
        if isinstance(column, EncodedImages) or column.dtype.kind in "OSU":
            continue
        merge: np.ufunc = {"discount": np.multiply}.get(path, np.add)
        merged = np.asarray(merge_steps(episode, path, starts, merge, column[starts]))
        filled = np.full((len(line.times), *merged.shape[1:]), merge is np.multiply, merged.dtype)
        filled[line.receives[starts]] = merged
        made[path] = filled
    for path, at in (("is_first", 0), ("is_last", -1), ("is_terminal", -1)):
        if path in made:
            flags = np.zeros_like(np.asarray(made[path]))
            made[path] = with_value(flags, at, bool(np.asarray(episode.steps[path])[at]))
    return made
