"""Counts, shapes and types in each source's metadata are compared with its files before allocating."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from exchanging import read_back
from small_datasets import DATASETS
from zarr_data import episode_arrays, write_buffer

from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source


def made(tmp_path: Path, name: str) -> Path:
    DATASETS[name].make(tmp_path / name)
    return tmp_path / name


def refused(path: Path, from_: str) -> str:
    with pytest.raises(UsageError) as error:
        open_source(str(path), from_=from_)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("change", ["field", "features", "list"])
def test_lerobot_own_file(tmp_path: Path, change: str) -> None:
    path = made(tmp_path, "lerobot") / "meta" / "rlds_beam.json"
    content = json.loads(path.read_text())
    if change == "field":
        next(iter(content["features"].values()))["fields"][0]["dtype"] = []
    content = {"field": content, "features": {**content, "features": 5}, "list": [content]}[change]
    path.write_text(json.dumps(content))
    assert "rlds_beam.json is damaged" in refused(path.parents[1], "lerobot")


def test_lerobot_episodes_that_are_there_twice(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    path = made(tmp_path, "lerobot")
    (file, *_) = sorted(path.glob("data/*/*.parquet"))
    table = parquet.read_table(file)
    parquet.write_table(pa.concat_tables([table, table]), file)
    details = [fault.detail for one in read_back(path, "lerobot") for fault in one.faults]
    assert len(details) == 3 and all("are in several places" in detail for detail in details)


def test_lerobot_data_without_a_column(tmp_path: Path) -> None:
    from pyarrow import parquet

    path = made(tmp_path, "lerobot")
    (file, *_) = sorted(path.glob("data/*/*.parquet"))
    parquet.write_table(parquet.read_table(file).drop_columns(["episode_index"]), file)
    assert {fault.rule for one in read_back(path, "lerobot") for fault in one.faults} >= {"corrupt_record"}


@pytest.mark.parametrize("ending", [".zarr", ".zarr.zip"])
def test_lost_chunks_of_zarr(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A chunk that is missing is read as the fill value, as zarr does; `check` and its report say how many are."""
    path = write_buffer(tmp_path / "buffer.zarr", episode_arrays((20, 15)), (20, 15))
    (path / "data/action/1.0").unlink()
    if ending == ".zarr.zip":
        shutil.make_archive(str(tmp_path / "packed"), "zip", path)
        path = (tmp_path / "packed.zip").rename(tmp_path / f"packed{ending}")
    report = tmp_path / "report.json"
    for command in (["check", "--rules", f"--report={report}"], ["check", f"--output={tmp_path / 'table.parquet'}"]):
        assert main([command[0], str(path), *command[1:]]) == 0
        assert "note      data/action lacks 1 of 5 chunks (read as 0.0" in capsys.readouterr().out
    assert any("data/action lacks 1 of 5 chunks" in note for note in json.loads(report.read_text())["notes"])
