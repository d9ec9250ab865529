"""Finds the start and end time of each episode in a bag, and the messages of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rlds_beam.errors import UsageError
from rlds_beam.formats.ros2.bags import EVER, Bag
from rlds_beam.formats.ros2.mapping import NS, Boundaries, TopicMapping
from rlds_beam.formats.ros2.messages import message_type
from rlds_beam.text import did_you_mean, shorten
from rlds_beam.typing import Array


class BagWindow(NamedTuple):
    """An episode of a bag: the messages with a log time in [start, stop).

    Attributes:
      start, stop: nanoseconds.
      damage: why it is no episode; empty if it is one.
    """

    start: int
    stop: int
    damage: str = ""


def find_windows(bag: Bag, mapping: TopicMapping) -> tuple[BagWindow, ...]:
    """The episodes of a bag, in order.

    Raises:
      DamagedBag: a part of the bag that tells is damaged.
      UsageError: the bag has no such topic, or its messages have no such field.
      BadMessage: a marker cannot be read.
    """
    bounds = mapping.boundaries
    if not bounds.topic:
        return (BagWindow(0, EVER),)
    if bounds.gap_s is not None:
        return tuple(_between_gaps(bag, bounds.topic, round(bounds.gap_s * NS)))
    return tuple(_between_markers(bag, bounds))


def _between_gaps(bag: Bag, topic: str, gap: int) -> list[BagWindow]:
    times = bag.times(topic)
    if not len(times):
        return []
    breaks = np.flatnonzero(np.diff(times) > gap)
    starts, ends = times[[0, *(breaks + 1)]].tolist(), times[[*breaks, -1]].tolist()
    return [BagWindow(start, end + 1) for start, end in zip(starts, ends, strict=True)]


def _between_markers(bag: Bag, bounds: Boundaries) -> list[BagWindow]:
    windows: list[BagWindow] = []
    begun: int | None = None
    for time, value in _markers(bag, bounds):
        starts = value in bounds.start
        if not starts and value not in (*bounds.stop, *bounds.discard):
            continue
        if begun is not None:
            damage = ""
            if value in bounds.discard:
                damage = f"discarded: {bounds.topic} says {value}"
            elif starts and bounds.stop:
                damage = f"{bounds.topic} begins another episode before this one was stopped"
            windows.append(BagWindow(begun, time, damage))
        begun = time if starts else None
    if begun is not None:
        damage = f"the bag ends before {bounds.topic} stops this episode" if bounds.stop else ""
        windows.append(BagWindow(begun, EVER, damage))
    return windows


def _markers(bag: Bag, bounds: Boundaries) -> list[tuple[int, str]]:
    """The values of the markers as in the mapping, by log time."""
    topic = bag.topics.get(bounds.topic)
    if topic is None:
        hint = did_you_mean(bounds.topic, bag.topics, otherwise=f"it has {shorten(', '.join(sorted(bag.topics)))}")
        raise UsageError(f"{bag.layout.path} has no topic {bounds.topic} with the markers of episodes{hint}")
    kind = message_type(topic)
    path, found = kind.find(bounds.field), []
    for message in sorted(bag.messages((topic.name,)), key=lambda message: message.time):
        value = path.read(kind.decode(message.data))
        if isinstance(value, bytes):
            value = value.decode().strip()
        found.append((message.time, str(value).lower() if isinstance(value, np.bool_) else str(value)))
    return found


class AlignedSteps(NamedTuple):
    """The steps of an episode.

    Attributes:
      times: the time of each complete step, int64 nanoseconds.
      chosen: the index of the message of each step, by field.
      dropped: the number of incomplete steps.
      lacking: by field, the number of steps for which it has no message, or only one that is too old.
    """

    times: Array
    chosen: Mapping[str, Array]
    dropped: int
    lacking: Mapping[str, int]


def align(steps: Array, streams: Mapping[str, Array], max_ages: Mapping[str, int | None]) -> AlignedSteps:
    """Chooses messages for steps.

    Args:
      steps: the times of the steps, int64 nanoseconds. Equal ones give one step.
      streams: by field, the times of its messages, int64, ascending; of equal ones the last is the latest.
      max_ages: by field, the largest allowed age in nanoseconds; None is any.
    """
    steps = np.unique(steps)
    complete = np.ones(len(steps), bool)
    chosen: dict[str, Array] = {}
    lacking: dict[str, int] = {}
    for field, times in streams.items():
        index = np.searchsorted(times, steps, side="right") - 1
        fits = index >= 0
        max_age = max_ages[field]
        if max_age is not None and len(times):
            fits &= steps - times[np.maximum(index, 0)] <= max_age
        chosen[field], lacking[field] = index, int(np.count_nonzero(~fits))
        complete &= fits
    kept = {field: index[complete] for field, index in chosen.items()}
    return AlignedSteps(steps[complete], kept, int(np.count_nonzero(~complete)), lacking)


def grid(first: int, last: int, rate: float) -> Array:
    """The times of steps at a fixed rate, from the first message to the last, int64 nanoseconds."""
    thousandths = round(rate * 1_000_000)
    count = (last - first) * thousandths // 1_000_000_000_000_000 + 1
    numbers = np.arange(count, dtype=np.int64)
    whole, rest = np.divmod(numbers * 1_000_000, thousandths)  # seconds
    times: Array = first + whole * 1_000_000_000 + np.round(rest * (1_000_000_000 / thousandths)).astype(np.int64)
    return times
