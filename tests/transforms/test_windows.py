"""Windowed and streaming input: transforms over episodes work by window; sinks say that they need the global window."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from beam_runners import new_pipeline

import rlds_beam
from rlds_beam import transforms as rb
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.cli.commands.example import ExampleConfig, example
from rlds_beam.connectors import MinimumLength
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source
from rlds_beam.testing import make_episode
from rlds_beam.trajectories.frames import to_frames
from rlds_beam.trajectories.items import ItemMaker
from rlds_beam.trajectories.options import FrameOptions, ItemOptions

EPISODES = [make_episode(n, seed=n) for n in (3, 5, 8, 13)]
SCHEMA = default_schema(EPISODES[0])
BAD = EPISODES[0].replace(steps={**EPISODES[0].steps, "is_last": EPISODES[0].steps["is_first"]})
TIMES = (0, 1, 61, 62)
"""Seconds: two episodes in each minute."""


def by_minute(root: beam.Pipeline, episodes: list[Episode]) -> Any:
    stamped = [TimestampedValue(episode, time) for episode, time in zip(episodes, TIMES, strict=True)]
    return root | beam.Create(stamped) | beam.Map(lambda value: value) | beam.WindowInto(FixedWindows(60))


def test_each_window_has_a_report() -> None:
    with new_pipeline() as root:
        checked = by_minute(root, [*EPISODES[:3], BAD]) | rb.ValidateEpisodes()
        counts = checked.report | beam.Map(lambda report: (report.records, report.rejected, report.steps))
        assert_that(counts, equal_to([(2, 0, 8), (2, 1, 8)]))


def test_each_window_has_statistics() -> None:
    with new_pipeline() as root:
        computed = by_minute(root, EPISODES) | rb.ComputeStatistics()
        counts = computed | beam.Map(lambda statistics: (statistics.whole.episodes, statistics.whole.transitions))
        assert_that(counts, equal_to([(2, 6), (2, 19)]))


def test_a_stream_is_checked_connected_and_converted() -> None:
    stream = test_stream.TestStream()  # which FnApiRunner lacks
    for episode, time in zip([*EPISODES[:3], BAD], TIMES, strict=True):
        stream = stream.advance_watermark_to(time).add_elements([TimestampedValue(episode, time)])
    root: Any = TestPipeline(options=PipelineOptions(["--runner=BundleBasedDirectRunner", "--streaming"]))
    connect = rb.ConnectEpisodes([MinimumLength(4)], SCHEMA)
    with root:
        episodes = root | stream.advance_watermark_to_infinity() | beam.WindowInto(FixedWindows(60))
        checked = episodes | beam.Map(lambda episode: episode).with_output_types(Episode) | rb.ValidateEpisodes()
        converted = (checked.accepted | connect).episodes | rb.ConvertToTrajectories(connect.schema)
        assert_that(converted.items | beam.Map(len), equal_to([4, 7]), label="pairs of each episode")
        assert_that(checked.rejected | beam.Map(lambda rejection: rejection.key), equal_to([BAD.key]), label="rejected")
        reports = checked.report | beam.Map(lambda report: report.records)
        assert_that(reports, equal_to([2, 2]), label="reports")


LIKE = {"steps": [{"observation": 0.0, "action": 1.0, "is_first": True, "is_last": True}]}
CONVERT = rb.ConvertToTrajectories(SCHEMA)
ITEMS = ItemMaker(ItemOptions()).push(to_frames(EPISODES[0], FrameOptions()))
SINKS: dict[str, tuple[Callable[[str], beam.PTransform[Any, Any]], Any]] = {
    "WriteToTrajectoryRecords": (lambda out: rb.WriteToTrajectoryRecords(out, CONVERT.spec), ITEMS),
    "WriteEpisodes": (lambda out: rb.WriteEpisodes(out, open_example(out), to="columns"), EPISODES[0]),
    "WriteToRlds": (lambda out: rb.WriteToRlds(out, LIKE), ("key", LIKE)),
    "WriteRejected": (
        lambda out: rb.WriteRejected(out),
        Rejection.from_bad_episode(BAD, BadEpisode(Violation("non_finite", "nan"))),
    ),
    "WriteReport": (lambda out: rb.WriteReport(out), Report()),
}


def open_example(out: str) -> Source:
    example(ExampleConfig(out + "-data", episodes=2))
    return rlds_beam.open_source(out + "-data/point_mass/1.0.0")


@pytest.mark.parametrize("name", SINKS)
def test_sinks_need_the_global_window(name: str, tmp_path: Path) -> None:
    new, element = SINKS[name]
    windowed = new_pipeline() | beam.Create([element]) | beam.WindowInto(FixedWindows(60))
    with pytest.raises(UsageError, match=f"{name} writes one dataset, so it needs the global window"):
        windowed | new(str(tmp_path / "out"))
