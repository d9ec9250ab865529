"""ReadFromRlds reads every record once, for any split of the shards."""

import dataclasses
import gzip
import threading

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.io.restriction_trackers import OffsetRestrictionTracker
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner, split_manager
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.environments import EmbeddedPythonGrpcEnvironment
from cases import ALL

from rlds_beam.connectors.base import with_attributes
from rlds_beam.encoding.tfrecord.file import TFRecordFormat
from rlds_beam.formats.inputs import open_source
from rlds_beam.reading import reader
from rlds_beam.reading.base import Segment, Split
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import flip_byte, make_episode, record_offsets, shard_paths, write_dataset
from rlds_beam.transforms import FindDuplicateEpisodes, ReadFromRlds, ValidateEpisodes
from rlds_beam.transforms.reading import _ReadEpisodesFn


def describe(episode):
    return (str(episode.key), episode.payload, tuple(v.rule for v in episode.faults))


@pytest.fixture
def pipeline():
    return beam.Pipeline("FnApiRunner", PipelineOptions([]))


@pytest.fixture(params=["sound", "damaged"])
def shard(request, tmp_path):
    """One shard of eight small records of different lengths."""
    path = write_dataset(tmp_path, [make_episode(1 + i % 3, seed=i, observation=1, action=1) for i in range(8)])
    if request.param == "damaged":
        for record, part in ((0, "payload"), (3, "length_crc"), (4, "payload_crc"), (7, "payload")):
            flip_byte(shard_paths(path)[0], record, part)
    source = open_source(str(path))
    return source, source.splits[0].shards[0]


def test_every_split_point_gives_each_record_once(shard):
    source, file = shard
    episodes = EpisodeReader(source)
    whole = [describe(e) for e in episodes.read("train", Segment(file))]
    assert len(whole) == 8
    for cut in range(0, file.size + 1, 1 if ALL else 5):
        halves = [Segment(file, 0, cut), Segment(file, cut, None)]
        assert [describe(e) for half in halves for e in episodes.read("train", half)] == whole, cut


@pytest.mark.parametrize("together", [1, 3, 64])
@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.3, 0.5, 0.77, 0.99])
def test_a_split_while_reading_gives_each_record_once(shard, fraction, together, monkeypatch):
    monkeypatch.setattr(reader, "MAX_RECORDS", together)
    source, file = shard
    read = _ReadEpisodesFn(EpisodeReader(source))
    piece = ("train", Segment(file))
    whole = [describe(e) for e in EpisodeReader(source).read(*piece)]
    for read_before in range(len(whole) + 1):
        tracker = OffsetRestrictionTracker(read.initial_restriction(piece))
        primary = read.process(piece, tracker)
        found = [describe(e) for _, e in zip(range(read_before), primary, strict=False)]
        split = tracker.try_split(fraction)
        found += [describe(e) for e in primary]
        tracker.check_done()
        if split is not None:
            rest = OffsetRestrictionTracker(split[1])
            found += [describe(e) for e in read.process(piece, rest)]
            rest.check_done()
        assert found == whole


@pytest.mark.parametrize("compressed", [False, True])
def test_read_from_rlds(tmp_path, pipeline, compressed):
    path = write_dataset(tmp_path, [make_episode(3, seed=i) for i in range(20)], shards=3)
    if compressed:
        for shard in shard_paths(path):
            shard.write_bytes(gzip.compress(shard.read_bytes()))
    counts = [shard.records for shard in open_source(str(path)).splits[0].shards]
    with pipeline as root:
        episodes = root | ReadFromRlds(str(path))
        assert_that(episodes | "Length" >> beam.Map(len), equal_to([3] * 20), label="lengths")
        shards = episodes | beam.Map(lambda e: e.key.shard) | beam.combiners.Count.PerElement()
        assert_that(shards, equal_to(list(enumerate(counts))), label="shards")


def test_a_runner_splits_a_segment_while_it_is_read(tmp_path, monkeypatch):
    """The split that the runner asks for after the first record; `--direct_test_splits` asks by the clock."""
    path = write_dataset(tmp_path, [make_episode(3, seed=i) for i in range(20)])
    positions = record_offsets(shard_paths(path)[0])[:-1]
    began, split, residuals = threading.Event(), threading.Event(), []
    read_records = TFRecordFormat.read

    def read_and_wait(*args):
        for record in read_records(*args):
            yield record
            began.set()
            split.wait(60)

    def ask(_):
        if split.is_set():
            return
        yield None  # Beam sends the input now
        began.wait(60)
        answer = yield 0.5
        residuals.extend(answer.residual_roots)
        split.set()

    monkeypatch.setattr(TFRecordFormat, "read", read_and_wait)
    monkeypatch.setattr(reader, "MAX_RECORDS", 1)
    runner = FnApiRunner(default_environment=EmbeddedPythonGrpcEnvironment.default())
    with split_manager("ReadFromRlds/Read", ask), beam.Pipeline(runner, PipelineOptions([])) as root:
        read = root | ReadFromRlds(str(path)) | beam.Map(lambda episode: episode.key.position)
        assert_that(read, equal_to(positions))
    assert len(residuals) == 1


def test_find_duplicates_across_shards(tmp_path, pipeline):
    episodes = [make_episode(4, seed=i) for i in range(6)]
    path = write_dataset(tmp_path, [*episodes, episodes[2], episodes[5], episodes[2]], shards=2)
    source = open_source(str(path))
    offsets = [record_offsets(p) for p in shard_paths(path)]
    with pipeline as root:
        found = (
            root
            | FindDuplicateEpisodes(source)
            | beam.FlatMap(
                lambda duplicates: [(k.shard, k.position, v.shard, v.position) for k, v in duplicates.items()]
            )
        )
        place = [(shard, offset) for shard, ends in enumerate(offsets) for offset in ends[:-1]]
        expected = [(*place[6], *place[2]), (*place[7], *place[5]), (*place[8], *place[2])]
        assert_that(found, equal_to(expected))


def test_an_episode_edited_after_it_was_read_is_checked_again(tmp_path, pipeline):
    """Short episodes are read and checked together, but only as they were read."""
    path = write_dataset(tmp_path, [make_episode(3, seed=i) for i in range(5)])
    with pipeline as root:
        read = root | ReadFromRlds(str(path))
        assert_that(read | "Sound" >> beam.Map(lambda episode: episode.sound), equal_to([True] * 5), label="sound")
        checked = read | beam.Map(without_finite_reward) | ValidateEpisodes()
        rules = checked.rejected | beam.Map(lambda rejection: rejection.rule)
        assert_that(rules, equal_to(["non_finite"] * 5), label="rejected")


def without_finite_reward(episode):
    return episode.with_columns({"reward": np.full(len(episode), np.nan, np.float32)})


def test_a_bucket_is_searched_for_duplicates_only_if_asked(tmp_path, caplog):
    caplog.set_level("WARNING")
    source = open_source(str(write_dataset(tmp_path, [make_episode(3)] * 2)))
    (shard,) = source.splits[0].shards
    remote = with_attributes(
        source, splits=(Split("train", (dataclasses.replace(shard, path="s3://b/train.tfrecord"),)),)
    )
    assert FindDuplicateEpisodes(remote)._segments(remote.splits[0]) == []
    assert "split train is in a bucket" in caplog.text
    assert len(FindDuplicateEpisodes(remote, in_buckets=True)._segments(remote.splits[0])) == 1
