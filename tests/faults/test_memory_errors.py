"""Memory that runs out, wherever it does, is one line of the command and an RldsBeamError in Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import complaints
from large_data import large_shard, peak_mb
from own_formats import options
from processes import run

import rlds_beam
from rlds_beam.errors import RldsBeamError
from rlds_beam.formats.rlds.source import RldsSource
from rlds_beam.testing import make_episode, shard_paths, write_dataset

OWN = "--from=own_formats:GreedySource"
COMMANDS: tuple[Sequence[str], ...] = (
    ("inspect",),
    ("check", "--rules"),
    ("check", "--rules", "--workers=2"),
    ("check",),
    ("stats",),
    ("report", "--output=OUT.html"),
    ("convert", "OUT"),
    ("convert", "OUT", "--workers=2"),
    ("convert", "OUT", "--to=rlds", "--workers=2"),
)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", [make_episode(5, seed=i) for i in range(6)], shards=2)


@pytest.mark.parametrize("where", ["open", "decode"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_memory_runs_out(dataset: Path, tmp_path: Path, command: Sequence[str], where: str) -> None:
    name, *rest = (part.replace("OUT", str(tmp_path / "out")) for part in command)
    code, out, err = run([name, dataset, *rest, OWN], **options(GREEDY=where))
    (said,) = complaints(err)
    assert code == 1 and said.startswith("rlds-beam: there is not enough memory (Unable to allocate 1.00 EiB"), err
    assert "Traceback" not in out


@pytest.mark.parametrize("function", [rlds_beam.inspect, rlds_beam.check, rlds_beam.stats])
def test_memory_runs_out_in_python(dataset: Path, monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    def decode(*_: object) -> None:
        np.empty(1 << 57)

    monkeypatch.setattr(type(RldsSource.open(str(dataset)).decoder), "decode", decode)
    monkeypatch.setattr(type(RldsSource.open(str(dataset)).decoder), "decode_all", decode, raising=False)
    with pytest.raises(RldsBeamError, match=r"there is not enough memory \(Unable to allocate 1\.00 EiB"):
        function(dataset)


EPISODES, STEPS = 800, 100
"""Episodes of the small dataset (8 MB). The large one has ten times as many."""

FORMATS = {
    "numpy": (["--to=numpy"], None),
    "zarr": (["--to=zarr"], "zarr"),
    "scope_rl": (["--to=scope_rl"], None),
    "lerobot": (["--to=lerobot", "--fps=10"], "lerobot"),
    "lerobot, one file": (["--to=lerobot", "--fps=10", "--shards=1"], "lerobot"),
    "lerobot 2.1": (["--to=lerobot", "--fps=10", "--lerobot_version=2.1"], "lerobot"),
    "array_record": (["--to=rlds", "--format=array_record"], "rlds"),
    "columns": (["--to=columns", "--format=array_record"], None),
    "parquet": (["--to=columns", "--format=parquet"], None),
}
"""The flags of an output, and the name of the source that reads it back."""

PER_EPISODE = {"lerobot 2.1": 12_000}
"""Bytes that a source holds per episode: LeRobot 2.1 has two files and three JSON lines for each."""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    columns = {"propensity": np.full(STEPS, 0.5), "action": np.arange(STEPS) % 3}
    return [
        large_shard(tmp_path_factory.mktemp("data"), make_episode(STEPS, observation=24, columns=columns), count)
        for count in (EPISODES, 10 * EPISODES)
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FORMATS)
def test_ten_times_the_data(tmp_path: Path, datasets: list[Path], name: str) -> None:
    flags, source = FORMATS[name]
    connectors = ["AddObservationsFromEpisodesToBatch", "AddColumnsFromEpisodesToTrainBatch"]
    (tmp_path / "columns.json").write_text(json.dumps(connectors))
    if "--to=columns" in flags:
        flags = [*flags, f"--connectors={tmp_path / 'columns.json'}"]
    common = ["--accept=duplicate_episode", "--progress=none"]
    written, read = [], []
    for i, data in enumerate(datasets):
        written.append(peak_mb(data, tmp_path / f"out{i}", *flags, *common))
        if source is not None:
            read.append(peak_mb(tmp_path / f"out{i}", tmp_path / f"rlds{i}", f"--from={source}", "--to=rlds", *common))
    small, large = (shard_paths(data)[0].stat().st_size for data in datasets)
    for peaks, more in ((written, 0), (read, PER_EPISODE.get(name, 0) * 9 * EPISODES)):
        grown = (max(peaks, default=0) - min(peaks, default=0)) << 20
        assert grown < (large - small) * 3 / 4 + more, peaks
