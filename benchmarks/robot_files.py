"""Generates robots' HDF5 files, once: `python benchmarks/robot_files.py KIND EPISODES STEPS [--into DIR]`.

KIND is `aloha` (JPEGs padded with zeros, as record_episodes.py of mobile ALOHA writes them), `aloha_raw` (pixels, as
ACT writes them), or `libero` (one file of demos with two cameras of 128 x 128, as create_dataset.py writes them).
Prints the folder. An existing one is reused.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np

CAMERAS = ("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist")
HEIGHT, WIDTH = 480, 640
SMALL = 128
FRAMES = 40
"""Different frames of a camera; longer episodes repeat them in turn."""

Array = np.ndarray[Any, Any]


def frames(seed: int, height: int, width: int, count: int) -> Array:
    """A camera's frames: boxes that move over a soft background with a little noise."""
    rng = np.random.default_rng(seed)
    background = cv2.resize(rng.uniform(0, 255, (6, 6, 3)), (width, height), interpolation=cv2.INTER_CUBIC)
    background += rng.normal(0, 1.5, background.shape)
    pixels = np.repeat(background.clip(0, 255).astype(np.uint8)[None], count, axis=0)
    for _ in range(5):
        tall, wide = height // 6, width // 6
        rows = np.linspace(*rng.integers(0, height - tall, 2), count).astype(int)
        columns = np.linspace(*rng.integers(0, width - wide, 2), count).astype(int)
        color = rng.integers(0, 255, 3)
        for step, (row, column) in enumerate(zip(rows, columns, strict=True)):
            pixels[step, row : row + tall, column : column + wide] = color
    return pixels


def write_aloha(folder: Path, episodes: int, steps: int, *, encoded: bool) -> None:
    for number in range(episodes):
        rng = np.random.default_rng(number)
        with h5py.File(folder / f"episode_{number}.hdf5", "w", rdcc_nbytes=1024**2 * 2) as file:
            file.attrs["sim"] = False
            file.attrs["compress"] = encoded
            for name in ("observations/qpos", "observations/qvel", "observations/effort", "action"):
                file[name] = rng.normal(size=(steps, 14))
            for place, camera in enumerate(CAMERAS):
                pixels = frames(4 * number + place, HEIGHT, WIDTH, FRAMES)
                images: Array = pixels
                if encoded:  # quality 50 and padding, as in mobile ALOHA's record_episodes.py
                    stored = [cv2.imencode(".jpg", one, [cv2.IMWRITE_JPEG_QUALITY, 50])[1].ravel() for one in pixels]
                    images = np.zeros((FRAMES, max(map(len, stored))), np.uint8)
                    for row, data in zip(images, stored, strict=True):
                        row[: len(data)] = data
                shape = (steps, *images.shape[1:])
                target = file.create_dataset(
                    f"observations/images/{camera}", shape, "uint8", chunks=(1, *images.shape[1:])
                )
                for start in range(0, steps, FRAMES):
                    target[start : start + FRAMES] = images[: steps - start]


def write_libero(folder: Path, episodes: int, steps: int) -> None:
    with h5py.File(folder / "pick_up_the_black_bowl_demo.hdf5", "w") as file:
        data = file.create_group("data")
        data.attrs["problem_info"] = json.dumps({"language_instruction": "pick up the black bowl"})
        data.attrs["env_args"] = json.dumps({"type": 1})
        data.attrs["total"], data.attrs["num_demos"] = episodes * steps, episodes
        for number in range(episodes):
            rng = np.random.default_rng(number)
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = steps
            sizes = {"gripper_states": 2, "joint_states": 7, "ee_states": 6, "ee_pos": 3, "ee_ori": 3}
            for name, size in sizes.items():
                demo[f"obs/{name}"] = rng.normal(size=(steps, size))
            for place, camera in enumerate(("agentview_rgb", "eye_in_hand_rgb")):
                demo[f"obs/{camera}"] = frames(2 * number + place, SMALL, SMALL, steps)
            demo["actions"] = rng.normal(size=(steps, 7))
            demo["states"], demo["robot_states"] = rng.normal(size=(steps, 92)), rng.normal(size=(steps, 9))
            ends = np.zeros(steps, np.uint8)
            ends[-1] = 1
            demo["rewards"], demo["dones"] = ends, ends


def made(kind: str, episodes: int, steps: int, into: Path) -> Path:
    """The folder of the files; generated on the first call."""
    folder = into / f"hdf5_{kind}_{episodes}x{steps}"
    if not folder.exists():
        making = into / f".{folder.name}.{os.getpid()}"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        if kind == "libero":
            write_libero(making, episodes, steps)
        else:
            write_aloha(making, episodes, steps, encoded=kind == "aloha")
        making.rename(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("aloha", "aloha_raw", "libero"))
    parser.add_argument("episodes", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("--into", type=Path, default=Path("bench_data"))
    args = parser.parse_args()
    print(made(args.kind, args.episodes, args.steps, args.into))


if __name__ == "__main__":
    main()
