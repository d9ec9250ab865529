"""A small dataset of robot episodes, and readers of LeRobot's files that do not use LeRobot."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from exchanging import export, read_back

from rlds_beam.episodes.episode import Episode
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.processing.report import Report
from rlds_beam.testing import make_episode, write_dataset

FPS = 10
LENGTHS = (5, 12, 3, 9, 20, 8, 30, 2)
INVALID = 9
"""The length of the episode that breaks a rule."""


def robot_episode(length: int, size: int = 16) -> Episode:
    """An episode with two cameras (JPEG, and PNG depth), a state, an instruction that may change, and metadata."""
    import imagecodecs

    made = make_episode(
        length,
        seed=length,
        observation={"state": 4, "matrix": (2, 3)},
        action=2,
        breaks=["missing_is_last"] if length == INVALID else [],
        columns={
            "language_instruction": [f"task {length % 3}" if i < 6 else "go on" for i in range(length)],
            "observation/note": [f"step {i} ä" for i in range(length)],
            "observation/count": np.arange(length, dtype=np.int32),
        },
        metadata={"file_path": f"/data/{length}".encode(), "success": np.bool_(length % 2)},
    )
    rng = np.random.default_rng(length)
    pixels = rng.integers(0, 255, (length, size, size, 3), np.uint8)
    depth = rng.integers(0, 60000, (length, size, size, 1), np.uint16)
    steps = {
        **made.steps,
        "observation/image_0": images(encode_jpeg(pixels), (size, size, 3)),
        "observation/depth": images([imagecodecs.png_encode(one[..., 0]) for one in depth], (size, size, 1), "uint16"),
    }
    return dataclasses.replace(made, steps=steps)


def images(data: list[bytes], shape: tuple[int, ...], dtype: str = "uint8") -> EncodedImages:
    column = np.empty(len(data), object)
    column[:] = data
    return EncodedImages(column, shape, dtype)


def write_robot_data(directory: Path) -> tuple[str, list[Episode]]:
    """Writes two splits; returns the dataset and its valid episodes in order."""
    episodes = [robot_episode(length) for length in LENGTHS]
    write_dataset(directory, episodes[:6], name="robot", shards=3)
    path = write_dataset(directory, episodes[6:], name="robot", split="val")
    return str(path), [e for e in episodes if len(e) != INVALID]


def frames(output: Path) -> Any:
    """All rows of the data files, in LeRobot's reading order."""
    import pyarrow as pa

    return pa.concat_tables([pq.read_table(file) for file in sorted(output.glob("data/*/*.parquet"))])


def episodes_rows(output: Path) -> list[dict[str, Any]]:
    """The rows of meta/episodes."""
    return [row for file in sorted(output.glob("meta/episodes/*/*.parquet")) for row in pq.read_table(file).to_pylist()]


def meta(output: Path, name: str) -> dict[str, Any]:
    """A JSON file of meta/."""
    found: dict[str, Any] = json.loads((output / "meta" / f"{name}.json").read_text())
    return found


def moving_episode(length: int, size: int = 64) -> Episode:
    """An episode with two cameras that see a moving bright bar, and depth."""
    made = robot_episode(length, size)
    steps = dict(made.steps)
    for camera, step in (("image_0", 3), ("wrist", 5)):
        pixels = np.full((length, size, size, 3), 60, np.uint8)
        pixels += np.linspace(0, 60, size).astype(np.uint8)[None, :, None, None]
        for t in range(length):
            at = (t * step) % (size - 8)
            pixels[t, :, at : at + 6] = 230
        steps[f"observation/{camera}"] = images(encode_jpeg(pixels), (size, size, 3))
    return dataclasses.replace(made, steps=steps)


def write_moving_data(directory: Path) -> tuple[str, list[Episode]]:
    """Writes a dataset; returns it and its episodes."""
    episodes = [moving_episode(length) for length in (5, 12, 3, 7, 10)]
    return str(write_dataset(directory, episodes, name="moving", shards=2)), episodes


def read_episodes(path: str, kind: str) -> list[Episode]:
    """Reads all episodes of a dataset, which have no faults, through its source."""
    found = read_back(path, kind)
    assert not any(episode.faults for episode in found)
    return found


def convert_here(source: object, path: object, **options: Any) -> Report:
    """Runs `convert --to=lerobot` in this process, without a pipeline."""
    given = {"to": "lerobot", **options}
    if given["to"] == "lerobot":
        given.setdefault("fps", FPS)
    return export(str(source), str(path), **given)


def lines(output: Path, name: str) -> list[dict[str, Any]]:
    """A JSON Lines file of meta/."""
    return [json.loads(line) for line in (output / "meta" / f"{name}.jsonl").read_text().splitlines()]


def assert_equal(found: Episode, wanted: Episode) -> None:
    """Asserts equal steps and metadata, wherever the metadata is in the tree."""
    assert found.steps.keys() == wanted.steps.keys()
    for path, column in wanted.steps.items():
        other = found.steps[path]
        if isinstance(column, EncodedImages):
            assert isinstance(other, EncodedImages)
            assert list(other) == list(column), path
        else:
            np.testing.assert_array_equal(other, column, path)
            assert other.dtype == column.dtype, path
    assert {path.rpartition("/")[2]: value for path, value in found.metadata.items()} == dict(wanted.metadata)
