"""The episodes of bags, as arrays: where each begins and ends, and which messages count for its steps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.base import Damage
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import ArrayFormat, Arrays
from rlds_beam.formats.ros2.bags import EVER, Bag, BagLayout, bag_layout
from rlds_beam.formats.ros2.fields import FieldReader, find_pose
from rlds_beam.formats.ros2.mapping import NS, OF_EPISODE, Boundaries, TopicField, TopicMapping
from rlds_beam.formats.ros2.messages import BadMessage, message_type, read_stamp
from rlds_beam.text import did_you_mean, shorten
from rlds_beam.typing import Array

START, DROPPED, LACKING, TIMES = "start_time_ns", "dropped_frames", "dropped", "timestamp_ns"
_MAX_STEPS = 10_000_000
_MAX_DELAY = 10_000_000_000  # nanoseconds between a stamp and when its message is recorded


class BagWindow(NamedTuple):
    """An episode of a bag: the messages with a log time in [start, stop).

    Attributes:
      start, stop: nanoseconds.
      damage: why it is no episode; empty if it is one.
    """

    start: int
    stop: int
    damage: str = ""


class _Stream(NamedTuple):
    """The messages that may count for an episode, by time; `inside` says which were recorded in it."""

    times: Array
    inside: Array
    data: list[bytes]


@dataclasses.dataclass(frozen=True)
class Ros2Format(ArrayFormat):
    """ROS 2 bags, by the paths of `bags.bag_layout`.

    Attributes:
      mapping: which topic becomes which field.
      readers: how each field is read, as found in the first bag.
    """

    mapping: TopicMapping
    readers: tuple[FieldReader, ...]

    name = "ros2"

    def count(self, path: str) -> int:
        return len(self.windows(path))

    def windows(self, path: str) -> tuple[BagWindow, ...]:
        """The windows of a bag's episodes. Raises OSError if it cannot be read."""
        stamps = tuple(storage.stamp(file) for file in (path, *_layout(path).files))
        return _windows(path, self.mapping, stamps)

    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        windows = self.windows(path)[start:stop]
        with Bag(_layout(path)) as bag:
            for i, window in enumerate(windows, start):
                try:
                    yield Damage(i, i + 1, window.damage, b"") if window.damage else self._episode(bag, window)
                except (BadMessage, OSError, UsageError) as error:
                    yield Damage(i, i + 1, shorten(error, 500), b"")

    def _episode(self, bag: Bag, window: BagWindow) -> Arrays:
        """The arrays of an episode: those of its fields, and what is known about it."""
        topics = [bag.topics[name] for name in self.mapping.topics if name in bag.topics]
        for topic in topics:
            if topic.encoding != "cdr":
                raise BadMessage(f"{topic.name} is serialized as {topic.encoding!r}, not as cdr")
        kinds = {topic.name: message_type(topic) for topic in topics}
        stamped = {name for name, kind in kinds.items() if self.mapping.time == "header" and kind.has_header}
        streams, unstamped = self._streams(bag, window, stamped)
        steps = steps_at(self.mapping, {name: stream.times[stream.inside] for name, stream in streams.items()})
        times = {field.path: streams[field.topic].times for field in self.mapping.aligned}
        frames = align(steps, times, {field.path: field.max_age for field in self.mapping.aligned})
        topic_of = {field.path: field.topic for field in self.mapping.aligned}
        lacking = [(path, topic_of[path], number) for path, number in frames.lacking.items() if number]
        if not len(steps):
            raise BadMessage(f"no message of {self.mapping.reference or 'any mapped topic'}, so it has no steps")
        if not len(frames.times):
            reasons = [f"{path} ({name}): {number:,} of {len(steps):,} steps" for path, name, number in lacking]
            missing = [f"the bag has no topic {name}" for name in self.mapping.topics if name not in kinds]
            raise BadMessage(f"no step is complete; lacking or older than max_age_s: {'; '.join(reasons + missing)}")
        arrays: dict[str, Array] = {TIMES: frames.times}
        for reader in self.readers:
            path, source = reader.field.path, reader.field.topic
            if reader.field.frame:
                arrays[path] = self._transform(bag, reader.field)
                continue
            if reader.field.window:
                if source not in kinds:
                    raise BadMessage(f"{path}: the bag has no topic {source}")
                stream = streams[source]
                messages = [stream.data[i] for i in np.flatnonzero(stream.inside)]
                arrays |= reader.window(stream.times[stream.inside], messages, frames.times, kinds[source])
                continue
            column = reader.column(streams[source].data, frames.chosen[path], kinds[source])
            if path.startswith(f"{OF_EPISODE}/"):
                if (column != column[:1]).any():
                    raise BadMessage(f"{path} ({source}) changes within the episode: map it to a step field")
                column = column[:1]
            arrays[path] = column
        notes = [f"{path} ({name}): {number:,}" for path, name, number in lacking]
        notes += [f"{name}: {number:,} messages without a stamp" for name, number in unstamped.items() if number]
        arrays[DROPPED] = np.array([frames.dropped])
        arrays[LACKING] = np.array([", ".join(notes).encode()], object)
        arrays[START] = frames.times[:1].copy()
        return arrays

    def _transform(self, bag: Bag, field: TopicField) -> Array:
        """The pose of a frame, [1, 4, 4], or the name of its base, [1]."""
        if field.topic not in bag.topics:
            raise BadMessage(f"{field.path}: the bag has no topic {field.topic}")
        kind = message_type(bag.topics[field.topic])
        messages = (kind.decode(message.data) for message in bag.messages((field.topic,)))
        pose, base = find_pose(field.frame, [one for message in messages for one in message.transforms])
        return np.array([base.encode()], object) if field.fields else pose[None]

    def _streams(self, bag: Bag, window: BagWindow, stamped: set[str]) -> tuple[dict[str, _Stream], dict[str, int]]:
        """The messages of each topic that may count for an episode, and how many in it have no stamp.

        Args:
          stamped: the topics whose messages are taken by the stamps in their headers.
        """
        delay = _MAX_DELAY if stamped else 0
        ages = {name: self.mapping.max_age(name) for name in self.mapping.topics}
        start = max(0, window.start - delay - max((age for age in ages.values() if age is not None), default=0))
        spans: list[tuple[tuple[str, ...], int, int]] = []
        for name in [name for name, age in ages.items() if age is None and start]:
            times = bag.times(name)
            if before := int(np.searchsorted(times, start)):
                time = int(times[before - 1])
                spans.append(((name,), time, time + 1))
        spans.append((self.mapping.topics, start, min(EVER, window.stop + delay)))
        found: dict[str, list[tuple[int, int, bytes]]] = {name: [] for name in self.mapping.topics}
        unstamped = dict.fromkeys(stamped, 0)
        wanted = {reader.field.topic for reader in self.readers}
        for topics, first, last in spans:
            for entry in bag.messages(topics, first, last):
                stamp = read_stamp(entry.data) if entry.topic in stamped else entry.time
                if stamp is None:
                    unstamped[entry.topic] += window.start <= entry.time < window.stop
                else:
                    found[entry.topic].append((stamp, entry.time, entry.data if entry.topic in wanted else b""))
        streams = {}
        for name, messages in found.items():
            messages.sort(key=lambda message: message[:2])
            times, logs = (np.array([message[i] for message in messages], np.int64) for i in range(2))
            inside = (logs >= window.start) & (logs < window.stop)
            streams[name] = _Stream(times, inside, [message[2] for message in messages])
        return streams, unstamped


