"""The scripts that people convert HDF5 with today: `python benchmarks/peers/hdf5_peer.py KIND FOLDER EPISODES`.

- `aloha`: the loop of openpi's examples/aloha_real/convert_aloha_data_to_lerobot.py, images as images (its default),
  with its 10 processes of 5 threads that write them. Needs LeRobot, h5py, and OpenCV.
- `libero_lerobot`: the loop of any4lerobot's libero2lerobot/libero_h5.py, images as videos. Needs LeRobot and h5py.
- `libero_rlds`: `_parse_example` of moojink's LIBERO_Spatial_dataset_builder.py, with TFDS as the writer.

Prints JSON; rates are in steps per second, without imports.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

CAMERAS = ("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist")


def _aloha_frames(path: Path) -> Iterator[dict[str, Any]]:
    import cv2
    import torch

    with h5py.File(path, "r") as file:
        names = {"state": "observations/qpos", "velocity": "observations/qvel", "effort": "observations/effort"}
        numbers = {f"observation.{name}": torch.from_numpy(file[path][:]).float() for name, path in names.items()}
        numbers["action"] = torch.from_numpy(file["action"][:]).float()
        images = {}
        for camera in CAMERAS:
            stored = file[f"observations/images/{camera}"]
            decoded = stored[:] if stored.ndim == 4 else None
            if decoded is None:
                decoded = np.array([cv2.cvtColor(cv2.imdecode(one, 1), cv2.COLOR_BGR2RGB) for one in stored])
            images[f"observation.images.{camera}"] = decoded
    for step in range(len(numbers["action"])):
        yield {name: values[step] for name, values in (numbers | images).items()} | {"task": "DEBUG"}


def aloha(paths: list[Path], episodes: int, room: Path) -> int:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    names = ("observation.state", "observation.velocity", "observation.effort", "action")
    features: dict[str, Any] = {name: {"dtype": "float32", "shape": (14,), "names": None} for name in names}
    for camera in CAMERAS:
        shape = {"shape": (3, 480, 640), "names": ["channels", "height", "width"]}
        features[f"observation.images.{camera}"] = {"dtype": "image", **shape}
    dataset = LeRobotDataset.create(
        "some/name",
        50,
        features,
        root=room / "lerobot",
        robot_type="aloha",
        image_writer_processes=10,
        image_writer_threads=5,
    )
    steps = 0
    for path in paths[:episodes]:
        for frame in _aloha_frames(path):
            dataset.add_frame(frame)
            steps += 1
        dataset.save_episode()
    dataset.finalize()
    return steps


def libero_lerobot(paths: list[Path], episodes: int, room: Path) -> int:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    sizes = {"observation.state": 8, "observation.states.ee_state": 6, "observation.states.joint_state": 7}
    sizes |= {"observation.states.gripper_state": 2, "action": 7}
    features: dict[str, Any] = {
        name: {"dtype": "float32", "shape": (size,), "names": None} for name, size in sizes.items()
    }
    for camera in ("image", "wrist_image"):
        shape = {"shape": (128, 128, 3), "names": ["height", "width", "rgb"]}
        features[f"observation.images.{camera}"] = {"dtype": "video", **shape}
    dataset = LeRobotDataset.create("some/name", 20, features, root=room / "lerobot", robot_type="franka")
    steps = 0
    with h5py.File(paths[0], "r") as file:
        for demo in list(file["data"].values())[:episodes]:
            action = np.array(demo["actions"])
            action = np.concatenate([action[:, :6], (1 - np.clip(action[:, -1], 0, 1))[:, None]], axis=1)
            ends = [np.array(demo["obs/ee_states"]), np.array(demo["obs/gripper_states"])]
            arrays = {
                "observation.images.image": np.array(demo["obs/agentview_rgb"]),
                "observation.images.wrist_image": np.array(demo["obs/eye_in_hand_rgb"]),
                "observation.state": np.concatenate(ends, axis=1).astype(np.float32),
                "observation.states.ee_state": ends[0].astype(np.float32),
                "observation.states.joint_state": np.array(demo["obs/joint_states"], np.float32),
                "observation.states.gripper_state": ends[1].astype(np.float32),
                "action": action.astype(np.float32),
            }
            for step in range(len(action)):
                dataset.add_frame({**{k: v[step] for k, v in arrays.items()}, "task": "pick up the black bowl"})
                steps += 1
            dataset.save_episode()
    dataset.finalize()
    return steps


def _libero_steps(demo: Any) -> list[dict[str, Any]]:
    actions, obs = demo["actions"][()], {name: values[()] for name, values in demo["obs"].items()}
    last = len(actions) - 1
    return [
        {
            "observation": {
                "image": obs["agentview_rgb"][i][::-1, ::-1],
                "wrist_image": obs["eye_in_hand_rgb"][i][::-1, ::-1],
                "state": np.concatenate((obs["ee_states"][i], obs["gripper_states"][i])).astype(np.float32),
                "joint_state": obs["joint_states"][i].astype(np.float32),
            },
            "action": actions[i].astype(np.float32),
            "discount": 1.0,
            "reward": float(i == last),
            "is_first": i == 0,
            "is_last": i == last,
            "is_terminal": i == last,
            "language_instruction": "pick up the black bowl",
        }
        for i in range(len(actions))
    ]


def libero_rlds(paths: list[Path], episodes: int, room: Path) -> int:
    import tensorflow_datasets as tfds

    f, steps = tfds.features, 0

    class Builder(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
        VERSION = tfds.core.Version("1.0.0")
        name = "libero"
        pkg_dir_path = room

        def _info(self) -> Any:
            image = f.Image(shape=(128, 128, 3), encoding_format="jpeg")
            numbers = {"state": f.Tensor(shape=(8,), dtype=np.float32)}
            numbers["joint_state"] = f.Tensor(shape=(7,), dtype=np.float32)
            flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_)
            content = {
                "observation": {"image": image, "wrist_image": image, **numbers},
                "action": f.Tensor(shape=(7,), dtype=np.float32),
                "discount": np.float32,
                "reward": np.float32,
                **flags,
                "language_instruction": f.Text(),
            }
            features = f.FeaturesDict({"steps": f.Dataset(content), "episode_metadata": {"file_path": f.Text()}})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, manager: Any) -> Any:
            del manager
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[Any]:
            nonlocal steps
            with h5py.File(paths[0], "r") as file:
                for number in range(episodes):
                    made = _libero_steps(file[f"data/demo_{number}"])
                    steps += len(made)
                    yield str(number), {"steps": made, "episode_metadata": {"file_path": str(paths[0])}}

    Builder(data_dir=str(room)).download_and_prepare()
    return steps


def main() -> None:
    kinds = {one.__name__: one for one in (aloha, libero_lerobot, libero_rlds)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("folder", type=Path)
    parser.add_argument("episodes", type=int, help="convert only the first ones: these scripts are slow")
    args = parser.parse_args()
    if args.kind == "libero_rlds":
        # Imports are not measured; TFDS imports TensorFlow at its first use.
        import tensorflow  # noqa: F401
        import tensorflow_datasets  # noqa: F401
    else:
        import lerobot.datasets.lerobot_dataset  # noqa: F401
    paths = sorted(args.folder.glob("*.hdf5"))
    with tempfile.TemporaryDirectory(dir=args.folder.parent) as room:
        began = time.perf_counter()
        steps = kinds[args.kind](paths, args.episodes, Path(room))
        seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"steps_per_second": steps / seconds, "seconds": seconds, "steps": steps, "peak_mb": peak}))


if __name__ == "__main__":
    main()
