"""Metadata that counts other episodes than there are: `validate`, `inspect`, and conversions say so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fuzzed_datasets import DATASETS, minari_hdf5
from zarr_data import episode_arrays, write_buffer

from rlds_beam.cli.main import main
from rlds_beam.formats.sources import open_source


@pytest.mark.parametrize(("said", "there"), [(5, 2), (1, 2), ("two", 2)])
def test_total_episodes_of_minari(said: object, there: int, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    minari_hdf5(tmp_path / "made")
    assert open_source(str(tmp_path / "made")).notes == ()
    path = tmp_path / "made/data/metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "total_episodes": said}))
    (note,) = open_source(str(tmp_path / "made")).notes
    assert note.endswith(f"metadata.json: total_episodes is {said}, but there are {there}")


def test_num_episodes_of_d3rlpy(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    DATASETS["d3rlpy"].make(tmp_path / "made")
    assert open_source(str(tmp_path / "made")).notes == ()
    with h5py.File(tmp_path / "made/x.h5", "a") as file:
        file["num_episodes"][()] = 1
    (note,) = open_source(str(tmp_path / "made")).notes
    assert note.endswith("x.h5: num_episodes is 1, but there are arrays of 1 more")


@pytest.mark.parametrize("ending", [".zarr", ".zarr.zip"])
def test_lost_chunks_of_zarr(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A chunk that is missing is read as the fill value, as zarr does; `validate` and its report say how many are."""
    path = write_buffer(tmp_path / "buffer.zarr", episode_arrays((20, 15)), (20, 15))
    (path / "data/action/1.0").unlink()
    if ending == ".zarr.zip":
        shutil.make_archive(str(tmp_path / "packed"), "zip", path)
        path = (tmp_path / "packed.zip").rename(tmp_path / f"packed{ending}")
    report = tmp_path / "report.json"
    for command in (["validate", f"--report={report}"], ["check", f"--output={tmp_path / 'table.parquet'}"]):
        assert main([command[0], str(path), *command[1:]]) == 0
        assert "note      data/action lacks 1 of 5 chunks (read as 0.0" in capsys.readouterr().out
    assert any("data/action lacks 1 of 5 chunks" in note for note in json.loads(report.read_text())["notes"])
