"""The same episode in two datasets of different formats, merged: the signals that compare motion find it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export
from motions import ACTION, STATE, arm

import rlds_beam
from rlds_beam.testing import write_dataset

EPISODES = [arm(seed) for seed in range(12)]
SHARED = (2, 3, 5)
"""The episodes that both datasets have."""

OTHERS = [EPISODES[i] for i in SHARED] + [arm(seed) for seed in range(50, 53)]


def write_hdf5(directory: Path, episodes: list[Any]) -> None:
    """Writes the episodes as robomimic does, in float64."""
    h5py = pytest.importorskip("h5py")
    directory.mkdir()
    with h5py.File(directory / "demos.hdf5", "w") as root:
        data = root.create_group("data")
        data.attrs["total"] = sum(map(len, episodes))
        data.attrs["env_args"] = "{}"
        for i, episode in enumerate(episodes):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"] = len(episode)
            demo["actions"] = np.asarray(episode.steps[ACTION], np.float64)
            demo["obs/state"] = np.asarray(episode.steps[STATE], np.float64)
            demo["rewards"], demo["dones"] = np.zeros(len(episode)), np.arange(len(episode)) == len(episode) - 1


@pytest.mark.parametrize("to", ["hdf5", "zarr"])
def test_a_copy_in_another_format_is_a_near_duplicate(tmp_path: Path, to: str) -> None:
    first = write_dataset(tmp_path / "first", EPISODES, name="first", shards=2)
    if to == "hdf5":
        write_hdf5(tmp_path / to, OTHERS)
    else:
        export(
            write_dataset(tmp_path, OTHERS, name="other"), tmp_path / to, to, **({"fps": 10} if to == "lerobot" else {})
        )
    outcome = rlds_beam.check([str(first), str(tmp_path / to)], merge_fields="common", decode=0, workers=1)
    rows = outcome.table.to_pylist()
    assert [row["near_duplicate"] for row in rows if row["near_duplicate"]] == [1] * 6
    assert sum(row["shard"] < 2 for row in rows if row["near_duplicate"]) == len(SHARED)
