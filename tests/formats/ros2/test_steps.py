"""Which message counts for a step, against a plain search through the whole bag."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("rosbags")
from ros2_bags import MS, T0, Sent, joints, read, text, write_bag, write_mcap

UNIT = 300 * MS
GAP = 4
TOPICS = ("/ref", "/a", "/b", "/task")


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A message: when it was recorded, the stamp in its header, and its value, which is its number in the bag."""

    topic: str
    log: int
    stamp: int
    value: int

    def time(self, by_stamp: bool) -> int:
        return self.stamp if by_stamp and self.topic != "/task" else self.log  # a text has no header

    def sent(self) -> Sent:
        if self.topic == "/task":
            return text(self.log, str(self.value))
        return joints(self.log, "a", [self.value], self.topic, self.stamp)


@dataclasses.dataclass(frozen=True)
class Case:
    """A bag of several files, and how it is read."""

    files: list[list[Recorded]]
    by_stamp: bool
    rate: bool
    gaps: bool
    ages: dict[str, int | None]

    def mapping(self) -> str:
        content: dict[str, Any] = {"rate": 1e9 / UNIT * 3} if self.rate else {"reference": "/ref"}
        content["time"] = "header" if self.by_stamp else "log"
        if self.gaps:
            content["episodes"] = {"gap_s": GAP * UNIT / 1e9, "topic": "/ref"}
        names = {"/a": "observation/a", "/b": "observation/b", "/task": "language_instruction"}
        content["fields"] = {
            names[topic]: {
                "topic": topic,
                "field": "data" if topic == "/task" else "position",
                "max_age_s": None if age is None else age / 1e9,
            }
            for topic, age in self.ages.items()
        }
        return json.dumps(content)

    def expected(self) -> list[tuple[list[tuple[int, list[int]]], int]]:
        """The steps of each episode, as times and values, and how many are incomplete."""
        messages = [one for file in self.files for one in file]
        logs = sorted(one.log for one in messages if one.topic == "/ref")
        starts = [log for i, log in enumerate(logs) if i == 0 or (self.gaps and log - logs[i - 1] > GAP * UNIT)]
        episodes = []
        for start, following in zip(starts, [*starts[1:], 1 << 62], strict=True):
            stop = max(log for log in logs if start <= log < following)
            mapped = ["/ref", *self.ages]
            inside = [one for one in messages if (start <= one.log <= stop or not self.gaps) and one.topic in mapped]
            steps = []
            for at in self.times(inside):
                values = [self.latest(messages, topic, at, age) for topic, age in self.ages.items()]
                steps.append((at, values))
            complete = [(at, values) for at, values in steps if None not in values]
            episodes.append((complete, len(steps) - len(complete)))
        return episodes

    def times(self, inside: list[Recorded]) -> list[int]:
        if not self.rate:
            return sorted({one.time(self.by_stamp) for one in inside if one.topic == "/ref"})
        times = [one.time(self.by_stamp) for one in inside if one.topic != "/ref"]
        return list(range(min(times), max(times) + 1, UNIT // 3)) if times else []

    def latest(self, messages: list[Recorded], topic: str, at: int, age: int | None) -> int | None:
        best: Recorded | None = None
        for one in messages:
            time = one.time(self.by_stamp)
            if one.topic != topic or time > at:
                continue
            if best is None or (time, one.log) >= (best.time(self.by_stamp), best.log):
                best = one
        if best is None or (age is not None and at - best.time(self.by_stamp) > age):
            return None
        return best.value


@st.composite
def cases(draw: Any) -> Case:
    drawn = draw(
        st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(10, 50), st.integers(-2, 6)), min_size=1, max_size=25)
    )
    if draw(st.booleans()):
        drawn.sort(key=lambda one: one[1])
    messages = [
        Recorded(topic, T0 + log * UNIT, T0 + (log - latency) * UNIT, i)
        for i, (topic, log, latency) in enumerate(drawn)
    ]
    first = [Recorded(topic, T0 + 20 * UNIT, T0 + 20 * UNIT, 100 + i) for i, topic in enumerate(TOPICS)]
    ends = sorted(draw(st.lists(st.integers(0, len(messages)), max_size=2)))
    files = [messages[a:b] for a, b in zip([0, *ends], [*ends, len(messages)], strict=True)]
    files[draw(st.integers(0, len(files) - 1))] += first  # so that each topic has a message
    ages = st.one_of(st.none(), st.integers(0, 12).map(lambda age: age * UNIT))
    fields = draw(st.lists(st.sampled_from(TOPICS[1:]), min_size=1, max_size=3, unique=True))
    return Case(
        files, draw(st.booleans()), draw(st.booleans()), draw(st.booleans()), {name: draw(ages) for name in fields}
    )


