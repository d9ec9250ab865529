"""A small dataset for each source, and its metadata files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import hdf5_robots
import npz_data
import numpy as np
import pytest
import ros2_bags
import zarr_data
from exchanging import export, rich_episode
from lerobot_data import robot_episode

from rlds_beam.testing import make_episode, write_dataset


@dataclasses.dataclass(frozen=True)
class Target:
    """Files to damage.

    Attributes:
      pattern: a glob below the dataset.
      kind: `json`, `jsonl`, `text`, `bytes`, `hdf5`, `parquet`, `arrow`, `npy`.
    """

    pattern: str
    kind: str


@dataclasses.dataclass(frozen=True)
class Fuzzed:
    """A dataset to damage.

    Attributes:
      make: writes the dataset into a directory.
      targets: the metadata files.
      arguments: the command-line arguments that name the dataset.
    """

    make: Callable[[Path], object]
    targets: tuple[Target, ...]
    arguments: Callable[[str], list[str]]


def _plain(directory: Path, episodes: int = 4) -> Path:
    made = [make_episode(5 + i, seed=i, observation={"state": 3, "x": 2}) for i in range(episodes)]
    path = write_dataset(directory, made, shards=2)
    (path / "LICENSE").write_text("Free.\n")
    (path / "language.labels.txt").write_text("pick\nplace\n")
    (path / "provenance.json").write_text(json.dumps({"input": {"dataset": "a"}, "plan": [1, {"b": None}]}))
    return path


def _rlds(directory: Path) -> None:
    write_dataset(directory, [rich_episode(4 + i, i, terminal=bool(i % 2)) for i in range(3)], shards=2)
    _plain(directory / "more")


def _merged(directory: Path) -> None:
    for name in "ab":
        _plain(directory / name)


def _exported(to: str, **options: object) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        data = _plain(directory.parent / f"{directory.name}-data")
        export(data, directory, to, **options)

    return make


def _lerobot(**options: object) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        data = write_dataset(directory.parent / f"{directory.name}-data", [robot_episode(3 + i) for i in range(3)])
        export(data, directory, "lerobot", fps=10, **options)

    return make


def _foreign_lerobot(**options: object) -> Callable[[Path], None]:
    def make(directory: Path) -> None:
        _lerobot(**options)(directory)
        (directory / "meta" / "rlds_beam.json").unlink()

    return make


def _d4rl(directory: Path) -> None:
    import h5py

    directory.mkdir(parents=True)
    with h5py.File(directory / "x.hdf5", "w") as file:
        file["observations"], file["actions"] = np.ones((20, 4), np.float32), np.ones((20, 2), np.float32)
        file["next_observations"], file["infos/qpos"] = np.ones((20, 4), np.float32), np.ones((20, 2))
        file["rewards"], file["terminals"] = np.ones(20, np.float32), np.arange(20) % 5 == 4
        file["timeouts"] = np.arange(20) == 12


def _d3rlpy(directory: Path) -> None:
    import h5py

    directory.mkdir(parents=True)
    with h5py.File(directory / "x.h5", "w") as file:
        file["num_episodes"], file["version"] = 2, "2.1"
        for i in range(2):
            file[f"observations_{i}"], file[f"actions_{i}"] = np.ones((4, 3), np.float32), np.ones((4, 1), np.int32)
            file[f"rewards_{i}"], file[f"terminated_{i}"] = np.ones((4, 1), np.float32), bool(i)


def minari_hdf5(directory: Path) -> None:
    """Writes an HDF5 dataset as Minari does."""
    import h5py

    (directory / "data").mkdir(parents=True)
    box = {"type": "Box", "dtype": "float32", "shape": [2], "low": [0, 0], "high": [1, 1]}
    spaces = {"type": "Dict", "subspaces": {"state": box, "pair": {"type": "Tuple", "subspaces": [box, box]}}}
    about = {"total_episodes": 2, "total_steps": 6, "data_format": "hdf5", "dataset_id": "a-v0",
             "observation_space": json.dumps(spaces), "jpeg_encoding": True,
             "action_space": json.dumps({"type": "Discrete", "n": 3, "start": 0})}  # fmt: skip
    (directory / "data" / "metadata.json").write_text(json.dumps(about))
    with h5py.File(directory / "data" / "main_data.hdf5", "w") as file:
        for i in range(2):
            group = file.create_group(f"episode_{i}")
            group.attrs["id"], group.attrs["total_steps"], group.attrs["seed"] = i, 3, 1
            group["observations/state"] = np.ones((4, 2), np.float32)
            group["observations/pair/_index_0"] = np.ones((4, 2), np.float32)
            group["observations/pair/_index_1"] = np.ones((4, 2), np.float32)
            group["actions"], group["rewards"] = np.arange(3), np.ones(3)
            group["terminations"], group["truncations"] = np.arange(3) == 2, np.zeros(3, bool)
            group["infos/text"] = [b"a", b"b", b"c", b"d"]


def minari_directory(data: Path, kind: str) -> None:
    """Writes two episodes in Minari's layout: the last row of actions, rewards and flags is padding."""
    import pyarrow as pa
    from pyarrow import parquet

    box = {"type": "Box", "dtype": "float32", "shape": [1, 2], "low": [[0, 0]], "high": [[1, 1]]}
    spaces = {
        "type": "Dict",
        "subspaces": {"state": box, "pair": {"type": "Tuple", "subspaces": [box, {"type": "Text"}]}},
    }
    data.mkdir(parents=True)
    (data / "metadata.json").write_text(
        json.dumps(
            {
                "total_episodes": 2, "data_format": kind, "dataset_id": "arrow-v0", "jpeg_encoding": True,
                "observation_space": json.dumps(spaces), "action_space": json.dumps({"type": "Discrete", "n": 3}),
            }
        )
    )  # fmt: skip
    for i, steps in enumerate((4, 3)):
        flat = pa.array(np.arange(2 * steps, dtype=np.float32) + 10 * i)
        numbers = pa.FixedSizeListArray.from_arrays(flat, 2)
        pair = pa.StructArray.from_arrays([numbers, pa.array(["a", "b", "c", "d"][:steps])], names=["0", "1"])
        end = [step == steps - 2 for step in range(steps)]
        table = pa.table({
            "episode_id": np.full(steps, i, np.int32),
            "observations": pa.StructArray.from_arrays([pair, numbers], names=["pair", "state"]),
            "actions": np.arange(steps), "rewards": np.arange(steps) / 2.0,
            "terminations": end if i else [False] * steps, "truncations": [False] * steps if i else end,
        })  # fmt: skip
        (data / str(i)).mkdir()
        file = str(data / str(i) / f"part-0.{kind}")
        if kind == "parquet":
            parquet.write_table(table, file)
        else:
            with pa.OSFile(file, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)