def _layout(path: str) -> BagLayout:
    try:
        return bag_layout(path)
    except UsageError as error:
        raise OSError(str(error)) from error


@functools.lru_cache(maxsize=256)
def _windows(path: str, mapping: TopicMapping, stamps: object) -> tuple[BagWindow, ...]:
    """The episodes of a bag, in order. Raises OSError if they cannot be told."""
    bounds = mapping.boundaries
    with Bag(_layout(path)) as bag:
        try:
            if not bounds.topic:
                return (BagWindow(0, EVER),)
            if bounds.gap_s is not None:
                return tuple(_between_gaps(bag, bounds.topic, round(bounds.gap_s * NS)))
            return tuple(_between_markers(bag, bounds))
        except (BadMessage, UsageError) as error:
            raise OSError(str(error)) from error


def steps_at(mapping: TopicMapping, inside: Mapping[str, Array]) -> Array:
    """The times of an episode's steps, complete or not, from the times of the messages in it.

    Raises:
      BadMessage: there would be more than `_MAX_STEPS`.
    """
    if mapping.reference:
        return inside[mapping.reference]
    every: Array = np.concatenate([np.zeros(0, np.int64), *inside.values()])
    if not len(every):
        return every
    low, high = int(every.min()), int(every.max())
    if (high - low) / 1e9 * mapping.rate > _MAX_STEPS:
        raise BadMessage(f"its messages span {(high - low) / 1e9:,.0f} s: more than {_MAX_STEPS:,} steps")
    return grid(low, high, mapping.rate)


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