def write(directory: Path, case: Case, storage: str) -> Path:
    names = []
    for i, file in enumerate(case.files):
        names.append(f"bag_{i}.{storage}")
        sent = [one.sent() for one in file]
        if storage == "mcap":
            write_mcap(directory / names[-1], sent, chunk_size=(0, 300, 2000)[len(file) % 3])
        else:
            (written,) = write_bag(directory / f"part_{i}", sent, storage).glob(f"*.{storage}")
            written.rename(directory / names[-1])
    about = {"rosbag2_bagfile_information": {"relative_file_paths": names}}
    (directory / "metadata.yaml").write_text(json.dumps(about))
    return directory


def check(case: Case, storage: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        bag = Path(directory) / "bag"
        bag.mkdir()
        episodes = read(write(bag, case, storage), case.mapping())
    expected = case.expected()
    assert len(episodes) == len(expected)
    names = {"/a": "observation/a", "/b": "observation/b", "/task": "language_instruction"}
    for episode, (steps, incomplete) in zip(episodes, expected, strict=True):
        if not steps:
            assert [fault.detail for fault in episode.faults]
            continue
        assert not episode.faults
        columns = [np.ravel(episode.steps[names[topic]]).astype(int).tolist() for topic in case.ages]
        times = np.asarray(episode.steps["timestamp_ns"]).tolist()
        assert [(at, list(values)) for at, *values in zip(times, *columns, strict=True)] == steps
        assert episode.metadata["episode_metadata/dropped_frames"] == incomplete


@settings(max_examples=120, deadline=None)
@given(cases())
def test_every_value_of_every_step(case: Case) -> None:
    check(case, "mcap")


@settings(max_examples=25, deadline=None)
@given(cases())
def test_every_value_of_every_step_in_sqlite(case: Case) -> None:
    check(case, "db3")


def bag_of(*files: list[tuple[str, int, int]], **how: Any) -> Case:
    """A bag of messages (topic, log time, stamp), in units."""
    numbers = iter(range(100))
    recorded = [[Recorded(name, T0 + a * UNIT, T0 + b * UNIT, next(numbers)) for name, a, b in file] for file in files]
    return Case(recorded, **{"by_stamp": True, "rate": False, "gaps": True, "ages": {"/a": None}, **how})


LATE = [("/ref", 10, 9), ("/a", 9, 8), ("/a", 28, 20), ("/ref", 30, 21), ("/a", 31, 23), ("/ref", 32, 24)]


@pytest.mark.parametrize("age", [None, 12])
def test_a_message_from_before_the_episode_counts_by_its_stamp(age: int | None) -> None:
    """It was recorded after the stamp of the episode's first step."""
    check(bag_of(LATE, ages={"/a": age and age * UNIT}), "mcap")


def test_a_message_that_was_recorded_after_the_episode_counts_by_its_stamp() -> None:
    check(bag_of([("/ref", 10, 10), ("/a", 9, 9), ("/ref", 12, 12), ("/a", 15, 11), ("/ref", 30, 30)]), "mcap")


def test_a_message_without_a_header_after_the_stamp_of_the_first_step() -> None:
    sent = [("/task", 5, 0), ("/ref", 10, 10), ("/task", 29, 0), ("/ref", 30, 28)]
    check(bag_of(sent, ages={"/task": None}), "mcap")


@pytest.mark.parametrize("by_stamp", [True, False])
def test_of_equal_times_in_several_files_the_last_file_counts(by_stamp: bool) -> None:
    files = [("/a", 5, 5), ("/ref", 6, 6)], [("/a", 5, 5)], [("/ref", 30, 30)]
    check(bag_of(*map(list, files), by_stamp=by_stamp), "mcap")
