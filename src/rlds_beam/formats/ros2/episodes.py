"""The episodes of bags, as arrays: where each begins and ends, and which messages count for its steps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.base import Damage
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import ArrayFormat, Arrays, cut_windows
from rlds_beam.formats.ros2.bags import EVER, Bag, bag_files
from rlds_beam.formats.ros2.fields import FieldReader, find_pose
from rlds_beam.formats.ros2.mapping import NS, OF_EPISODE, Boundaries, TopicField, TopicMapping
from rlds_beam.formats.ros2.messages import BadMessage, MessageType, message_type, read_stamp
from rlds_beam.text import did_you_mean, shorten
from rlds_beam.typing import Array

START, DROPPED, LACKING = (f"{OF_EPISODE}/{name}" for name in ("start_time_ns", "dropped_frames", "dropped"))
TIMES = "timestamp_ns"
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
    """ROS 2 bags, by the paths of `bags.find_bags`.

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
        stamps = tuple(storage.stamp(file) for file in (path, *bag_files(path)))
        return _windows(path, self.mapping, stamps)

    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        windows = self.windows(path)[start:stop]
        with Bag(path) as bag:
            for i, window in enumerate(windows, start):
                try:
                    yield Damage(i, i + 1, window.damage, b"") if window.damage else self._episode(bag, window)
                except (OSError, UsageError, ValueError) as error:
                    yield Damage(i, i + 1, shorten(error, 500), b"")

    def _episode(self, bag: Bag, window: BagWindow) -> Arrays:
        """The arrays of an episode: those of its fields, and what is known about it."""
        wanted = dict.fromkeys([*self.mapping.topics, *(field.topic for field in self.mapping.fields)])
        if missing := [name for name in wanted if name not in bag.topics]:
            raise BadMessage(f"the bag has no topic {', '.join(missing)}")
        kinds = {name: message_type(bag.topics[name]) for name in wanted}
        streams, unstamped = self._streams(bag, window, kinds)
        steps = step_times(self.mapping, {name: stream.times[stream.inside] for name, stream in streams.items()})
        if not len(steps):
            raise BadMessage(f"no message of {self.mapping.reference or 'any mapped topic'}, so it has no steps")
        aligned = [field for field in self.mapping.fields if not field.frame and not field.window]
        times_of_topics = {name: stream.times for name, stream in streams.items()}
        complete, chosen, lacking = align(steps, aligned, times_of_topics)
        if not complete.any():
            reasons = ", ".join(f"{path}: {number:,}" for path, number in lacking.items())
            raise BadMessage(f"none of {len(steps):,} steps is complete; lacking or older than max_age_s: {reasons}")
        times = steps[complete]
        arrays: dict[str, Array] = {TIMES: times}
        for reader in self.readers:
            field, kind = reader.field, kinds[reader.field.topic]
            if field.frame:
                sent = [kind.decode(data) for _, _, data in bag.messages((field.topic,))]
                pose, base = find_pose(field.frame, [one for message in sent for one in message.transforms])
                arrays |= {field.path: pose[None], f"{field.path}_base": np.array([base.encode()], object)}
                continue
            stream = streams[field.topic]
            if field.window:
                messages = [stream.data[i] for i in np.flatnonzero(stream.inside)]
                read = functools.partial(reader.column, messages, kind=kind)
                arrays |= cut_windows(reader.schema, field.window, stream.times[stream.inside], times, read)
                continue
            column = reader.column(stream.data, chosen[field.path][complete], kind)
            if field.path.startswith(f"{OF_EPISODE}/"):
                if (column != column[:1]).any():
                    raise BadMessage(f"{field.path} ({field.topic}) changes within the episode: map it to a step field")
                column = column[:1]
            arrays[field.path] = column
        notes = [f"{path}: {number:,}" for path, number in lacking.items()]
        notes += [f"{name}: {number:,} messages without a stamp" for name, number in unstamped.items() if number]
        arrays[DROPPED] = np.array([np.count_nonzero(~complete)])
        arrays[LACKING] = np.array([", ".join(notes).encode()], object)
        arrays[START] = times[:1].copy()
        return arrays

    def _streams(
        self, bag: Bag, window: BagWindow, kinds: Mapping[str, MessageType]
    ) -> tuple[dict[str, _Stream], dict[str, int]]:
        """The messages of each topic that may count for an episode, and how many in it have no stamp."""
        stamped = {name for name in self.mapping.topics if self.mapping.time == "header" and kinds[name].has_header}
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
            for topic, time, data in bag.messages(topics, first, last):
                stamp = read_stamp(data) if topic in stamped else time
                if stamp is None:
                    unstamped[topic] += window.start <= time < window.stop
                else:
                    found[topic].append((stamp, time, data if topic in wanted else b""))
        streams = {}
        for name, messages in found.items():
            messages.sort(key=lambda message: message[:2])
            times, logs = (np.array([message[i] for message in messages], np.int64) for i in range(2))
            inside = (logs >= window.start) & (logs < window.stop)
            streams[name] = _Stream(times, inside, [message[2] for message in messages])
        return streams, unstamped


