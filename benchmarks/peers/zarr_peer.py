"""Loops around diffusion policy's ReplayBuffer: `python benchmarks/peers/zarr_peer.py KIND PATH [EPISODES]`.

- `make`: writes a buffer of push-T's layout, as `ReplayBuffer.save_to_path` does with its defaults.
- `read`: a buffer to RLDS: `ReplayBuffer.copy_from_path` (all of it in memory), with TFDS as the writer.
- `write`: RLDS to a buffer: TFDS as the reader, `ReplayBuffer.add_episode` with a chunk for each image, a zip file.

Restates these methods of https://github.com/real-stanford/diffusion_policy. Prints JSON; rates are in steps per second,
without imports.
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

import numcodecs
import numpy as np
import zarr

STEPS, PIXELS = 125, 96
KEYS = ("img", "state", "keypoint")


def make(path: Path, episodes: int) -> None:
    """A buffer: images that move over a soft background, 18 keypoints, state, and action."""
    if path.exists():
        return
    rng = np.random.default_rng(0)
    soft = np.kron(rng.integers(60, 200, (8, 8, 3)), np.ones((12, 12, 1))).astype(np.uint8)
    rows, count = np.arange(PIXELS), episodes * STEPS
    root = zarr.group(zarr.DirectoryStore(str(path.with_suffix(".part"))), overwrite=True)
    data, meta = root.create_group("data"), root.create_group("meta")
    lz4 = numcodecs.Blosc("lz4", 5, numcodecs.Blosc.NOSHUFFLE)
    images = data.zeros(
        "img", shape=(count, PIXELS, PIXELS, 3), chunks=(73, PIXELS, PIXELS, 3), dtype="u1", compressor=lz4
    )
    for episode in range(episodes):
        pixels = np.stack([soft[(rows + step) % PIXELS] for step in range(STEPS)])
        pixels[:, 20:40, 30:60] = rng.integers(0, 255, 3)
        images[episode * STEPS : (episode + 1) * STEPS] = pixels + rng.integers(0, 3, pixels.shape, np.uint8)
    for name, shape in {"state": (5,), "keypoint": (9, 2), "action": (2,)}.items():
        values = rng.random((count, *shape), np.float32)
        data.array(name, values, chunks=(min(count, 20_000), *shape), compressor=lz4)
    meta.array("episode_ends", np.arange(1, episodes + 1) * STEPS)
    path.with_suffix(".part").rename(path)


def read(path: Path, room: Path) -> int:
    import tensorflow_datasets as tfds

    root = zarr.open(str(path), "r")
    data = {key: root["data"][key][:] for key in root["data"]}
    ends = root["meta/episode_ends"][:]
    f = tfds.features

    class Builder(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
        VERSION = tfds.core.Version("1.0.0")
        name = "push"
        pkg_dir_path = room

        def _info(self) -> Any:
            numbers = {key: f.Tensor(shape=data[key].shape[1:], dtype=np.float32) for key in KEYS[1:]}
            flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_)
            content = {
                "observation": {"img": f.Image(shape=(PIXELS, PIXELS, 3), encoding_format="png"), **numbers},
                "action": f.Tensor(shape=(2,), dtype=np.float32),
                "reward": np.float32,
                "discount": np.float32,
                **flags,
            }
            return tfds.core.DatasetInfo(builder=self, features=f.FeaturesDict({"steps": f.Dataset(content)}))

        def _split_generators(self, manager: Any) -> Any:
            del manager
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[Any]:
            start = 0
            for number, end in enumerate(ends):
                yield str(number), {"steps": [self._step(i, start, int(end)) for i in range(start, end)]}
                start = int(end)

        def _step(self, i: int, start: int, end: int) -> dict[str, Any]:
            flags = {"is_first": i == start, "is_last": i == end - 1, "is_terminal": False}
            observation = {key: data[key][i] for key in KEYS}
            return {"observation": observation, "action": data["action"][i], "reward": 0.0, "discount": 1.0, **flags}

    Builder(data_dir=str(room)).download_and_prepare()
    return int(ends[-1])


def write(path: Path, room: Path) -> int:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(path))
    lz4 = numcodecs.Blosc("lz4", 5, numcodecs.Blosc.NOSHUFFLE)
    ends: list[int] = []
    with zarr.ZipStore(str(room / "out.zarr.zip"), mode="w") as store:
        memory = zarr.group(zarr.MemoryStore())
        group = memory.create_group("data")
        for episode in builder.as_dataset(split="train"):
            steps = [*tfds.as_numpy(episode["steps"])]
            columns = {key: np.stack([step["observation"][key] for step in steps]) for key in KEYS}
            columns["action"] = np.stack([step["action"] for step in steps])
            ends.append((ends[-1] if ends else 0) + len(steps))
            for key, values in columns.items():
                if key not in group:
                    chunks = (1 if key == "img" else 1000, *values.shape[1:])
                    group.zeros(key, shape=(0, *values.shape[1:]), chunks=chunks, dtype=values.dtype, compressor=lz4)
                group[key].resize(ends[-1], *values.shape[1:])
                group[key][-len(values) :] = values
        memory.create_group("meta").array("episode_ends", np.array(ends), compressor=None)
        zarr.copy_store(memory.store, store)
    return ends[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("make", "read", "write"))
    parser.add_argument("path", type=Path)
    parser.add_argument("episodes", type=int, nargs="?", default=8)
    args = parser.parse_args()
    if args.kind == "make":
        make(args.path, args.episodes)
        print(args.path)
        return
    # Imports are not measured; TFDS imports TensorFlow at its first use.
    import tensorflow  # noqa: F401
    import tensorflow_datasets  # noqa: F401

    with tempfile.TemporaryDirectory(dir=args.path.parent) as room:
        began = time.perf_counter()
        steps = {"read": read, "write": write}[args.kind](args.path, Path(room))
        seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"steps_per_second": steps / seconds, "seconds": seconds, "steps": steps, "peak_mb": peak}))


if __name__ == "__main__":
    main()
