"""Plans for skewed input: their description, the order of ranges, and the number of workers."""

from __future__ import annotations

import dataclasses
import gzip
import json

import pytest
from exchanging import export
from hypothesis import given
from hypothesis import strategies as st
from lerobot_data import moving_episode

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.cli.main import main
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.encoding.tfrecord.file import TFRecordFormat
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.rlds.source import RldsSource
from rlds_beam.formats.trajectories.output import TrajectoryOutput
from rlds_beam.jobs import estimates as balance
from rlds_beam.jobs.estimates import (
    compute_balance,
    convert_seconds,
    largest_first,
    push_seconds,
    range_bytes,
    stats_seconds,
    validate_seconds,
)
from rlds_beam.jobs.plan_text import balance_lines
from rlds_beam.output.base import CostHint
from rlds_beam.reading import plan
from rlds_beam.reading.base import Shard, Split
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.runners.local import START_SECONDS, paying_workers
from rlds_beam.testing import make_episode, shard_paths, write_dataset
from rlds_beam.trajectories.converter import WindowItemConversion
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.trajectories.spec import TrajectorySpec

SMALL = 1 << 12


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch):
    """Uses kilobytes instead of megabytes."""
    monkeypatch.setattr(plan, "RANGE_BYTES", SMALL)
    monkeypatch.setattr(balance, "_LARGE", 2 * SMALL)


@pytest.fixture
def skewed(tmp_path):
    """One shard of 20 ranges, and many small ones."""
    directory = write_dataset(
        tmp_path / "data", [make_episode(20, seed=i, observation=16) for i in range(60)], shards=20
    )
    big = write_dataset(tmp_path / "big", [make_episode(20, seed=99 + i, observation=16) for i in range(50)])
    first = shard_paths(directory)[0]
    first.write_bytes(shard_paths(big)[0].read_bytes())
    return directory


def test_a_huge_shard_is_cut_and_tiny_ones_share_a_range(skewed):
    source = open_source(str(skewed))
    ranges = plan_ranges(source)
    found = compute_balance(source, ranges)
    assert found.unsplittable is None
    assert found.total == source.size == sum(range_bytes(source, work) for work in ranges)
    assert found.most <= SMALL + max(shard.size for shard in source.splits[0].shards[1:])
    assert max(len(work.segments) for work in ranges) > 1
    assert sum(shard_paths(skewed)[0].name in s.shard.path for work in ranges for s in work.segments) > 10


def compress(path):
    path.write_bytes(gzip.compress(path.read_bytes(), 1))


def test_a_gzip_shard_is_named_because_it_cannot_be_cut(skewed, tmp_path, capsys):
    huge = shard_paths(skewed)[0]
    compress(huge)
    source = open_source(str(skewed))
    found = compute_balance(source, plan_ranges(source))
    assert found.most >= huge.stat().st_size and str(huge) in found.unsplittable
    assert main(["convert", str(skewed), str(tmp_path / "out"), "--dry_run"]) == 0
    said = capsys.readouterr().out
    assert "of the work, goes to one worker" in said and f"{huge} is gzip-compressed, which cannot be cut" in said
    assert main(["inspect", str(skewed), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranges"] == found.to_json()


def test_a_stream_across_episodes_is_named_because_it_is_kept_whole(skewed, capsys):
    assert main(["inspect", str(skewed), "--items=sequences", "--sequence_length=3", "--across_episodes"]) == 0
    assert f"{shard_paths(skewed)[0]} is read as one stream for --across_episodes" in capsys.readouterr().out


def test_an_even_dataset_needs_no_remark(skewed, tmp_path, capsys):
    assert main(["convert", str(skewed), str(tmp_path / "out"), "--dry_run", "--shards=2"]) == 0
    said = capsys.readouterr().out
    assert "ranges    2 of " in said and "one worker" not in said


def test_large_ranges_are_handed_out_first_and_the_others_in_their_order(skewed):
    for shard in shard_paths(skewed)[0], shard_paths(skewed)[7]:
        compress(shard)
    source = open_source(str(skewed))
    ranges = plan_ranges(source)
    order = largest_first(source, ranges)
    assert sorted(order, key=ranges.index) == list(ranges)
    large = [work for work in order if range_bytes(source, work) >= 2 * SMALL]
    assert order[0] in large and range_bytes(source, order[0]) == max(range_bytes(source, work) for work in ranges)
    rest = [work for work in order if work not in large]
    assert rest == sorted(rest, key=ranges.index)


def test_nothing_to_read_is_balanced(tmp_path):
    source = open_source(str(write_dataset(tmp_path, [], schema=default_schema(make_episode(2)))))
    found = compute_balance(source, plan_ranges(source))
    assert (found.most, found.total, found.unsplittable) == (0, 0, None)
    assert balance_lines(compute_balance(source, [])) == ["ranges    0 of 0 B"]


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 64))
def test_more_work_never_takes_fewer_workers(one, other, cores):
    less, more = sorted((one, other))
    assert paying_workers(less, cores) <= paying_workers(more, cores)
    assert paying_workers(less, cores) in (1, cores)


