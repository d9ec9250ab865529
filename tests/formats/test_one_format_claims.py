"""Exactly one format claims the files of each writer; options of the recognized format need no `--from`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import ros2_bags
from exchanging import export
from hdf5_robots import BUILDERS
from npz_data import d4rl_arrays, ogbench_arrays, write_exorl
from small_datasets import minari_hdf5
from zarr_data import episode_arrays, write_buffer

from rlds_beam.formats.recognition import recognize
from rlds_beam.testing import make_episode, write_dataset

Write = Callable[[Path], Path]
"""Writes a dataset below a directory, and returns its path."""


def _robot(name: str) -> Write:
    def write(directory: Path) -> Path:
        BUILDERS[name](directory, [4, 3])
        return directory

    return write


def _d4rl(directory: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(directory / "hopper.hdf5", "w") as file:
        for name, values in d4rl_arrays().items():
            file[name] = values
    return directory / "hopper.hdf5"


def _npz(directory: Path) -> Path:
    np.savez(directory / "maze.npz", **ogbench_arrays((4, 3)))
    return directory / "maze.npz"


def _exorl(directory: Path) -> Path:
    write_exorl(directory / "buffer")
    return directory / "buffer"


def _minari(directory: Path) -> Path:
    pytest.importorskip("h5py")
    minari_hdf5(directory / "toy-v0")
    return directory / "toy-v0"


def _output(to: str) -> Write:
    """Written by `convert`, without what tells that it was."""

    def write(directory: Path) -> Path:
        data = write_dataset(directory / "data", [make_episode(4, seed=i) for i in range(2)])
        options = {"lerobot": {"fps": 10}}.get(to, {})
        export(data, directory / "out", to, **options)
        (directory / "out" / "plan.json").unlink()
        return next((directory / "out").glob("*.zarr*"), directory / "out")

    return write


def _zarr(name: str) -> Write:
    return lambda directory: write_buffer(directory / name, episode_arrays((4, 3)), (4, 3))


def _bag(storage: str) -> Write:
    def write(directory: Path) -> Path:
        pytest.importorskip("rosbags")
        return ros2_bags.write_bag(directory / "bag", ros2_bags.robot(3), storage)

    return write


WRITERS: dict[str, tuple[str, Write]] = {
    **{f"hdf5-{name}": ("hdf5", _robot(name)) for name in BUILDERS},
    **{f"output-{to}": (to, _output(to)) for to in ("rlds", "lerobot")},
    "output-zarr": ("zarr", _output("zarr")),
    "minari": ("hdf5", _minari),
    "d4rl": ("hdf5", _d4rl),
    "npz-ogbench": ("npz", _npz),
    "npz-exorl": ("npz", _exorl),
    "zarr": ("zarr", _zarr("buffer.zarr")),
    "zarr-zip": ("zarr", _zarr("buffer.zarr.zip")),
    "ros2-mcap": ("ros2", _bag("mcap")),
    "ros2-db3": ("ros2", _bag("sqlite3")),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_one_format_claims_it(tmp_path: Path, writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, write = WRITERS[writer]
    path = write(tmp_path)
    assert recognize(path).format == expected  # and no other: that is an error
    if writer == "minari":  # a dataset of Minari is also found by its data directory
        assert recognize(path / "data").format == "hdf5"
    if path.is_file():
        assert recognize([path, path]).format == expected
    monkeypatch.chdir(path.parent)
    assert recognize(path.name).format == recognize(f"./{path.name}").format == expected
