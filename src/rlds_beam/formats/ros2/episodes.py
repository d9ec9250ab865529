"""The episodes of bags, as arrays."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.base import Damage
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import ArrayFormat, Arrays
from rlds_beam.formats.ros2.bags import Bag, bag_layout
from rlds_beam.formats.ros2.cdr import BadMessage
from rlds_beam.formats.ros2.images import read_stamp
from rlds_beam.formats.ros2.mapping import TopicMapping
from rlds_beam.formats.ros2.messages import MAX_EPISODE_BYTES, find_definitions
from rlds_beam.formats.ros2.values import FieldReader, has_header
from rlds_beam.formats.ros2.windows import AlignedSteps, BagWindow, align, find_windows, grid
from rlds_beam.text import shorten
from rlds_beam.typing import Array

START, DROPPED, LACKING, TIMES = "start_time_ns", "dropped_frames", "dropped", "timestamp_ns"
_MAX_STEPS = 10_000_000
_NEAR_NS = 1_000_000_000
"""Messages of a topic that are less far from each other are read at once."""


@dataclasses.dataclass(frozen=True)
class Ros2Format(ArrayFormat):
    """ROS 2 bags, by the paths of `bags.bag_layout`.

    Attributes:
      mapping: which topic becomes which field.
      distribution: the ROS distribution whose types a bag without definitions uses; empty for the bag's, or the latest.
      readers: how each field is read, as found in the first bag.
    """

    mapping: TopicMapping
    distribution: str
    readers: tuple[FieldReader, ...]

    name = "ros2"

    def count(self, path: str) -> int:
        return len(self.windows(path))

    def windows(self, path: str) -> tuple[BagWindow, ...]:
        """The windows of a bag's episodes. Raises OSError if it cannot be read."""
        return _windows(path, self.mapping, self.distribution, _stamps_of_files(path))

    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        windows = self.windows(path)[start:stop]
        with Bag(_layout(path)) as bag:
            timelines = None
            if self.mapping.by_stamp and self.mapping.boundaries.kind != "bag":
                timelines = _timelines(path, self.mapping, self.distribution, _stamps_of_files(path))
            reading = _Reading(bag, self, timelines)
            for i, window in enumerate(windows, start):
                if window.damage:
                    yield Damage(i, i + 1, window.damage, b"")
                    continue
                try:
                    yield reading.episode(window)
                except (BadMessage, IndexError, OSError, UsageError) as error:
                    yield Damage(i, i + 1, shorten(error, 500), b"")


def _layout(path: str) -> Any:
    try:
        return bag_layout(path)
    except UsageError as error:
        raise OSError(str(error)) from error


def _stamps_of_files(path: str) -> object:
    return tuple(storage.stamp(file) for file in (path, *_layout(path).files))


@functools.lru_cache(maxsize=256)
def _windows(path: str, mapping: TopicMapping, distribution: str, stamps: object) -> tuple[BagWindow, ...]:
    layout = _layout(path)
    with Bag(layout) as bag:
        try:
            definitions = find_definitions(
                [topic for name, topic in bag.topics.items() if name == mapping.boundaries.topic],
                distribution,
                layout.distribution,
            )
            return find_windows(bag, mapping, definitions)
        except (BadMessage, UsageError) as error:
            raise OSError(str(error)) from error


class _Timeline(NamedTuple):
    """The messages of a topic in a bag.

    Attributes:
      times: by the chosen clock, ascending.
      logs: the log time of each.
      recorded: the log times, ascending.
      recorded_times: the time of each.
    """

    times: Array
    logs: Array
    recorded: Array
    recorded_times: Array


@functools.lru_cache(maxsize=4)
def _timelines(path: str, mapping: TopicMapping, distribution: str, stamps: object) -> Mapping[str, _Timeline]:
    """The timelines of a bag. Those of stamps are known only after all messages were read.

    Raises:
      OSError: a part of the bag cannot be read.
      UsageError: the definition of a type cannot be read.
    """
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in mapping.topics}
    with Bag(_layout(path)) as bag:
        stamped = _stamped_topics(bag, mapping, distribution)
        for message in bag.messages(mapping.topics):
            with contextlib.suppress(BadMessage):  # it costs the episodes that need it
                time = read_stamp(message.data) if message.topic in stamped else message.time
                if time is not None:
                    found[message.topic].append((time, message.time))
    timelines = {}
    for name, pairs in found.items():
        times, logs = np.array(pairs, np.int64).reshape(-1, 2).T
        order, recorded = np.lexsort((logs, times)), np.argsort(logs, kind="stable")
        timelines[name] = _Timeline(times[order], logs[order], logs[recorded], times[recorded])
    return timelines


