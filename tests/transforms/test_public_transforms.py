"""Each public transform: several bundles, an empty input, an element of another type, a bad episode, and a retry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.coders import registry
from apache_beam.testing.util import assert_that, equal_to
from beam_runners import RUNS, new_pipeline

from rlds_beam import CheckOptions
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.connectors import Batch, MinimumLength, Normalize
from rlds_beam.encoding.metadata import decode
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Segment, Shard, WorkRange
from rlds_beam.testing import make_episode, read_rejected
from rlds_beam.transforms import ComputeStatistics, ConnectEpisodes, ValidateEpisodes, WriteRejected, WriteReport

GOOD = [make_episode(n, seed=n) for n in (3, 5, 8)]
BAD = make_episode(4, seed=9, breaks=["non_finite"])
SCHEMA = default_schema(GOOD[0])


def key(episode: Any) -> str:
    return str(episode.key)


class TestValidateEpisodes:
    @pytest.mark.parametrize("runner", RUNS)
    def test_bundles(self, runner: str) -> None:
        with new_pipeline(runner) as root:
            checked = root | beam.Create([*GOOD, BAD]) | beam.Reshuffle() | ValidateEpisodes()
            assert_that(checked.accepted | "A" >> beam.Map(key), equal_to([*map(key, GOOD)]), label="accepted")
            assert_that(checked.rejected | "R" >> beam.Map(key), equal_to([key(BAD)]), label="rejected")
            counts = checked.report | beam.Map(lambda report: (report.records, report.valid, report.rejected))
            assert_that(counts, equal_to([(4, 3, 1)]), label="report")

    def test_a_rule_of_fail_ends_the_pipeline(self) -> None:
        root = new_pipeline()
        root | beam.Create([BAD]) | ValidateEpisodes(CheckOptions(fail=("non_finite",)))
        with pytest.raises(Exception, match="non_finite"):
            root.run()


def halve(batch: Batch) -> Batch:
    halves = [half for e in batch.episodes for half in (e.slice(0, len(e) // 2), e.slice(len(e) // 2, len(e)))]
    return batch.replace(episodes=tuple(halves))


def refuse_long(batch: Batch) -> Batch:
    if len(batch.episodes[0]) > 6 and not batch.episodes[0].key.of_probe:
        raise BadEpisode(Violation("undecodable_image", "damaged"))
    return batch


class TestConnectEpisodes:
    @pytest.mark.parametrize("runner", RUNS)
    def test_bundles(self, runner: str) -> None:
        with new_pipeline(runner) as root:
            episodes = root | beam.Create(GOOD) | beam.Reshuffle()
            connected = episodes | ConnectEpisodes([MinimumLength(4), halve], SCHEMA)
            assert_that(connected.episodes | beam.Map(len), equal_to([2, 3, 4, 4]))
            assert_that(connected.rejected, equal_to([]), label="rejected")

    def test_an_episode_that_a_connector_cannot_process_is_rejected_with_its_record(self) -> None:
        with new_pipeline() as root:
            episodes = [episode.replace(payload=b"record") for episode in GOOD]
            connected = root | beam.Create(episodes) | ConnectEpisodes([refuse_long], SCHEMA)
            assert_that(connected.episodes | beam.Map(len), equal_to([3, 5]))
            rejected = connected.rejected | beam.Map(lambda rejection: (key(rejection), rejection.payload))
            assert_that(rejected, equal_to([(key(GOOD[2]), b"record")]), label="rejected")

    def test_the_schema_is_that_of_the_returned_episodes(self) -> None:
        def add_speed(batch: Batch) -> Batch:
            added = (e.with_columns({"speed": np.zeros(len(e), np.float32)}) for e in batch.episodes)
            return batch.replace(episodes=tuple(added))

        assert ConnectEpisodes([add_speed], SCHEMA).schema.steps["speed"].dtype == "float32"
        assert ConnectEpisodes([], SCHEMA).schema == SCHEMA
        with pytest.raises(UsageError, match=r"knows only the schema of the episodes: pass ReadFromRlds\(...\).source"):
            _ = ConnectEpisodes([], SCHEMA).source

    def test_a_connector_that_needs_the_whole_dataset_is_refused(self) -> None:
        with pytest.raises(UsageError, match="needs the whole dataset"):
            ConnectEpisodes([Normalize(["action"])], SCHEMA)


class TestComputeStatistics:
    @pytest.mark.parametrize("runner", RUNS)
    def test_bundles(self, runner: str) -> None:
        with new_pipeline(runner) as root:
            statistics = root | beam.Create(GOOD) | beam.Reshuffle() | ComputeStatistics()
            assert_that(statistics | beam.Map(counts), equal_to([(3, 13)]))


def counts(statistics: Any) -> tuple[int, int]:
    return statistics.whole.episodes, statistics.whole.transitions


class TestWriteRejected:
    @pytest.mark.parametrize("runner", RUNS)
    def test_bundles(self, tmp_path: Path, runner: str) -> None:
        violations = (Violation("non_finite", "nan"),)
        rejections = [
            Rejection(EpisodeKey("d/1", "train", 0, i), "non_finite", violations, b"%d" % i) for i in range(5)
        ]
        with new_pipeline(runner) as root:
            root | beam.Create(rejections) | beam.Reshuffle() | WriteRejected(str(tmp_path))
        written = [(line["key"], payload) for line, payload in read_rejected(tmp_path)]
        assert written == [(str(rejection.key), rejection.payload) for rejection in rejections]  # in their order

    def test_an_empty_input_is_an_empty_list(self, tmp_path: Path) -> None:
        with new_pipeline() as root:
            files = root | beam.Create([]) | WriteRejected(str(tmp_path))
            assert_that(files, equal_to([[]]))


@pytest.mark.parametrize("runner", RUNS)
def test_write_report(tmp_path: Path, runner: str) -> None:
    with new_pipeline(runner) as root:
        report = (root | beam.Create([*GOOD, BAD]) | ValidateEpisodes()).report | WriteReport(str(tmp_path / "r.json"))
        assert_that(report | beam.Map(lambda report: report.records), equal_to([4]))
    assert decode(str(tmp_path / "r.json"), Report).rejected == 1


def test_work_ranges_have_the_same_bytes_in_every_process() -> None:
    coder, shards = registry.get_coder(WorkRange), (Shard(0, "a", 10, 2), Shard(1, "b", 1 << 40, None))
    work = WorkRange("train", 1, 3, (Segment(shards[0], 4), Segment(shards[1], 0, 7)))
    assert coder.is_deterministic() and coder.decode(coder.encode(work)) == work


def test_keys_can_be_grouped_on_any_worker() -> None:
    coder = registry.get_coder(EpisodeKey)
    keys = [EpisodeKey("d:e/1.0.0", "train", 3, 1 << 40, part) for part in (0, 2)]
    assert coder.is_deterministic() and [coder.decode(coder.encode(one)) for one in keys] == keys
    with new_pipeline() as root:
        pairs = (
            root
            | beam.Create([*keys, *keys])
            | beam.Map(lambda one: (one, 1)).with_output_types(tuple[EpisodeKey, int])
        )
        assert_that(pairs | beam.CombinePerKey(sum), equal_to([(one, 2) for one in keys]))