def test_workers_are_used_only_if_they_save_time():
    assert paying_workers(1e9, 1) == 1
    assert paying_workers(START_SECONDS, 64) == 1  # the job ends before more workers have started
    assert paying_workers(100 * START_SECONDS, 2) == 2


def source_of(size: int, encoding: str = "none", records: int = 1) -> RldsSource:
    episode = make_episode(2)
    schema = default_schema(episode)
    steps = {path: dataclasses.replace(field, encoding=encoding) for path, field in schema.steps.items()}
    shards = (Shard(0, "x", size, records),)
    return RldsSource("x", "", dataclasses.replace(schema, steps=steps), TFRecordFormat(), (Split("train", shards),))


def effort(items: ItemOptions, images: str = "raw") -> CostHint:
    spec = TrajectorySpec((), ())
    return TrajectoryOutput("", "x", WindowItemConversion(FrameOptions(), items, spec, images)).cost_hint


def test_the_cost_depends_on_the_kind_of_job():
    """Expensive work justifies workers sooner; overlapping items are written more than once."""
    state, jpeg = source_of(10**9), source_of(10**9, "jpeg")
    pairs, frames = ItemOptions(), ItemOptions(items="frames")
    long = ItemOptions(items="sequences", sequence_length=64)
    strided = ItemOptions(items="sequences", sequence_length=64, stride_length=64)
    assert (
        validate_seconds(state, CheckOptions())
        < convert_seconds(state, effort(frames))
        < convert_seconds(state, effort(pairs))
    )
    assert convert_seconds(state, effort(pairs)) < convert_seconds(state, effort(long))
    assert convert_seconds(state, effort(strided)) == convert_seconds(state, effort(frames))
    assert convert_seconds(state, effort(pairs)) < convert_seconds(jpeg, effort(pairs))
    assert convert_seconds(jpeg, effort(pairs, "jpeg")) < convert_seconds(jpeg, effort(pairs))
    assert validate_seconds(jpeg, CheckOptions()) < validate_seconds(jpeg, CheckOptions(decode_images=True))
    assert push_seconds(state) > 0
    assert convert_seconds(source_of(2 * 10**9), effort(pairs)) == pytest.approx(
        2 * convert_seconds(state, effort(pairs)), rel=1e-3
    )


def test_many_short_episodes_are_worth_workers():
    """20 MB in 200,000 episodes take a minute, unlike 20 MB of long episodes, which take a fraction of a second."""
    short, long = source_of(20 * 10**6, records=200_000), source_of(20 * 10**6)
    kinds = {
        "validate": lambda source: validate_seconds(source, CheckOptions()),
        "stats": lambda source: stats_seconds(source, CheckOptions()),
        "push": push_seconds,
        "pairs": lambda source: convert_seconds(source, effort(ItemOptions())),
        "copies": lambda source: convert_seconds(source, CostHint(decodes_images=False)),
    }
    for name, seconds in kinds.items():
        assert paying_workers(seconds(long), 2) == 1, name
        assert paying_workers(seconds(short), 2) == 2, name
    half = dataclasses.replace(short, splits=(dataclasses.replace(short.splits[0], stop=100_000),))
    assert kinds["pairs"](half) == pytest.approx(kinds["pairs"](short) / 2, rel=1e-3)


def test_videos_are_worth_workers(tmp_path):
    pytest.importorskip("av")
    jpeg = source_of(50 * 10**6, "jpeg")
    copied, encoded = (CostHint(decodes_images=video, encodes_videos=video) for video in (False, True))
    assert paying_workers(convert_seconds(jpeg, copied), 2) == 1
    assert paying_workers(convert_seconds(jpeg, encoded), 2) == 2
    data = write_dataset(tmp_path / "data", [moving_episode(3 + i) for i in range(3)])
    export(data, tmp_path / "copied", "lerobot", fps=10)
    export(data, tmp_path / "videos", "lerobot", fps=10, images="video")
    assert open_source(str(tmp_path / "copied"), from_="lerobot").decode_seconds() == 0
    whole, third = (open_source(str(tmp_path / "videos"), split=s, from_="lerobot") for s in (None, "train[:1]"))
    assert whole.decode_seconds() > 0 and whole.decode_seconds() == pytest.approx(4 * third.decode_seconds())
