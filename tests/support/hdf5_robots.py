"""HDF5 files as robots' recorders write them; each builder follows the writer's code, and returns what it wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.typing import Array

Written = list[dict[str, Any]]

SIDE = 32


def frames(steps: int, rng: np.random.Generator) -> Array:
    return np.kron(rng.integers(0, 255, (steps, 4, 4, 3)), np.ones((1, SIDE // 4, SIDE // 4, 1))).astype(np.uint8)


def jpegs(steps: int, rng: np.random.Generator) -> list[bytes]:
    return list(encode_jpeg(frames(steps, rng)))


def _files(directory: Path, steps: list[int], path: str) -> Any:
    h5py = pytest.importorskip("h5py")
    for i, count in enumerate(steps):
        file = directory / path.format(i)
        file.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(file, "w") as root:
            yield i, count, np.random.default_rng(i), root


def aloha(directory: Path, steps: list[int]) -> Written:
    """record_sim_episodes.py; `cam_low` as later recorders compress it: uint8 rows, padded, with `compress_len`."""
    written = []
    for _, count, rng, root in _files(directory, steps, "episode_{}.hdf5"):
        root.attrs["sim"] = True
        qpos, qvel, action = (rng.normal(size=(count, 14)) for _ in range(3))
        for name, values in (("observations/qpos", qpos), ("observations/qvel", qvel), ("action", action)):
            root.create_dataset(name, (count, 14), "f4")[...] = values  # float32, h5py's default
        pixels, coded = frames(count, rng), jpegs(count, rng)
        root.create_dataset("observations/images/cam_high", data=pixels, chunks=(1, SIDE, SIDE, 3))
        most = max(map(len, coded))
        padded = np.stack([np.frombuffer(one.ljust(most, b"\0"), np.uint8) for one in coded])
        root.create_dataset("observations/images/cam_low", data=padded, chunks=(1, most))
        root.create_dataset("compress_len", data=np.array([[len(one) for one in coded]], float))
        written.append(
            {
                "observation/state": qpos.astype(np.float32),
                "observation/velocity": qvel.astype(np.float32),
                "observation/image_cam_high": pixels,
                "observation/image_cam_low": coded,
                "action": action.astype(np.float32),
            }
        )
    return written


def _demos(directory: Path, name: str, steps: list[int]) -> Any:
    h5py = pytest.importorskip("h5py")
    directory.mkdir(parents=True, exist_ok=True)
    with h5py.File(directory / name, "w") as root:
        data = root.create_group("data")
        data.attrs["total"] = sum(steps)
        for i, count in enumerate(steps):
            group = data.create_group(f"demo_{i}")
            group.attrs["num_samples"] = count
            yield i, count, np.random.default_rng(i), group, root


def robomimic(directory: Path, steps: list[int], *, next_obs: bool = True) -> Written:
    """dataset_states_to_obs.py: float64, images as uint8, `next_obs`, filter keys."""
    written: Written = []
    for i, count, rng, group, root in _demos(directory, "low_dim.hdf5", steps):
        root["data"].attrs["env_args"] = json.dumps(
            {
                "env_name": "Lift",
                "type": 1,
                "env_kwargs": {"control_freq": 20, "robots": ["Panda"], "controller_configs": {"type": "OSC_POSE"}},
            }
        )
        group.attrs["model_file"] = "<mujoco/>"
        position, pixels = rng.normal(size=(count + 1, 3)), frames(count + 1, rng)
        quaternion, fingers = rng.normal(size=(count + 1, 4)), rng.normal(size=(count + 1, 2))
        one = {"action": rng.uniform(-1, 1, (count, 7)), "states": rng.normal(size=(count, 9))}
        reward = np.zeros(count)
        reward[-1:] = 1
        group["actions"], group["states"], group["rewards"] = one["action"], one["states"], reward
        group["dones"] = (np.arange(count) == count - 1).astype(np.int64)
        observed = {
            "robot0_eef_pos": position,
            "robot0_eef_quat": quaternion,
            "robot0_gripper_qpos": fingers,
            "agentview_image": pixels,
        }
        for name, values in observed.items():
            group[f"obs/{name}"] = values[:-1]
            if next_obs:
                group[f"next_obs/{name}"] = values[1:]
            one[f"observation/{name}"] = values if next_obs else values[:-1]
        state = np.concatenate([position, quaternion, fingers], axis=1)
        one["observation/state"] = state if next_obs else state[:-1]
        written.append({**one, "reward": reward})
        if i == len(steps) - 1:
            names = [f"demo_{j}" for j in range(len(steps))]
            root["mask/train"], root["mask/valid"] = np.array(names[:-1], "S"), np.array(names[-1:], "S")
            root["mask/20_percent"] = np.array(names[:1], "S")
    return written


def libero(directory: Path, steps: list[int]) -> Written:
    """create_dataset.py."""
    written = []
    for _, count, rng, group, root in _demos(directory, "KITCHEN_SCENE1_open_the_drawer_demo.hdf5", steps):
        data = root["data"]
        data.attrs["problem_info"] = json.dumps({"problem_name": "p", "language_instruction": "open the drawer"})
        data.attrs["env_name"], data.attrs["bddl_file_name"] = "Libero", "a.bddl"
        image, wrist, last = frames(count, rng), frames(count, rng), (np.arange(count) == count - 1).astype(np.uint8)
        ee, action, fingers = rng.normal(size=(count, 6)), rng.normal(size=(count, 7)), rng.normal(size=(count, 2))
        group["obs/agentview_rgb"], group["obs/eye_in_hand_rgb"] = image, wrist
        group["obs/ee_states"], group["obs/ee_pos"], group["obs/ee_ori"] = ee, ee[:, :3], ee[:, 3:]
        group["obs/gripper_states"], group["obs/joint_states"] = (
            fingers,
            rng.normal(size=(count, 7)),
        )
        group["actions"], group["rewards"], group["dones"] = action, last, last
        group["states"], group["robot_states"] = rng.normal(size=(count, 20)), rng.normal(size=(count, 9))
        written.append(
            {
                "observation/image": image,
                "observation/wrist_image": wrist,
                "observation/ee_states": ee,
                "observation/state": np.concatenate([ee, fingers], axis=1),
                "action": action,
                "reward": last,
                "language_instruction": [b"open the drawer"] * count,
            }
        )
    return written


def isaaclab(directory: Path, steps: list[int]) -> Written:
    """hdf5_dataset_file_handler.py: nested groups with gzip, `success` and `seed`, no rewards."""
    written = []
    for i, count, rng, group, root in _demos(directory, "dataset.hdf5", steps):
        root["data"].attrs["env_args"] = json.dumps(
            {"env_name": "Isaac-Stack", "type": 2, "sim_args": {"dt": 0.01, "decimation": 5, "render_interval": 2}}
        )
        group.attrs["success"], group.attrs["seed"] = np.bool_(i % 2 == 0), i
        action, joints, cube = (rng.normal(size=(count, n)).astype(np.float32) for n in (7, 9, 3))
        group.create_dataset("initial_state/articulation/robot/joint_position", data=joints[:1], compression="gzip")
        names = {"actions": action, "obs/joint_pos": joints, "obs/cube/position": cube}
        names["states/articulation/robot/joint_position"] = joints
        for name, values in names.items():
            group.create_dataset(name, data=values, compression="gzip")
        written.append(
            {
                "observation/joint_pos": joints,
                "observation/cube/position": cube,
                "states/articulation/robot/joint_position": joints,
                "action": action,
                "is_terminal": np.arange(count) == (count - 1 if i % 2 == 0 else count),
            }
        )
    return written


def robotwin(directory: Path, steps: list[int]) -> Written:
    """pkl2hdf5.py as of RoboTwin 2.0: JPEGs as |S<n>; a file has one row more than the episode has steps."""
    written = []
    for i, count, rng, root in _files(directory, [n + 1 for n in steps], "data/episode{}.hdf5"):
        vector, coded = rng.normal(size=(count, 14)), jpegs(count, rng)
        root["joint_action/vector"], root["joint_action/left_arm"] = vector, vector[:, :6]
        root.create_dataset("observation/head_camera/rgb", data=coded, dtype=f"S{max(map(len, coded))}")
        matrices = rng.normal(size=(count, 3, 3)).astype(np.float32)
        root["observation/head_camera/intrinsic_cv"] = matrices
        root["endpose/left_endpose"], root["pointcloud"] = rng.normal(size=(count, 7)), np.zeros((count, 0))
        texts = directory / "instructions" / f"episode{i}.json"
        texts.parent.mkdir(exist_ok=True)
        texts.write_text(json.dumps({"seen": [f"lift block {i}", "lift"], "unseen": ["raise"]}))
        written.append(
            {
                "observation/state": vector[:-1],
                "observation/image_head_camera": coded[:-1],
                "observation/image_head_camera_intrinsics": matrices[:-1],
                "action": vector[1:],
                "language_instruction": [f"lift block {i}".encode()] * (count - 1),
            }
        )
    return written


def xpolicylab(directory: Path, steps: list[int]) -> Written:
    """pkl2hdf5.py of RoboTwin since August 2026: the actions are shifted by the writer."""
    h5py = pytest.importorskip("h5py")
    written = []
    for i, count, rng, root in _files(directory, steps, "beat_block/demo/data/episode_{:07}.hdf5"):
        arm, gripper = rng.normal(size=(count + 1, 6)).astype("f4"), rng.normal(size=(count + 1, 1)).astype("f4")
        coded, string = jpegs(count, rng), h5py.string_dtype("utf-8")
        root.attrs["source_format"] = "RoboTwin"
        root.create_dataset("data_format_version", data="v1.0", dtype=string)
        root.create_dataset("instructions", data=json.dumps([f"beat block {i}", "beat it"]), dtype=string)
        root["additional_info/frequency"] = np.asarray(15, np.int32)
        for name, values in (("left_arm_joint_states", arm), ("left_ee_joint_states", gripper)):
            root[f"state/{name}"], root[f"action/{name}"] = values[:-1], values[1:]
        root.create_dataset("vision/cam_head/colors", data=coded, dtype=f"S{max(map(len, coded))}")
        root["vision/cam_head/shape"] = np.asarray((SIDE, SIDE, 3), np.int32)
        root["vision/cam_head/extrinsics_matrix"] = np.tile(np.eye(4, dtype=np.float32), (count, 1, 1))
        written.append(
            {
                "observation/left_arm_joint_states": arm[:-1],
                "observation/left_ee_joint_states": gripper[:-1],
                "observation/image_cam_head": coded,
                "action/left_arm_joint_states": arm[1:],
                "language_instruction": [f"beat block {i}".encode()] * count,
            }
        )
    return written


def robomind(directory: Path, steps: list[int]) -> Written:
    """trajectory.hdf5, as any4lerobot reads it: frames of varying length."""
    h5py = pytest.importorskip("h5py")
    written = []
    path = "h5_franka/pick/success_episodes/train/episode{}/data/trajectory.hdf5"
    for _, count, rng, root in _files(directory, steps, path):
        joints, target, coded = rng.normal(size=(count, 8)), rng.normal(size=(count, 8)), jpegs(count, rng)
        root["puppet/joint_position"], root["master/joint_position"] = joints, target
        camera = root.create_dataset("observations/rgb_images/camera_top", (count,), h5py.vlen_dtype(np.uint8))
        for t, one in enumerate(coded):
            camera[t] = np.frombuffer(one, np.uint8)
        written.append(
            {
                "observation/joint_position": joints,
                "observation/image_camera_top": coded,
                "action/joint_position": target,
            }
        )
    return written


def droid(directory: Path, steps: list[int]) -> Written:
    """trajectory.h5 of DROID's raw data, as openpi reads it."""
    written = []
    for i, count, rng, root in _files(directory, steps, "lab/success/{}/trajectory.h5"):
        joints, velocity, gripper = rng.normal(size=(count, 7)), rng.normal(size=(count, 7)), rng.uniform(size=count)
        root["observation/robot_state/joint_positions"], root["observation/robot_state/gripper_position"] = (
            joints,
            gripper,
        )
        root.attrs["success"], root.attrs["current_task"] = True, ""
        root["observation/controller_info/movement_enabled"] = np.ones(count, bool)
        root["observation/camera_type/1234"] = np.zeros(count, int)
        pose, matrix = rng.normal(size=(count, 6)), rng.normal(size=(count, 3, 3))
        root["observation/camera_extrinsics/1234_left"] = pose
        root["observation/camera_intrinsics/1234_left"] = matrix
        root["action/joint_velocity"], root["action/gripper_position"] = velocity, gripper
        (directory / f"lab/success/{i}/metadata_a+{i}.json").write_text(json.dumps({"current_task": "tidy up"}))
        written.append(
            {
                "observation/joint_positions": joints,
                "observation/gripper_position": gripper,
                "observation/1234_left_extrinsics": pose,
                "observation/1234_left_intrinsics": matrix,
                "action/joint_velocity": velocity,
                "language_instruction": [b"tidy up"] * count,
            }
        )
    return written


def agibot(directory: Path, steps: list[int]) -> Written:
    """proprio_stats.h5 of AgiBot World, as any4lerobot reads it."""
    written = []
    for _, count, rng, root in _files(directory, steps, "proprio_stats/327/{}/proprio_stats.h5"):
        joints, target = rng.normal(size=(count, 14)), rng.normal(size=(count, 14))
        root["state/joint/position"], root["action/joint/position"] = joints, target
        root["state/head/velocity"], root["action/head/position"] = np.zeros((0,)), np.zeros((0,))
        root["action/joint/index"], root["timestamp"] = np.arange(count), np.arange(count)
        written.append({"observation/joint/position": joints, "action/joint_position": target})
    return written


BUILDERS: dict[str, Callable[[Path, list[int]], Written]] = {
    one.__name__: one for one in (agibot, aloha, droid, isaaclab, libero, robomimic, robomind, robotwin, xpolicylab)
}
"""A builder for each profile of the package."""
