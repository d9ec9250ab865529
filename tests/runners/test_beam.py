"""What a Beam runner gets: the graph of a job, and the files beside it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from rlds_beam.errors import UsageError
from rlds_beam.jobs.convert import prepare
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.output.files import COMMITS, JOB
from rlds_beam.pipelines.check import CheckConfig, check
from rlds_beam.pipelines.convert import ConvertConfig, convert
from rlds_beam.runners.base import RunOptions
from rlds_beam.runners.beam import BeamRunner
from rlds_beam.testing import make_episode, write_dataset

ANY_RUNNER = "apache_beam.runners.portability.fn_api_runner:FnApiRunner"
"""A runner that rlds-beam does not know: its workers may be anywhere."""


class Measuring(FnApiRunner):
    """Measures a graph instead of running it."""

    sizes: ClassVar[list[int]] = []

    def run_pipeline(self, pipeline: Any, options: Any) -> Any:
        del options
        self.sizes.append(len(pipeline.to_runner_api().SerializeToString()))
        raise NotImplementedError("it was measured")


def test_a_graph_does_not_grow_with_shards(tmp_path: Path) -> None:
    for count in (3000, 6000):
        path = write_dataset(tmp_path / str(count), [make_episode(1)] * count, shards=count)
        output = str(tmp_path / f"out-{count}")
        job = prepare(ConvertOptions.create(str(path), output, accept=("duplicate_episode",)))
        job.make_ready()
        runner = BeamRunner(RunOptions(runner=f"{__name__}:Measuring"))
        with pytest.raises(Exception, match="it was measured"):
            runner.run(job.stages(pending=job.ranges), output)
    small, large = Measuring.sizes
    assert abs(large - small) < 1000


def test_a_job_without_an_output_needs_a_directory_that_workers_share(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data", [make_episode(1)] * 3000, shards=3000)
    config = CheckConfig.create(str(path), rules=True, runner=ANY_RUNNER, accept=("duplicate_episode",))
    with pytest.raises(UsageError, match=r"has no output, .* with --temp_location=DIR"):
        check(config)
    place = tmp_path / "shared"
    report = check(dataclasses.replace(config, temp_location=str(place))).report
    assert report.records == 3000 and list(place.iterdir()) == []


def test_workers_elsewhere_hand_over_the_result_through_the_output(tmp_path: Path) -> None:
    path = write_dataset(tmp_path, [make_episode(3, seed=i) for i in range(4)], shards=2)
    output = tmp_path / "out"
    convert(ConvertConfig.create(str(path), str(output), runner=ANY_RUNNER))
    assert json.loads((output / "report.json").read_text())["records"] == 4
    commits = ["train-00000-of-00001.json"]
    assert [file.name for file in (output / COMMITS).iterdir()] == commits
    (output / JOB).mkdir()  # as a command leaves it that was killed while its job ran to its end
    convert(ConvertConfig.create(str(path), str(output)))
    assert [file.name for file in (output / COMMITS).iterdir()] == commits