def _minari_directory(kind: str) -> Callable[[Path], None]:
    return lambda directory: minari_directory(directory / "data", kind)


def _exorl(directory: Path) -> None:
    npz_data.write_exorl(directory)


def _aloha(directory: Path) -> None:
    hdf5_robots.aloha(directory, [4, 3])


def _zarr(directory: Path) -> None:
    zarr_data.write_buffer(directory / "buffer.zarr", zarr_data.episode_arrays((4, 3)), (4, 3))


def _bag(directory: Path) -> None:
    pytest.importorskip("rosbags")
    directory.mkdir(parents=True)
    ros2_bags.write_bag(directory / "bag", ros2_bags.robot(3))
    (directory / "topics.yaml").write_text(ros2_bags.MAPPING)


def _named(source: str, below: str = "") -> Callable[[str], list[str]]:
    return lambda where: [f"{where}{below}", f"--from={source}"]


_TFDS = tuple(
    Target(f"**/{name}", kind)
    for name, kind in (
        ("features.json", "json"), ("features.json", "json"), ("dataset_info.json", "json"),
        ("provenance.json", "json"), ("LICENSE", "text"), ("language.labels.txt", "text"),
    )
)  # fmt: skip
_OURS = (Target("manifest.json", "json"), Target("manifest.json", "json"), Target("plan.json", "json"))
_META = (Target("meta/info.json", "json"), Target("meta/info.json", "json"), Target("meta/rlds_beam.json", "json"))
_V3 = tuple(Target(f"meta/{name}", "parquet") for name in ("tasks.parquet", "episodes/*/*.parquet"))
_V21 = tuple(Target(f"meta/{name}.jsonl", "jsonl") for name in ("tasks", "episodes"))
_DATA = (Target("data/*/*.parquet", "parquet"),)
_MINARI = Target("data/metadata.json", "json")