@functools.lru_cache(maxsize=256)
def _windows(path: str, mapping: TopicMapping, stamps: object) -> tuple[BagWindow, ...]:
    """The episodes of a bag, in order. Raises OSError if they cannot be told."""
    bounds = mapping.boundaries
    with Bag(path) as bag:
        try:
            if not bounds.topic:
                return (BagWindow(0, EVER),)
            if bounds.gap_s is None:
                return tuple(_between_markers(bag, bounds))
            times = bag.times(bounds.topic)
            breaks = np.flatnonzero(np.diff(times) > round(bounds.gap_s * NS))
            parts = np.split(times, breaks + 1) if len(times) else []
            return tuple(BagWindow(int(part[0]), int(part[-1]) + 1) for part in parts)
        except (BadMessage, UsageError) as error:
            raise OSError(str(error)) from error


def _between_markers(bag: Bag, bounds: Boundaries) -> list[BagWindow]:
    topic = bag.topics.get(bounds.topic)
    if topic is None:
        hint = did_you_mean(bounds.topic, bag.topics, otherwise=f"it has {shorten(', '.join(sorted(bag.topics)))}")
        raise UsageError(f"{bag.path} has no topic {bounds.topic} with the markers of episodes{hint}")
    kind = message_type(topic)
    path, windows = kind.find(bounds.field), []
    begun: int | None = None
    for _, time, data in sorted(bag.messages((topic.name,)), key=lambda message: message[1]):
        found = path.read(kind.decode(data))
        value = found.decode().strip() if isinstance(found, bytes) else str(found).lower()
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


def step_times(mapping: TopicMapping, inside: Mapping[str, Array]) -> Array:
    """The times of an episode's steps, complete or not, int64 nanoseconds, ascending.

    Args:
      inside: the times of the messages in the episode, by topic.

    Raises:
      BadMessage: there would be more than `_MAX_STEPS`.
    """
    if mapping.reference:
        return np.unique(inside[mapping.reference])
    every: Array = np.concatenate([np.zeros(0, np.int64), *inside.values()])
    if not len(every):
        return every
    first, last = int(every.min()), int(every.max())
    thousandths = round(mapping.rate * 1_000_000)
    count = (last - first) * thousandths // 1_000_000_000_000_000 + 1
    if count > _MAX_STEPS:
        raise BadMessage(f"its messages span {(last - first) / NS:,.0f} s: more than {_MAX_STEPS:,} steps")
    whole, rest = np.divmod(np.arange(count, dtype=np.int64) * 1_000_000, thousandths)  # seconds
    times: Array = first + whole * NS + np.round(rest * (NS / thousandths)).astype(np.int64)
    return times


def align(
    steps: Array, fields: Sequence[TopicField], times: Mapping[str, Array]
) -> tuple[Array, dict[str, Array], dict[str, int]]:
    """Chooses for each step the latest message of each field.

    Args:
      steps: the times of the steps, int64 nanoseconds.
      times: by topic, the times of its messages, ascending; of equal ones the last is the latest.

    Returns:
      Whether each step is complete; by the field's path, the index of the message of each step; and by field, for how
      many steps it has no message, or only one that is too old, if there are any.
    """
    complete = np.ones(len(steps), bool)
    chosen: dict[str, Array] = {}
    lacking: dict[str, int] = {}
    for field in fields:
        sent = times[field.topic]
        index = np.searchsorted(sent, steps, side="right") - 1
        fits = index >= 0
        if field.max_age is not None and len(sent):
            fits &= steps - sent[np.maximum(index, 0)] <= field.max_age
        chosen[field.path] = index
        complete &= fits
        if not fits.all():
            lacking[f"{field.path} ({field.topic})"] = int(np.count_nonzero(~fits))
    return complete, chosen, lacking
