"""Minari's HDF5 datasets; Minari itself writes them in tests/peers/exchange."""

from __future__ import annotations

import json

import pytest
from exchanging import plain, read_back
from small_datasets import minari_hdf5

from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source


@pytest.fixture
def toy(tmp_path):
    pytest.importorskip("h5py")
    minari_hdf5(tmp_path / "toy-v0")
    return tmp_path / "toy-v0"


def change(toy, **entries):
    path = toy / "data" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    return path


def test_episodes(toy):
    first, second = read_back(toy, "minari", ranges=2)
    assert (first.faults, second.faults, first.key.position, second.key.position) == ((), (), 0, 1)
    assert first.steps["observation/pair/1"].shape == (4, 2)
    assert plain(second.steps["info/text"]) == [b"a", b"b", b"c", b"d"]
    assert first.steps["action"].tolist() == [0, 1, 2, 0]
    assert first.steps["is_terminal"].tolist() == first.steps["is_last"].tolist() == [False] * 3 + [True]
    assert [len(episode) for episode in read_back(toy / "data", "minari")] == [4, 4]


@pytest.mark.parametrize("total", [1, 3])
def test_another_number_of_episodes_than_the_metadata_count_is_noted(toy, total):
    assert not open_source(str(toy), from_="minari").notes
    path = change(toy, total_episodes=total)
    assert open_source(str(toy), from_="minari").notes == (f"{path}: total_episodes is {total}, but there are 2",)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_other_files_are_refused(toy, kind):
    change(toy, data_format=kind)
    with pytest.raises(UsageError, match=f"its data is stored as {kind}, but --from=minari reads HDF5"):
        open_source(str(toy), from_="minari")
