"""A small dataset for each source, and the arguments that name it."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import envlogger_data
import hdf5_robots
import npz_data
import numpy as np
import pytest
import ros2_bags
import zarr_data
from exchanging import export, rich_episode
from lerobot_data import images, robot_episode

from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.testing import make_episode, shard_paths, write_dataset

Make = Callable[[Path], object]


@dataclasses.dataclass(frozen=True)
class SmallDataset:
    """A dataset that tests write, damage, and convert.

    Attributes:
      make: writes the dataset into a directory.
      arguments: the command-line arguments that name the dataset; `{}` is the directory.
    """

    make: Make
    arguments: str

    def argv(self, directory: Path | str) -> list[str]:
        return [argument.replace("{}", str(directory)) for argument in self.arguments.split()]


def _random(*shape: int) -> Any:
    """Float32 values that differ from each other, so that mixed-up rows are found."""
    return np.random.default_rng(np.prod(shape)).normal(size=shape).astype(np.float32)


def _plain(directory: Path, episodes: int = 4) -> Path:
    made = [make_episode(5 + i, seed=i, observation={"state": 3, "x": 2}) for i in range(episodes)]
    return write_dataset(directory, made, shards=2)


def _images(directory: Path) -> None:
    write_dataset(directory, [rich_episode(4 + i, i, terminal=bool(i % 2)) for i in range(3)], shards=2)


def _gzip(directory: Path) -> None:
    _plain(directory)
    for path in shard_paths(directory / "testing" / "1.0.0"):
        path.write_bytes(gzip.compress(path.read_bytes()))


def _array_record(directory: Path) -> None:
    pytest.importorskip("array_record")
    export(_plain(directory.with_name(f"{directory.name}-data")), directory, "rlds", format="array_record")


def _merged(directory: Path) -> None:
    for name in "ab":
        _plain(directory / name)


def _lerobot(foreign: bool = False, moving: bool = False, **options: object) -> Make:
    def make(directory: Path) -> None:
        made = [_moving(3 + i) if moving else robot_episode(3 + i, 8) for i in range(3)]
        if foreign:  # LeRobot marks depth in another way
            for episode in made:
                episode.steps.pop("observation/depth", None)
        data = write_dataset(directory.with_name(f"{directory.name}-data"), made)
        export(data, directory, "lerobot", fps=10, **options)
        for name in ("README.md", "report.json"):
            (directory / name).unlink(missing_ok=True)
        if foreign:
            (directory / "meta" / "rlds_beam.json").unlink()

    return make


def _moving(steps: int) -> Any:
    episode = make_episode(steps, seed=steps, observation={"state": 3})
    pixels = np.full((steps, 64, 64, 3), 60, np.uint8)
    for t in range(steps):
        pixels[t, :, 8 * t : 8 * t + 8] = 230
    return episode.replace(steps={**episode.steps, "observation/image": images(encode_jpeg(pixels), (64, 64, 3))})


def _d4rl(directory: Path) -> None:
    h5py = pytest.importorskip("h5py")
    directory.mkdir(parents=True)
    with h5py.File(directory / "x.hdf5", "w") as file:
        file["observations"], file["actions"] = _random(20, 4), _random(20, 2)
        file["next_observations"] = np.roll(_random(20, 4), -1, 0)
        file["infos/qpos"], file["rewards"] = _random(20, 3), _random(20)
        file["terminals"], file["timeouts"] = np.arange(20) % 5 == 4, np.arange(20) == 12


def _npz(arrays: dict[str, Any], compressed: bool = False) -> Make:
    def make(directory: Path) -> None:
        directory.mkdir(parents=True)
        (np.savez_compressed if compressed else np.savez)(directory / "x.npz", **arrays)

    return make


def _with_profile(directory: Path) -> None:
    """Files with a profile of the user's."""
    hdf5_robots.aloha(directory / "data", [4, 3])
    (directory / "profile.yaml").write_text(
        "name: mine\nepisodes: file\nfields:\n  observation/state: observations/qpos\n"
        "  observation/image_*: observations/images/*\n  action: action\nmetadata: {sim: '@sim'}\nfps: 50\n"
    )