def _stamped_topics(bag: Bag, mapping: TopicMapping, distribution: str) -> set[str]:
    """The topics whose messages are taken by their stamps."""
    topics = [topic for name, topic in bag.topics.items() if name in mapping.topics and mapping.by_stamp]
    return {
        topic.name
        for topic in topics
        if has_header(topic.type, find_definitions([topic], distribution, bag.layout.distribution))
    }


def count_incomplete(path: str, files: Ros2Format) -> tuple[int, dict[str, int]]:
    """The steps of a bag's episodes, and by field the steps that lack it. Looks at log times only.

    Raises:
      OSError: the bag cannot be read.
    """
    mapping, steps, lacking = files.mapping, 0, dict.fromkeys((field.path for field in files.mapping.fields), 0)
    with Bag(_layout(path)) as bag:
        times = {topic: bag.times(topic) for topic in mapping.topics}
        for window in files.windows(path):
            if window.damage:
                continue
            inside = {topic: own[slice(*np.searchsorted(own, window[:2]))] for topic, own in times.items()}
            at = steps_at(mapping, inside)
            fields = [field for field in mapping.fields if field.topic]
            streams = {field.path: times[field.topic] for field in fields}
            frames = align(at, streams, {field.path: field.max_age for field in fields})
            steps += len(frames.times) + frames.dropped
            for field, number in frames.lacking.items():
                lacking[field] += number
    return steps, lacking


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


class _Stream(NamedTuple):
    """The messages that may count for an episode, by time; `inside` says which were recorded in it."""

    times: Array
    inside: Array
    data: list[memoryview]


