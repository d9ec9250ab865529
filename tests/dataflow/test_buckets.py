"""Bucket outputs of jobs on this machine, which Google's client writes to a store on loopback (`cloud.py`)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("google.cloud.storage")

from cloud import Cloud, content, serving

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, write_dataset

pytestmark = pytest.mark.timeout(300)

CONNECTORS = """
- AddObservationsFromEpisodesToBatch
- AddColumnsFromEpisodesToTrainBatch
- AddTimeDimToBatchAndZeroPad: {max_seq_len: 5}
- BatchIndividualItems
"""
OUTPUTS = {
    "columns in TFRecord": ["--to=columns", "--format=tfrecord"],
    "columns in Parquet": ["--to=columns", "--format=parquet"],
    "rlds": ["--to=rlds"],
}


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    def no_jobs(job: str, home: Path) -> subprocess.CompletedProcess[str]:
        raise AssertionError(f"{job} was submitted")

    with serving(no_jobs, tmp_path) as served:
        for name, value in served.environment.items():
            monkeypatch.setenv(name, value)
        yield served


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_bytes_equal_a_local_output(cloud: Cloud, tmp_path: Path, name: str) -> None:
    # Every shard has the same number of steps. A file in a bucket is not cut, so a local copy has the same ranges.
    episodes = [make_episode(12, seed=i, breaks=["missing_is_last"] if i == 3 else []) for i in range(8)]
    source = write_dataset(tmp_path / "data", episodes, name="toy", shards=2)
    (tmp_path / "learner.yaml").write_text(CONNECTORS)
    options = [*OUTPUTS[name], "--shards=2", "--max_rejected=1", "--workers=1"]
    if "--to=columns" in options:
        options.append(f"--connectors={tmp_path / 'learner.yaml'}")
    there = cloud.upload(source, "bucket/toy/1.0.0")
    for run in range(2):  # the second has nothing to do
        assert main(["convert", there, "gs://bucket/out", *options]) == 0, run
    assert main(["convert", str(source), str(tmp_path / "local"), *options]) == 0
    remote, local = content(cloud.download("bucket/out", tmp_path / "remote")), content(tmp_path / "local")
    for files in (remote, local):  # it contains the input's fingerprint, which differs in a bucket
        files.pop("provenance.json", None)
    assert remote == local
    rows = rlds_beam.open_dataset("gs://bucket/out")
    assert len(rows) == len(rlds_beam.open_dataset(str(tmp_path / "local"))) > 0
    assert rows[len(rows) - 1]


def test_array_record_files_are_written_on_this_machine(cloud: Cloud, tmp_path: Path, capsys) -> None:
    """The ArrayRecord library opens only local paths."""
    there = cloud.upload(write_dataset(tmp_path / "data", [make_episode(5)], name="toy"), "bucket/toy/1.0.0")
    assert main(["convert", there, "gs://bucket/out", "--to=columns", "--format=array_record"]) == 2
    said = capsys.readouterr().err
    assert "ArrayRecord" in said and "gs://bucket/out" in said
    assert not [name for name in cloud.objects if name.startswith("bucket/out")]