def minari_hdf5(directory: Path) -> None:
    """Writes an HDF5 dataset as Minari does."""
    import h5py

    (directory / "data").mkdir(parents=True)
    box = {"type": "Box", "dtype": "float32", "shape": [2], "low": [0, 0], "high": [1, 1]}
    spaces = {"type": "Dict", "subspaces": {"state": box, "pair": {"type": "Tuple", "subspaces": [box, box]}}}
    about = {
        "total_episodes": 2,
        "total_steps": 6,
        "data_format": "hdf5",
        "dataset_id": "a-v0",
        "observation_space": json.dumps(spaces),
        "jpeg_encoding": True,
        "action_space": json.dumps({"type": "Discrete", "n": 3, "start": 0}),
    }
    (directory / "data" / "metadata.json").write_text(json.dumps(about))
    with h5py.File(directory / "data" / "main_data.hdf5", "w") as file:
        for i in range(2):
            group = file.create_group(f"episode_{i}")
            group.attrs["id"], group.attrs["total_steps"], group.attrs["seed"] = i, 3, 1
            group["observations/state"] = _random(4, 2) + np.float32(i)
            group["observations/pair/_index_0"] = _random(4, 2)
            group["observations/pair/_index_1"] = _random(4, 2)
            group["actions"], group["rewards"] = np.arange(3), _random(3).astype(float)
            group["terminations"], group["truncations"] = np.arange(3) == 2, np.zeros(3, bool)
            group["infos/text"] = [b"a", b"b", b"c", b"d"]


def _zarr(name: str) -> Make:
    def make(directory: Path) -> None:
        directory.mkdir(parents=True)
        zarr_data.write_buffer(directory / name, zarr_data.episode_arrays((4, 3)), (4, 3))
        if name.endswith(".zip"):  # what it was made of
            shutil.rmtree(directory / name.removesuffix(".zip"))

    return make


def _bag(storage: str = "mcap") -> Make:
    def make(directory: Path) -> None:
        pytest.importorskip("rosbags")
        directory.mkdir(parents=True)
        ros2_bags.write_bag(directory / "bag", ros2_bags.robot(3), storage)
        (directory / "topics.yaml").write_text(ros2_bags.MAPPING)

    return make


_TESTING, _ROS = "{}/testing/1.0.0", "{}/bag --from=ros2 --topics={}/topics.yaml"
_MERGED = "{}/a/testing/1.0.0,{}/b/testing/1.0.0"
_FROM = {name: f"{{}} --from={name}" for name in ("lerobot", "npz", "hdf5", "zarr")}

DATASETS = {
    "rlds": SmallDataset(_plain, _TESTING),
    "rlds_images": SmallDataset(_images, _TESTING),
    "rlds_gzip": SmallDataset(_gzip, _TESTING),
    "rlds_array_record": SmallDataset(_array_record, "{}"),
    "merged": SmallDataset(_merged, f"{_MERGED} --from=merged"),
    "lerobot": SmallDataset(_lerobot(), _FROM["lerobot"]),
    "lerobot_foreign": SmallDataset(_lerobot(foreign=True), _FROM["lerobot"]),
    "lerobot_v21": SmallDataset(_lerobot(lerobot_version="2.1"), _FROM["lerobot"]),
    "lerobot_v21_foreign": SmallDataset(_lerobot(foreign=True, lerobot_version="2.1"), _FROM["lerobot"]),
    "lerobot_video": SmallDataset(_lerobot(foreign=True, moving=True, images="video", vcodec="h264"), _FROM["lerobot"]),
    "d4rl": SmallDataset(_d4rl, _FROM["hdf5"]),
    "minari": SmallDataset(minari_hdf5, _FROM["hdf5"]),
    "npz": SmallDataset(npz_data.write_exorl, _FROM["npz"]),
    "npz_ogbench": SmallDataset(_npz(npz_data.ogbench_arrays((4, 5, 3))), _FROM["npz"]),
    "npz_d4rl": SmallDataset(_npz(npz_data.d4rl_arrays(), compressed=True), _FROM["npz"]),
    **{
        f"hdf5_{name}": SmallDataset(lambda directory, write=write: write(directory, [4, 3]), _FROM["hdf5"])
        for name, write in hdf5_robots.BUILDERS.items()
    },
    "hdf5_profile": SmallDataset(_with_profile, "{}/data --from=hdf5 --profile={}/profile.yaml"),
    "zarr": SmallDataset(_zarr("x.zarr"), _FROM["zarr"]),
    "zarr_zip": SmallDataset(_zarr("x.zarr.zip"), _FROM["zarr"]),
    "envlogger": SmallDataset(lambda directory: envlogger_data.write_log(directory, 6), "{} --from=envlogger"),
    "ros2": SmallDataset(_bag(), _ROS),
    "ros2_sqlite": SmallDataset(_bag("sqlite3"), _ROS),
}
"""By name: a format, then what is special about the dataset."""
