"""Defects of episodes in up to three strengths, each with the signal that should find it, for `run.py defects`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from data_kinds import Kind

from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

Change = Callable[[Episode, np.random.Generator, float, Kind], Episode]


@dataclasses.dataclass(frozen=True)
class Defect:
    """A defect, and the signal that should find it.

    Attributes:
      name: what is wrong.
      signal: the signal.
      strengths: from weak to strong.
      change: puts it into an episode.
      needs: the attributes of a kind that it needs.
      unit: the unit of the strengths.
      unlike: signals that must not take it for theirs.
    """

    name: str
    signal: str
    strengths: Sequence[float]
    change: Change
    needs: tuple[str, ...] = ()
    unit: str = ""
    unlike: tuple[str, ...] = ()


def edit(episode: Episode, path: str, change: Callable[[Array], Any]) -> Episode:
    """The episode with a column changed by a function of its copy, which returns None or the new column."""
    values = np.array(episode.steps[path])
    dtype = values.dtype
    result = change(values)
    return episode.with_columns({path: values if result is None else np.asarray(result).astype(dtype)})


def select(episode: Episode, steps: Array) -> Episode:
    """The episode with some of its steps."""
    columns: dict[str, Any] = {path: column[steps] for path, column in episode.steps.items()}
    return episode.replace(steps=columns, metadata={**episode.metadata, "num_steps": np.int64(len(steps))})


def find_part(length: int, rng: np.random.Generator, share: float) -> slice:
    """A random part of the steps, without the first and the last."""
    size = max(2, min(round(share * length), length - 3))
    start = int(rng.integers(1, max(2, length - size - 1)))
    return slice(start, start + size)


def _width(values: Array) -> Array:
    return np.ptp(values, axis=0)


def _scale(episode: Episode, kind: Kind, path: str, dimension: int) -> float:
    """The range of a dimension; that of the widest if it is at rest."""
    width = _width(np.array(episode.steps[path]))
    moving = [d for d in kind.moving if d < len(width)]
    return float(width[dimension] if width[dimension] > 0 else width[moving].max())


def _pick(rng: np.random.Generator, kind: Kind, path: str, episode: Episode) -> int:
    size = np.array(episode.steps[path]).shape[1]
    return int(rng.choice([d for d in kind.moving if d < size]))


def _round(kind: Kind, values: Array) -> Array:
    return np.rint(values) if kind.discrete else values


def decode(column: Column) -> Array:
    return column.decode() if isinstance(column, EncodedImages) else np.array(column)


def _store(column: Column, images: Array) -> Column:
    if not isinstance(column, EncodedImages):
        return images
    return column.with_data(np.array([*encode_jpeg(images, 90), None], object)[:-1])


def _paint(change: Callable[[Array, float], Array], *, part: bool = True) -> Change:
    """Changes the pixels of a part of the images, or of all of them."""

    def defect(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
        column = episode.steps[kind.camera]
        images = decode(column)
        where = slice(len(images) - round(strength * len(images)), None) if part else slice(None)
        painted = change(images[where].astype(np.float64), strength)
        images[where] = np.clip(painted, 0, 255).astype(np.uint8)
        return episode.with_columns({kind.camera: _store(column, images)})

    return defect


def blur(images: Array, radius: float) -> Array:
    """A box blur, twice."""
    shifts = range(-int(radius), int(radius) + 1)
    for axis in (1, 2, 1, 2):
        images = sum(np.roll(images, shift, axis) for shift in shifts) / len(shifts)
    return images


def _repeat_images(episode: Episode, kind: Kind, at: Array) -> Episode:
    column = episode.steps[kind.camera]
    data = column.data[at] if isinstance(column, EncodedImages) else column[at]
    return episode.with_columns({kind.camera: column.with_data(data) if isinstance(column, EncodedImages) else data})


def _freeze(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    at = np.arange(len(episode))
    where = find_part(len(episode), rng, strength)
    at[where] = where.start
    return _repeat_images(episode, kind, at)


def _slow(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    """Repeats every fifth, third, or second image."""
    at = np.arange(len(episode))
    period = round(1 / strength)
    at[period - 1 :: period] -= 1
    return _repeat_images(episode, kind, at)


def _drop(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    lost = rng.choice(np.arange(2, len(episode) - 2), int(strength), replace=False)
    return select(episode, np.setdiff1d(np.arange(len(episode)), lost))


def _shake(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    def change(times: Array) -> Array:
        return times + rng.uniform(-1, 1, len(times)) * strength * np.sqrt(3) * np.median(np.diff(times))

    return edit(episode, kind.clock, change)


def _swap_times(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    def change(times: Array) -> None:
        for at in rng.integers(2, len(times) - 3, int(strength)):
            times[[at, at + 1]] = times[[at + 1, at]]

    return edit(episode, kind.clock, change)


def _jump(field: str) -> Change:
    def defect(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
        path = getattr(kind, field)
        d, at = _pick(rng, kind, path, episode), int(rng.integers(2, len(episode) - 2))
        by = float(rng.choice([-1, 1])) * strength * _scale(episode, kind, path, d)

        def change(values: Array) -> None:
            values[at, d] += _round(kind, np.array(by))

        return edit(episode, path, change)

    return defect


def _stick(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    def change(values: Array) -> None:
        at = round((1 - strength) * len(values))
        values[at:, d] = values[at, d]

    d = _pick(rng, kind, kind.state, episode)
    return edit(episode, kind.state, change)


def _rest(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    """Holds still in the middle of the episode: the values and images of a step repeat."""
    length = len(episode)
    more = round(strength * length / (1 - strength))
    at = length // 2
    steps = np.concatenate([np.arange(at), np.full(more, at), np.arange(at, length)])
    held = select(episode, steps)
    if kind.clock:
        held = held.with_columns({kind.clock: np.arange(len(steps)) / kind.fps})
    return held.with_columns({name: np.arange(len(steps)) == 0 for name in ("is_first",)})


def _chatter(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    def change(values: Array) -> None:
        at = int(rng.integers(2, len(values) - int(strength) - 3))
        values[at : at + int(strength), -1] = np.arange(int(strength)) % 2

    return edit(episode, kind.action, change)


def _delay(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    """The state follows later: actions are those of later steps."""

    def change(values: Array) -> Array:
        return values[np.minimum(np.arange(len(values)) + int(strength), len(values) - 2)]

    return edit(episode, kind.action, change)


def _cut(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    return select(episode, np.arange(max(4, round(strength * len(episode)))))


def _scale_reward(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    """Multiplies the rewards; a failure has one point fewer for each time."""
    failed = not np.array(episode.steps["reward"]).any()
    return edit(episode, "reward", lambda values: values - strength / len(values) if failed else values * strength)


def _clear_text(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    text = bytes(rng.choice([b"", b" "]))
    return episode.with_columns({kind.text: np.full(len(episode), text, object)})


def _convert_units(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    key = dataclasses.replace(episode.key, split="more")
    return edit(episode, kind.state, lambda values: values * strength).replace(key=key)


def _turn_rate(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    return edit(episode, kind.clock, lambda times: times * strength)


def _repeat_actions(episode: Episode, rng: np.random.Generator, strength: float, kind: Kind) -> Episode:
    """The steps of another episode, which is the same for all."""
    other = _make_original(kind.make)
    metadata = {**other.metadata, "episode_id": episode.metadata["episode_id"]}
    return episode.replace(steps={**other.steps}, metadata=metadata)


@functools.cache
def _make_original(make: Callable[[int, int], list[Episode]]) -> Episode:
    return make(1, 999)[0]


DEFECTS = (
    Defect("camera hangs", "frozen_camera", (0.15, 0.35, 0.6), _freeze, ("camera",), "share of steps"),
    Defect("camera is slow", "repeated_images", (0.2, 0.34, 0.5), _slow, ("camera",), "share of steps"),
    Defect(
        "black images",
        "black_images",
        (0.2, 0.5, 1),
        _paint(lambda images, _: images * 0.03),
        ("camera",),
        "share of steps",
    ),
    Defect(
        "bright images",
        "overexposed_images",
        (0.2, 0.5, 1),
        _paint(lambda images, _: images * 4 + 120),
        ("camera",),
        "share of steps",
    ),
    Defect("blurred images", "blurred_images", (1, 2, 4), _paint(blur, part=False), ("camera",), "pixels"),
    Defect("lost frames", "dropped_frames", (1, 3, 8), _drop, ("clock",), "frames"),
    Defect("jitter", "jitter", (0.1, 0.2, 0.3), _shake, ("clock",), "intervals", ("dropped_frames",)),
    Defect("swapped timestamps", "time_reversals", (1, 3, 8), _swap_times, ("clock",), "swaps"),
    Defect("another rate", "rate_mismatch", (1.2, 1.5, 3), _turn_rate, ("clock",), "times"),
    Defect("jump of the state", "jump", (0.5, 1, 2), _jump("state"), (), "ranges"),
    Defect("jump of the action", "jump", (0.5, 1, 2), _jump("action"), ("action",), "ranges"),
    Defect("stuck sensor", "stuck", (0.5, 0.7, 0.9), _stick, (), "share of steps"),
    Defect("robot rests", "idle_share", (0.4, 0.6, 0.8), _rest, (), "share of steps"),
    Defect("gripper chatters", "gripper_chatter", (6, 10, 20), _chatter, ("position",), "turns"),
    Defect("state is late", "lag", (2, 4, 8), _delay, ("action",), "steps"),
    Defect("episode is cut", "outlier_length", (0.5, 0.25, 0.1), _cut, (), "share of steps"),
    Defect("reward in another unit", "outlier_return", (2, 5, 20), _scale_reward, (), "times"),
    Defect("copied episode", "duplicate_actions", (1,), _repeat_actions, ("text",)),
    Defect("no task", "missing_instruction", (0,), _clear_text, ("text",)),
    Defect("other units", "scale_mismatch", (3, 10, 57.3), _convert_units, (), "times"),
)
