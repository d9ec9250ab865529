"""Every job on a buffer of UMI: images and poses, without actions; and how buffers are found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from exchanging import export, read_back
from memory_store import MemoryStore, memory_store
from zarr_data import episode_arrays, write_buffer

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.recognition import recognize

LENGTHS = (5, 1, 12, 9)
STATES = ("robot0_eef_pos", "robot0_eef_rot_axis_angle", "robot0_gripper_width")


@pytest.fixture(scope="module")
def umi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = episode_arrays(LENGTHS)
    arrays = {"camera0_rgb": made["img"]}
    arrays |= dict(
        zip(
            STATES,
            (made["state"][:, :3], made["keypoint"][:, 0].repeat(2, 1)[:, :3], made["state"][:, :1]),
            strict=True,
        )
    )
    return write_buffer(tmp_path_factory.mktemp("umi") / "cup.zarr.zip", arrays, LENGTHS)


@pytest.fixture(scope="module")
def actions(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The flag that adds actions."""
    path = tmp_path_factory.mktemp("connectors") / "umi.json"
    fields = [f"observation/{name}" for name in STATES]
    path.write_text(json.dumps([{"NextStateAsAction": {"fields": fields}}]))
    return f"--connectors={path}"


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("trajectories", "a trajectory needs action"),
        ("columns", "the steps have no field action"),
    ],
)
def test_outputs_that_need_actions(
    umi: Path, actions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], to: str, message: str
) -> None:
    convert = ["convert", str(umi), str(tmp_path / "out"), f"--to={to}", "--dry_run", "--workers=1"]
    assert main(convert) == 2
    err = capsys.readouterr().err
    assert message in err and "NextStateAsAction" in err and err.count("\n") == 1
    assert main([*convert, actions]) == 0


def test_where_buffers_are_found(tmp_path: Path) -> None:
    for path in ("one/x.zarr", "zip/x.zarr.zip", "deep/a/x.zarr", "two/x.zarr", "two/y.zarr"):
        write_buffer(tmp_path / path, episode_arrays(LENGTHS), LENGTHS)
    shutil.rmtree(tmp_path / "zip" / "x.zarr")
    export(tmp_path / "one", tmp_path / "own", "zarr")
    shutil.copytree(tmp_path / "own", tmp_path / "copy")
    (tmp_path / "copy" / "plan.json").unlink()
    for path, why in {
        "one": "meta/episode_ends in x.zarr",
        "zip": "a .zarr.zip file in x.zarr.zip",
        "deep": "meta/episode_ends in a/x.zarr",
        "own": "plan.json of rlds-beam convert",
        "copy": "a .zarr.zip file in train.zarr.zip",
    }.items():
        assert str(recognize(tmp_path / path)) == f"zarr ({why})"
        assert rlds_beam.check(tmp_path / path, rules=True).report.records == 4
    with pytest.raises(UsageError, match="contains 2 datasets"):
        recognize(tmp_path / "two")


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with memory_store() as made:
        yield made


@pytest.mark.parametrize("name", ["x.zarr", "x.zarr.zip"])
def test_a_buffer_in_a_bucket(tmp_path: Path, store: MemoryStore, name: str) -> None:
    path = write_buffer(tmp_path / name, episode_arrays(LENGTHS), LENGTHS)
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file():
            store.files[f"{store.root}/in/{file.relative_to(tmp_path)}"] = file.read_bytes()
    far = f"{store.root}/in/{name}"
    assert recognize(far).format == recognize(f"{store.root}/in").format == "zarr"
    for one, other in zip(read_back(path, "zarr"), read_back(far, "zarr"), strict=True):
        assert not other.faults and one.payload == other.payload


def test_images_of_floats_stay_arrays(tmp_path: Path) -> None:
    arrays = episode_arrays(LENGTHS)
    arrays["img"] = arrays["img"].astype(np.float32)
    path = write_buffer(tmp_path / "x.zarr", arrays, LENGTHS)
    source = open_source(str(path), from_="zarr")
    assert "data/img holds images of float32 (read as an array)" in source.describe()
    assert source.schema.steps["observation/img"].encoding != "png"
