"""The small datasets of the recorded outputs (`golden.py`), each built on first use.

They use only `rlds_beam.testing`, so their bytes stay the same when the rest of the project changes.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from damage import set_length

from rlds_beam.encoding.tfds.rlds_dataset import default_schema, encode_example
from rlds_beam.testing import (
    BREAKABLE,
    cut,
    flip_byte,
    make_episode,
    read_payloads,
    shard_paths,
    write_dataset,
)

LENGTHS = (6, 1, 2, 9, 4)


class Datasets:
    """The datasets by name, built below one directory on first use."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._paths: dict[str, Path] = {}

    def __getitem__(self, name: str) -> Path:
        if name not in self._paths:
            self._paths[name] = BUILDERS[name](self.directory / name)
        return self._paths[name]


def policy_info(current: Mapping[str, Any], following: Mapping[str, Any]) -> dict[str, Any]:
    """For `--policy_info_fn=golden_data:policy_info`."""
    return {"sum": current["reward"] + following["reward"], "nested": {"state": following["observation"]["state"]}}


def _plain(directory: Path, **options: Any) -> Path:
    episodes = [make_episode(n, seed=i, terminal=i % 2 == 0) for i, n in enumerate(LENGTHS)]
    return write_dataset(directory, episodes, **{"shards": 2, **options})


def _many(directory: Path) -> Path:
    return write_dataset(directory, [make_episode(3 + i % 4, seed=i) for i in range(24)], shards=3)


def _two_splits(directory: Path) -> Path:
    write_dataset(directory, [make_episode(4, seed=10 + i) for i in range(3)], split="test")
    return write_dataset(directory, [make_episode(5, seed=i) for i in range(4)], shards=2)


def _gzip(directory: Path) -> Path:
    target = _plain(directory)
    for path in shard_paths(target):
        path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    return target


def _array_record(directory: Path) -> Path:
    from array_record.python.array_record_module import ArrayRecordWriter

    target = _plain(directory)
    for path in shard_paths(target):
        writer = ArrayRecordWriter(str(path).replace(".tfrecord", ".array_record"), "group_size:1")
        for payload in read_payloads(path):
            writer.write(payload)
        writer.close()
        path.unlink()
    _edit(target / "dataset_info.json", lambda info: info.update(fileFormat="array_record"))
    return target


def _nested(directory: Path) -> Path:
    """Nested leaves of many dtypes, text, and episode metadata."""

    def episode(n: int, seed: int) -> Any:
        rng = np.random.default_rng(100 + seed)
        columns = {
            "observation/half": rng.integers(-9, 9, (n, 2)).astype(ml_dtypes.bfloat16),
            "observation/bytes": rng.integers(0, 256, (n, 3, 2), np.uint8),
            "observation/counts": rng.integers(-(2**62), 2**62, n),
            "observation/open": rng.integers(0, 2, n).astype(bool),
            "observation/exact": rng.integers(-999, 999, (n, 2)) / 8,
            "observation/progress": np.arange(n, dtype=np.float32) / 8,
            "observation/instruction": ["put the cup on the plate"] * n,
            "embedding": rng.integers(-99, 99, (n, 2)) / 4,
            "score": rng.integers(0, 5, n).astype(np.int32),
        }
        shapes = {"observation": {"state": 3, "arm": (2, 2)}, "action": {"joints": 2, "grip": ()}}
        metadata = {"file_path": f"/data/{seed}.hdf5", "success": seed % 2}
        return make_episode(n, seed=seed, columns=columns, metadata=metadata, **shapes)  # type: ignore[arg-type]

    return write_dataset(directory, [episode(n, i) for i, n in enumerate(LENGTHS)], name="robot/small", shards=2)


def _images(directory: Path, encoding: str, shape: tuple[int | None, ...] = (16, 24, 3), dtype: str = "uint8") -> Path:
    """A camera and a float leaf; sizes that are None in `shape` differ between episodes."""

    def episode(n: int, seed: int) -> Any:
        size = [d or 8 + 4 * seed for d in shape]
        rng = np.random.default_rng(200 + seed)
        smooth = np.add.outer(np.arange(size[0]), np.arange(size[1]))[..., None] * np.arange(2, 2 + size[2])
        pixels = [smooth + rng.integers(0, 30, size) for _ in range(n)]
        columns = {"observation/camera": [_encode(p.astype(dtype), encoding) for p in pixels]}
        return make_episode(n, seed=seed, observation={"state": 3}, columns=columns)

    target = write_dataset(directory, [episode(n, i) for i, n in enumerate(LENGTHS)], shards=2)
    return _as_images(target, shape, encoding, dtype)


def _encode(pixels: Any, encoding: str) -> bytes:
    import imagecodecs
    import simplejpeg

    if encoding == "png":
        return bytes(imagecodecs.png_encode(pixels))
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=90))


