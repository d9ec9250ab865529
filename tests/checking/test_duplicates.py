"""Many equal records cost as much as many different ones."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pytest

from rlds_beam.checking.duplicates import find_duplicates
from rlds_beam.encoding.tfrecord.rows import frame
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.formats.inputs import open_source
from rlds_beam.output.plans import differences
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.testing import make_episode, record_offsets, shard_paths, write_dataset

EQUAL = 1500


@pytest.fixture
def equal(tmp_path: Path) -> Path:
    """A dataset of equal episodes, in two shards."""
    source = write_dataset(tmp_path / "data", [make_episode(2), make_episode(2)], shards=2)
    for shard in shard_paths(source):
        shard.write_bytes(shard.read_bytes() * (EQUAL // 2))
    return source


@pytest.fixture
def compared(monkeypatch) -> Counter[str]:
    """Counts comparisons of episode keys."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        compare = getattr(EpisodeKey, name)

        def counting(key: EpisodeKey, other: EpisodeKey) -> bool:
            counted[name] += 1
            return compare(key, other)

        monkeypatch.setattr(EpisodeKey, name, counting)

    for name in ("__lt__", "__gt__", "__le__", "__ge__", "__eq__"):
        count(name)
    return counted


def test_equal_records_take_linear_time(equal, compared, validate):
    code, report, _ = validate(equal, "--workers=1")
    assert code == 3
    assert report["rules"]["duplicate_episode"]["rejected"] == EQUAL - 1
    assert sum(compared.values()) < 20 * EQUAL


def test_each_duplicate_repeats_the_first_copy(equal):
    source = open_source(str(equal))
    framing = Framing(source)
    segments = [(work.split, segment) for work in plan_ranges(source) for segment in work.segments]
    found = find_duplicates(source, framing, segments)
    places = [(shard, at) for shard, path in enumerate(shard_paths(equal)) for at in record_offsets(path)[:-1]]
    first = EpisodeKey(source.dataset, "train", 0, 0)
    keys = [EpisodeKey(source.dataset, "train", *place) for place in places]
    assert dict(found) == dict.fromkeys(keys[1:], first)
    again = pickle.loads(pickle.dumps(found))
    assert dict(again) == dict(found) and len(pickle.dumps(found)) < 60 * EQUAL
    for other in (first, EpisodeKey(source.dataset, "test", 0, places[1][1]), EpisodeKey("a/1", "train", 1, 0)):
        assert other not in found
    assert EpisodeKey(source.dataset, "train", 0, places[1][1] + 1) not in found


def test_empty_records_are_cheap(tmp_path, validate):
    """An empty record takes 16 bytes in a file, so a small file can hold very many."""
    source = write_dataset(tmp_path / "data", [make_episode(2)], shards=1)
    (shard,) = shard_paths(source)
    shard.write_bytes(frame(b"") * EQUAL)
    code, report, _ = validate(source, "--workers=1")
    assert code == 3 and report["rules"]["not_an_example"]["rejected"] == EQUAL
    assert report["rules"]["duplicate_episode"]["rejected"] == EQUAL - 1


def test_changed_files_are_found_in_linear_time():
    """Entries that count how often they are compared."""
    compared = 0

    class Entry(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    count = 1000
    old = [[Entry(f"file-{i}"), f"old {i}"] for i in range(count)]
    new = [[Entry(f"file-{i}"), f"new {i}" if i % 2 else f"old {i}"] for i in range(count)]
    (line,) = differences({"content": {"train": old}}, {"content": {"train": new}})
    assert "the input has changed" in line and "file-1" in line
    assert compared < 20 * count
