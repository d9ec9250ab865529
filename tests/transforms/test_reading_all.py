"""ReadAllFromRlds reads the datasets whose paths are in a PCollection, also in a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io import fileio
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.test_stream import TestStream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import FixedWindows
from beam_runners import RUNS, new_pipeline

from rlds_beam.testing import make_episode, shard_paths, write_dataset
from rlds_beam.transforms import ReadAllFromRlds, ValidateEpisodes


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two datasets of three and two episodes in two shards."""
    folder = tmp_path_factory.mktemp("data")
    return [
        write_dataset(folder / name, [make_episode(n, seed=n) for n in lengths], shards=2)
        for name, lengths in (("a", (3, 5, 8)), ("b", (4, 9)))
    ]


@pytest.mark.parametrize("runner", RUNS)
def test_all_episodes_of_all_datasets(datasets: list[Path], runner: str) -> None:
    with new_pipeline(runner) as root:
        read = ReadAllFromRlds(str(datasets[0]))
        checked = root | beam.Create([str(path) for path in datasets]) | read | ValidateEpisodes()
        assert_that(checked.accepted | beam.Map(len), equal_to([3, 5, 8, 4, 9]))
    assert "action" in read.schema.steps


def test_shard_files_that_a_match_finds(datasets: list[Path]) -> None:
    (first, *_) = shard_paths(datasets[0])
    with new_pipeline() as root:
        found = root | fileio.MatchFiles(f"{datasets[0]}/*tfrecord*")
        assert_that(found | ReadAllFromRlds(str(first)) | beam.Map(len), equal_to([3, 5, 8]))


def test_a_stream_of_paths(datasets: list[Path]) -> None:
    stream: Any = TestStream()
    for time, path in enumerate(datasets):
        stream = stream.advance_watermark_to(time).add_elements([str(path)])
    root: Any = TestPipeline(options=PipelineOptions(["--runner=BundleBasedDirectRunner", "--streaming"]))
    with root:
        paths = root | stream.advance_watermark_to_infinity() | beam.WindowInto(FixedWindows(60))
        assert_that(paths | ReadAllFromRlds(str(datasets[0])) | beam.Map(len), equal_to([3, 5, 8, 4, 9]))


def test_a_dataset_with_other_fields_is_an_error(datasets: list[Path], tmp_path: Path) -> None:
    other = write_dataset(tmp_path, [make_episode(3, action=7)])
    root = new_pipeline()
    root | beam.Create([str(other)]) | ReadAllFromRlds(str(datasets[0]))
    with pytest.raises(Exception, match=r"its field action is .*7.* but in the dataset given as `like` it is"):
        root.run()