def _as_images(target: Path, shape: tuple[int | None, ...], encoding: str, dtype: str = "uint8") -> Path:
    """Declares `observation/camera` as images in features.json; in a record they are strings anyway."""

    def edit(features: Any) -> None:
        steps = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
        steps["observation"]["featuresDict"]["features"]["camera"] = {
            "pythonClassName": "tensorflow_datasets.core.features.image_feature.Image",
            "image": {
                "shape": {"dimensions": [str(-1 if d is None else d) for d in shape]},
                "dtype": dtype,
                "encodingFormat": encoding,
            },
        }

    _edit(target / "features.json", edit)
    return target


def _bad_images(directory: Path) -> Path:
    """Five episodes, with a truncated PNG, one of another size, bytes that are no image, and a JPEG (accepted)."""
    good = _encode(np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3), "png")
    large = _encode(np.zeros((8, 12, 3), np.uint8), "png")
    jpeg = _encode(np.full((8, 8, 3), 90, np.uint8), "jpeg")
    episodes = [
        make_episode(3, seed=i, observation={"state": 3}, columns={"observation/camera": [good, image, good]})
        for i, image in enumerate([good, good[:-40], large, b"not an image", jpeg])
    ]
    return _as_images(write_dataset(directory, episodes), (8, 8, 3), "png")


def _broken(directory: Path) -> Path:
    """An episode for every rule that `make_episode` can break, records that cannot be decoded, and four valid ones."""
    good = [make_episode(5, seed=i) for i in range(4)]
    rows = [make_episode(5, seed=20 + i, breaks=[rule]) for i, rule in enumerate(BREAKABLE)]
    short = make_episode(5, seed=30, columns={"reward": np.zeros(3, np.float32)})
    wide = make_episode(5, seed=31, observation=4)
    steps = {path: column for path, column in good[0].steps.items() if path != "action"}
    lacking = dataclasses.replace(make_episode(5, seed=32), steps=steps)
    records = [good[0], *rows, good[1], short, wide, lacking, b"not an example", good[2], good[3]]
    return write_dataset(directory, records, shards=2)


def _several(directory: Path) -> Path:
    """Records with several episodes, and with episodes that lack a first or last step."""
    flags = ["F M L | F M LT", "F M | F L", "F M M", "M M L", "F MT M L", "F M L"]
    return write_dataset(directory, [make_episode(f, seed=i) for i, f in enumerate(flags)], shards=2)


def _damaged(directory: Path) -> Path:
    """Flipped bytes in the first shard, a wrong length in the second, a truncated third shard."""
    target = write_dataset(directory, [make_episode(5, seed=i) for i in range(12)], shards=3)
    first, second, third = shard_paths(target)
    flip_byte(first, 1, at=40)
    flip_byte(first, 3, "payload_crc")
    set_length(second, 1, 77)
    cut(third, 2, extra=30)
    return target


def _duplicates(directory: Path) -> Path:
    episodes = [make_episode(4, seed=i) for i in (0, 1, 0, 2, 1, 0)]
    return write_dataset(directory, episodes, shards=2)


def _missing_shard(directory: Path) -> Path:
    target = _many(directory)
    shard_paths(target)[1].unlink()
    return target


def _extra_shard(directory: Path) -> Path:
    target = _many(directory)
    (target / "testing-train.tfrecord-00003-of-00004").write_bytes(shard_paths(target)[0].read_bytes())
    return target


def _short_shard(directory: Path) -> Path:
    target = _many(directory)
    cut(shard_paths(target)[1], 5)
    return target


def _not_float32(directory: Path) -> Path:
    """Rewards and discounts in float64."""
    episodes = [
        make_episode(n, seed=i, columns={"reward": np.arange(n) / 4, "discount": np.ones(n)})
        for i, n in enumerate(LENGTHS)
    ]
    return write_dataset(directory, episodes)


def _no_episodes(directory: Path) -> Path:
    return write_dataset(directory, [], schema=default_schema(make_episode(3)))


def _older_schema(directory: Path) -> Path:
    """Records with a column that is not in features.json."""
    schema = default_schema(make_episode(3))
    columns = {"observation_later": np.zeros((4, 2), np.float32)}
    return write_dataset(
        directory, [encode_example(make_episode(4, seed=i, columns=columns)) for i in range(3)], schema=schema
    )


def _edit(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


BUILDERS: dict[str, Callable[[Path], Path]] = {
    "plain": _plain,
    "many": _many,
    "two_splits": _two_splits,
    "unnumbered": lambda directory: _plain(directory, numbered=False),
    "shard_file": lambda directory: shard_paths(_plain(directory))[1],
    "gzip": _gzip,
    "array_record": _array_record,
    "nested": _nested,
    "png": lambda directory: _images(directory, "png"),
    "png16": lambda directory: _images(directory, "png", (8, 8, 1), "uint16"),
    "png_any_size": lambda directory: _images(directory, "png", (None, None, 3)),
    "jpeg": lambda directory: _images(directory, "jpeg"),
    "bad_images": _bad_images,
    "broken": _broken,
    "several": _several,
    "damaged": _damaged,
    "duplicates": _duplicates,
    "missing_shard": _missing_shard,
    "extra_shard": _extra_shard,
    "short_shard": _short_shard,
    "not_float32": _not_float32,
    "no_episodes": _no_episodes,
    "older_schema": _older_schema,
}
