"""Minari's HDF5 datasets: the profile minari. Minari itself writes them in tests/peers/exchange."""

from __future__ import annotations

import pytest
from exchanging import plain, read_back
from small_datasets import minari_hdf5

from rlds_beam.formats.inputs import open_source


def test_episodes(tmp_path):
    pytest.importorskip("h5py")
    minari_hdf5(tmp_path / "made")
    first, second = read_back(tmp_path / "made", "hdf5", ranges=2)
    assert (first.faults, second.faults, first.key.position, second.key.position) == ((), (), 0, 1)
    assert first.steps["observation/pair/1"].shape == (4, 2)
    assert plain(second.steps["info/text"]) == [b"a", b"b", b"c", b"d"]
    assert first.steps["action"].tolist() == [0, 1, 2, 0]
    assert first.steps["is_terminal"].tolist() == first.steps["is_last"].tolist() == [False] * 3 + [True]
    assert [len(episode) for episode in read_back(tmp_path / "made" / "data", "hdf5")] == [4, 4]
    assert open_source(str(tmp_path / "made"), from_="hdf5").name == "a-v0"