class _Reading:
    """Reads the episodes of a bag."""

    def __init__(self, bag: Bag, files: Ros2Format, timelines: Mapping[str, _Timeline] | None):
        self._bag, self._mapping, self._timelines = bag, files.mapping, timelines
        topics = [topic for name, topic in bag.topics.items() if name in files.mapping.topics]
        definitions = {
            topic.name: find_definitions([topic], files.distribution, bag.layout.distribution) for topic in topics
        }
        for topic in topics:
            if topic.encoding != "cdr":
                raise OSError(f"{bag.layout.path}: {topic.name} is serialized as {topic.encoding!r}, not as cdr")
        self._readers = [reader.bound(bag.topics, definitions.get(reader.field.topic, {})) for reader in files.readers]
        self._stamped = _stamped_topics(bag, files.mapping, files.distribution)

    def episode(self, window: BagWindow) -> Arrays:
        """The arrays of an episode: those of its fields, and what is known about it."""
        streams, unstamped = self._streams(window)
        steps = steps_at(self._mapping, {name: stream.times[stream.inside] for name, stream in streams.items()})
        readers = [reader for reader in self._readers if reader.field.topic]
        frames = align(
            steps,
            {reader.field.path: streams[reader.field.topic].times for reader in readers},
            {reader.field.path: reader.field.max_age for reader in readers},
        )
        if not len(frames.times):
            raise BadMessage(self._why_empty(frames, len(steps)))
        arrays: dict[str, Array] = {TIMES: frames.times}
        for reader in readers:
            path, data = reader.field.path, streams[reader.field.topic].data
            arrays[path] = reader.column(data, frames.chosen[path])
        lacking = [f"{path} ({topic}): {n:,}" for path, n, topic in self._lacking(frames)]
        lacking += [f"{topic}: {n:,} messages without a stamp" for topic, n in unstamped.items()]
        arrays[DROPPED] = np.array([frames.dropped])
        arrays[LACKING] = np.array([", ".join(lacking).encode()], object)
        arrays[START] = frames.times[:1].copy()
        return arrays

    def _lacking(self, frames: AlignedSteps) -> list[tuple[str, int, str]]:
        topics = {reader.field.path: reader.field.topic for reader in self._readers}
        return [(path, count, topics[path]) for path, count in frames.lacking.items() if count]

    def _why_empty(self, frames: AlignedSteps, steps: int) -> str:
        if not steps:
            return f"no message of {self._mapping.reference or 'any mapped topic'}, so it has no steps"
        said = []
        for path, count, topic in self._lacking(frames):
            no_topic = "the bag has no such topic" if topic not in self._bag.topics else f"{count:,} of {steps:,} steps"
            said.append(f"{path} ({topic}): {no_topic}")
        return f"no step is complete; lacking or older than max_age_s: {'; '.join(said)}"

    def _streams(self, window: BagWindow) -> tuple[dict[str, _Stream], dict[str, int]]:
        """The messages of each topic that may count for an episode, and how many in it have no stamp."""
        found: dict[str, list[tuple[int, int, memoryview]]] = {name: [] for name in self._mapping.topics}
        unstamped: dict[str, int] = {}
        wanted, size = {reader.field.topic for reader in self._readers}, 0
        for topics, start, stop in self._spans(window):
            for entry in self._bag.messages(topics, start, stop):
                time = read_stamp(entry.data) if entry.topic in self._stamped else entry.time
                if time is None:
                    unstamped[entry.topic] = unstamped.get(entry.topic, 0) + (window.start <= entry.time < window.stop)
                    continue
                kept = entry.data if entry.topic in wanted else entry.data[:0]
                found[entry.topic].append((time, entry.time, copy_bytes(kept)))
                size += len(kept)
                if size > MAX_EPISODE_BYTES:
                    raise BadMessage(f"its messages are larger than {MAX_EPISODE_BYTES >> 30} GB")
        streams: dict[str, _Stream] = {}
        for name, messages in found.items():
            messages.sort(key=lambda message: message[:2])
            times, logs = (np.array([message[i] for message in messages], np.int64) for i in range(2))
            inside = (logs >= window.start) & (logs < window.stop)
            streams[name] = _Stream(times, inside, [message[2] for message in messages])
        return streams, {name: number for name, number in unstamped.items() if number}

    def _spans(self, window: BagWindow) -> list[tuple[tuple[str, ...], int, int]]:
        """Topics and intervals of log time with all messages that may count for the steps of an episode."""
        topics = self._mapping.topics
        if self._timelines is not None:
            logs = self._chosen_logs(window, self._timelines)
            before, after = logs[logs < window.start], logs[logs >= window.stop]
            spans = [(int(group[0]), int(group[-1]) + 1) for some in (before, after) for group in _groups(some)]
            return [(topics, *span) for span in sorted([*spans, (window.start, window.stop)])]
        ages = {name: self._mapping.max_age(name) for name in topics}
        start = max(0, window.start - max((age for age in ages.values() if age is not None), default=0))
        carried = []
        for name in [name for name, age in ages.items() if age is None and window.start]:
            time = self._bag.last_time(name, window.start)
            if time is not None and time < start:
                carried.append(((name,), time, time + 1))
        return [*carried, (topics, start, window.stop)]

    def _chosen_logs(self, window: BagWindow, timelines: Mapping[str, _Timeline]) -> Array:
        """The log times of the messages that count for the steps of an episode, ascending."""
        inside = {
            name: timeline.recorded_times[slice(*np.searchsorted(timeline.recorded, window[:2]))]
            for name, timeline in timelines.items()
        }
        steps, logs = steps_at(self._mapping, inside), [np.zeros(0, np.int64)]
        for name, timeline in timelines.items():
            chosen = align(steps, {name: timeline.times}, {name: self._mapping.max_age(name)}).chosen[name]
            logs.append(timeline.logs[chosen])
        return np.unique(np.concatenate(logs))


def _groups(times: Array) -> list[Array]:
    """Times, separated where they are far from each other."""
    return np.split(times, np.flatnonzero(np.diff(times) > _NEAR_NS) + 1) if len(times) else []


def copy_bytes(data: memoryview) -> memoryview:
    """A copy, which does not keep the whole chunk in memory. Bytes that are not part of more are not copied."""
    whole = data.obj
    return data if isinstance(whole, bytes) and len(whole) == len(data) else memoryview(bytes(data))
