"""Ten times the data takes no more memory, for each output and each source that reads it back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from large_data import large_shard, peak_mb

from rlds_beam.testing import make_episode, shard_paths

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

IN_MEMORY = {"scope_rl": 2.5, "lerobot": 1, "lerobot, one file": 1.5, "lerobot 2.1": 1}
"""The bytes that an output holds for each byte of the input: a pickle is written from memory, and LeRobot's statistics
are exact up to 128 MB of values a field."""
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
    held = int((large - small) * IN_MEMORY.get(name, 0))
    for peaks, more in ((written, held), (read, PER_EPISODE.get(name, 0) * 9 * EPISODES)):
        grown = (max(peaks, default=0) - min(peaks, default=0)) << 20
        assert grown < (large - small) * 3 / 4 + more, peaks