DATASETS = {
    "rlds": Fuzzed(lambda d: _plain(d), _TFDS, lambda where: [f"{where}/testing/1.0.0"]),
    "rlds_images": Fuzzed(_rlds, (Target("testing/**/*.json", "json"),), lambda where: [f"{where}/testing/1.0.0"]),
    "merged": Fuzzed(
        _merged, _TFDS, lambda where: [f"{where}/a/testing/1.0.0,{where}/b/testing/1.0.0", "--from=merged"]
    ),
    "lerobot": Fuzzed(_lerobot(), (*_META, *_V3, *_DATA), _named("lerobot")),
    "lerobot_foreign": Fuzzed(_foreign_lerobot(), (_META[0], *_V3, *_DATA), _named("lerobot")),
    "lerobot_v21": Fuzzed(_lerobot(lerobot_version="2.1"), (*_META, *_V21, *_DATA), _named("lerobot")),
    "lerobot_v21_foreign": Fuzzed(
        _foreign_lerobot(lerobot_version="2.1"), (_META[0], *_V21, *_DATA), _named("lerobot")
    ),
    "numpy": Fuzzed(_exported("numpy"), (*_OURS, Target("*/*.npy", "npy")), _named("numpy")),
    "d3rlpy": Fuzzed(_d3rlpy, (Target("*.h5", "hdf5"),), _named("d3rlpy")),
    "d3rlpy_own": Fuzzed(_exported("d3rlpy"), (*_OURS, Target("*.h5", "hdf5")), _named("d3rlpy")),
    "d4rl": Fuzzed(_d4rl, (Target("*.hdf5", "hdf5"),), _named("d4rl")),
    "minari": Fuzzed(minari_hdf5, (_MINARI, _MINARI, Target("data/*.hdf5", "hdf5")), _named("minari")),
    "minari_own": Fuzzed(
        _exported("minari"), (*_OURS, _MINARI, _MINARI, Target("data/*.hdf5", "hdf5")), _named("minari")
    ),
    **{
        f"minari_{kind}": Fuzzed(_minari_directory(kind), (_MINARI, Target(f"data/*/*.{kind}", kind)), _named("minari"))
        for kind in ("arrow", "parquet")
    },
    "trajectories": Fuzzed(_exported("trajectories", items="frames"), _OURS, _named("trajectories")),
    "trajectories_spec": Fuzzed(
        _exported("trajectories", items="episodes"),
        (Target("*.spec", "bytes"),),
        lambda where: [f"{where}/*.tfrecord-*", "--from=trajectories"],
    ),
    "npz": Fuzzed(_exorl, (Target("*.npz", "bytes"),), _named("npz")),
    "hdf5": Fuzzed(_aloha, (Target("*.hdf5", "hdf5"),), _named("hdf5")),
    "zarr": Fuzzed(_zarr, (Target("**/.z*", "json"), Target("**/episode_ends/0", "bytes")), _named("zarr")),
    "ros2": Fuzzed(
        _bag,
        (Target("bag/metadata.yaml", "text"), Target("topics.yaml", "text"), Target("bag/*.mcap", "bytes")),
        lambda where: [f"{where}/bag", "--from=ros2", f"--topics={where}/topics.yaml"],
    ),
}
