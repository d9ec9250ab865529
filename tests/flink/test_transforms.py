"""Public transforms in a user's pipeline on a real Flink cluster: the same bytes as on one machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from beam_runners import new_pipeline
from directories import bytes_of

from rlds_beam import transforms as rb
from rlds_beam.runners.base import RunOptions
from rlds_beam.runners.flink import FlinkRunner
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.writing.rlds import write_rlds

pytestmark = pytest.mark.timeout(900)


def run_on(cluster, build: Callable[[Any], object]) -> None:
    runner = FlinkRunner(RunOptions(**cluster.options()))
    root = runner.create_pipeline()
    try:
        build(root)
        root.run().wait_until_finish()
    finally:
        runner._flink.stop()
    assert cluster.get(f"/jobs/{cluster.jobs()[0]['jid']}")["state"] == "FINISHED"


def test_episodes_become_trajectory_records(cluster, tmp_path) -> None:
    episodes = [make_episode(6, seed=i, breaks=["non_finite"] if i == 3 else []) for i in range(12)]
    data = write_dataset(tmp_path / "in", episodes, shards=3)

    def build(root: Any, output: Path) -> None:
        read = rb.ReadFromRlds(str(data))
        convert = rb.ConvertToTrajectories(read.schema)
        checked = root | read | rb.ValidateEpisodes(duplicates=root | rb.FindDuplicateEpisodes(read.source))
        converted = checked.accepted | convert
        converted.items | rb.WriteToTrajectoryRecords(str(output), convert.spec, num_shards=2)

    with new_pipeline() as root:
        build(root, tmp_path / "here")
    run_on(cluster, lambda root: build(root, tmp_path / "there"))
    here, there = (shards_of(tmp_path / name) for name in ("here", "there"))
    assert len(here) == 2 and here == there


def test_arrays_become_rlds(cluster, tmp_path) -> None:
    def make(number: int) -> tuple[int, dict[str, Any]]:  # here, because workers cannot import this module
        state = np.random.default_rng(number).normal(size=(3 + number % 3, 2))
        return number, {"observation": {"state": state}, "action": state[1:]}

    def build(root: Any) -> None:
        numbers = root | beam.Create([*range(20)][::-1]) | beam.Reshuffle()
        numbers | beam.Map(make) | rb.WriteToRlds(tmp_path / "there" / "numbers" / "1.0.0", like=make(0)[1])

    write_rlds(tmp_path / "here" / "numbers" / "1.0.0", [make(i)[1] for i in range(20)])
    run_on(cluster, build)
    here, there = (shards_of(tmp_path / name / "numbers" / "1.0.0") for name in ("here", "there"))
    assert len(here) == 1 and here == there


def shards_of(output: Path) -> dict[str, bytes]:
    return {name: content for name, content in bytes_of(output).items() if "-of-" in name and name[-1].isdigit()}
