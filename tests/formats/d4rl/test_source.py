"""D4RL's HDF5 files: the profile d4rl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export, read_back


def d4rl(path: Path, *, terminals: list[int], timeouts: list[int] | None, rows: int = 10, **more: Any) -> np.ndarray:
    """Writes a D4RL file with the observations 0, 1, 2, ..., each with two values."""
    h5py = pytest.importorskip("h5py")
    observations = np.arange(rows, dtype=np.float32)[:, None] + np.zeros(2, np.float32)
    place = np.arange(rows)
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"] = observations, np.full((rows, 1), 0.5, np.float32)
        file["rewards"] = place.astype(np.float32)
        file["terminals"] = np.isin(place, terminals)
        if timeouts is not None:
            file["timeouts"] = np.isin(place, timeouts)
        for name, values in more.items():
            file[name.replace("__", "/")] = values
    return observations


def firsts(episodes: list[Any]) -> list[list[float]]:
    return [episode.steps["observation"][:, 0].tolist() for episode in episodes]


def test_d4rl_with_timeouts_and_no_final_observation(tmp_path):
    d4rl(tmp_path / "hopper.hdf5", terminals=[3], timeouts=[7], infos__qpos=np.ones((10, 3)))
    terminal, timeout, rest = read_back(tmp_path / "hopper.hdf5", "hdf5", ranges=2)
    assert firsts([terminal, timeout, rest]) == [[0, 1, 2, 3, 0], [4, 5, 6, 7], [8, 9]]
    assert terminal.steps["is_terminal"].tolist() == [False] * 4 + [True]
    assert terminal.steps["reward"].tolist() == [0, 1, 2, 3, 0]
    assert terminal.steps["discount"].tolist() == [1, 1, 1, 0, 0]
    assert (timeout.steps["is_last"].tolist(), timeout.steps["is_terminal"].any()) == ([False] * 3 + [True], False)
    assert timeout.steps["info/qpos"].shape == (4, 3)
    assert not rest.steps["is_last"].any()  # it never ended: rejected unless repaired
    assert (timeout.key.position, timeout.key.dataset) == (1, "hopper/1.0.0")


def test_d4rl_next_observations_give_the_last_one_and_missing_timeouts(tmp_path):
    after = np.arange(1, 13, dtype=np.float32)[:, None] + np.zeros(2, np.float32)
    after[[3, 7, 11]] = [[30, 30], [70, 70], [110, 110]]  # row 3 is terminal; at 7 a timeout is missing
    d4rl(tmp_path / "x.hdf5", terminals=[3], timeouts=None, rows=12, next_observations=after)
    found = read_back(tmp_path / "x.hdf5", "hdf5")
    assert firsts(found) == [[0, 1, 2, 3, 30], [4, 5, 6, 7, 70], [8, 9, 10, 11, 110]]
    assert [e.steps["is_last"][-1] for e in found] == [True, True, False]
    assert found[1].steps["reward"].tolist() == [4, 5, 6, 7, 0]
    assert [fault for e in found for fault in e.faults] == []


def test_d4rl_flags_of_other_dtypes_and_shapes(tmp_path):
    flags = np.isin(np.arange(10), [4, 9]).astype(np.float32)[:, None]
    d4rl(tmp_path / "x.hdf5", terminals=[], timeouts=None)
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.hdf5", "a") as file:
        del file["terminals"], file["rewards"]
        file["terminals"], file["rewards"] = flags, np.ones((10, 1), np.float32)
    found = read_back(tmp_path / "x.hdf5", "hdf5")
    assert [len(e) for e in found] == [6, 6] and found[0].steps["reward"].shape == (6,)


def test_an_import_keeps_every_bit(tmp_path):
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["observations"], file["actions"], file["rewards"] = rng.random((6, 3)), rng.random((6, 2)), rng.random(6)
        file["terminals"], file["infos/big"] = np.arange(6) == 5, np.arange(6, dtype=np.uint64) + 2**63
    export(tmp_path / "x.hdf5", tmp_path / "rlds", "rlds", from_="hdf5")
    (expected,), (found,) = read_back(tmp_path / "x.hdf5", "hdf5"), read_back(_root(tmp_path / "rlds"), "rlds")
    for path in ("observation", "action", "reward", "info/big"):
        assert found.steps[path].dtype == expected.steps[path].dtype
        assert found.steps[path].tolist() == expected.steps[path].tolist()


def _root(output: Path) -> Path:
    """The dataset's directory in an output."""
    return next((path.parent for path in output.rglob("features.json")), output)


def test_an_episode_of_one_row_that_ends_by_a_timeout(tmp_path):
    """`.npz` files of the same arrays keep it."""
    h5py = pytest.importorskip("h5py")
    d4rl(tmp_path / "x.hdf5", terminals=[2], timeouts=[0], rows=5)
    with h5py.File(tmp_path / "x.hdf5") as file:
        np.savez(tmp_path / "x.npz", **{name: array[()] for name, array in file.items()})
    both = [read_back(tmp_path / f"x.{ending}", source) for ending, source in (("hdf5", "hdf5"), ("npz", "npz"))]
    for episodes in both:
        assert [episode.steps["is_last"].tolist() for episode in episodes] == [
            [True],
            [False, False, True],
            [False] * 2,
        ]
        assert not episodes[0].steps["is_terminal"].any() and episodes[0].steps["is_first"].all()
