"""Records whose data contains TFRecords: the inner ones are never read as episodes, wherever ranges are split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from apache_beam.io.restriction_trackers import OffsetRestrictionTracker

from rlds_beam.cli.commands.inspect import InspectConfig
from rlds_beam.encoding.tfds.rlds_dataset import encode_example
from rlds_beam.encoding.tfrecord.framing import frame_all
from rlds_beam.episodes.episode import Episode
from rlds_beam.formats.inputs import open_source
from rlds_beam.jobs.inspect import survey
from rlds_beam.reading import plan
from rlds_beam.reading.base import Segment
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import make_episode, record_offsets, shard_paths, write_dataset
from rlds_beam.transforms.reading import _ReadEpisodesFn

EPISODES, STEPS, INSIDE = 7, 5, 20


def phantom(seed: int) -> bytes:
    """Valid TFRecords of valid episodes, to put into a text field."""
    payloads = [encode_example(episode(1000 * seed + i, b"")) for i in range(INSIDE)]
    return frame_all(payloads)


def episode(seed: int, note: bytes) -> Episode:
    return make_episode(STEPS, seed=seed, metadata={"episode_metadata/note": note})


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", [episode(i, phantom(i)) for i in range(EPISODES)])


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "RANGE_BYTES", 1 << 10)


def goals(items: list[dict[str, Any]]) -> list[bytes]:
    return [item["observation"].tobytes() for item in items]


@pytest.mark.parametrize("accept", ["", "duplicate_episode"])
@pytest.mark.parametrize("shards", [2, 9, 50])
def test_convert_writes_only_the_outer_episodes(tmp_path, hostile, convert, shards, accept):
    flags = [f"--accept={accept}"] if accept else []
    whole = convert(hostile, "--shards=1", *flags, output=tmp_path / "whole")
    ran = convert(hostile, f"--shards={shards}", *flags)
    assert (whole.code, ran.code) == (0, 0), ran.err
    assert ran.report["records"] == ran.report["valid"] == EPISODES
    assert len(json.loads((ran.output / "manifest.json").read_text())["shards"]) == shards
    assert goals(ran.items) == goals(whole.items)


def test_ranges_of_the_planner(hostile, small_ranges, convert, check_rules):
    assert convert(hostile).report["records"] == EPISODES
    code, report, _ = check_rules(hostile)
    assert (code, report["records"]) == (0, EPISODES)
    found = survey(
        open_source(str(hostile)), InspectConfig.create(str(hostile), to="trajectories", sample_bytes=1 << 30)
    )
    assert found.complete and found.sampled.records == EPISODES
    ranges = plan_ranges(open_source(str(hostile)))
    begins = [segment.start for work in ranges for segment in work.segments]
    assert begins == record_offsets(shard_paths(hostile)[0])[:-1]  # one record per range


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.3, 0.5, 0.77])
def test_a_runner_may_split_while_reading(hostile, fraction):
    source = open_source(str(hostile))
    piece = ("train", Segment(source.splits[0].shards[0]))
    read = _ReadEpisodesFn(EpisodeReader(source))
    offsets = record_offsets(piece[1].shard.path)[:-1]
    for before in range(EPISODES + 1):
        tracker = OffsetRestrictionTracker(read.initial_restriction(piece))
        primary = read.process(piece, tracker)
        found = [e.key.position for _, e in zip(range(before), primary, strict=False)]
        split = tracker.try_split(fraction)
        found += [e.key.position for e in primary]
        if split is not None:
            found += [e.key.position for e in read.process(piece, OffsetRestrictionTracker(split[1]))]
        assert found == offsets
