"""Datasets for the tests of the page of `rlds-beam browse`."""

from __future__ import annotations

import dataclasses
import json
import zlib
from pathlib import Path

import lerobot_data
import numpy as np

from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.testing import make_episode, shard_paths, write_dataset

HOSTILE = (
    "<script>window.pwned = 1</script>",
    "<img src=x onerror=window.pwned=2>",
    "</textarea></style></bdi><svg onload=window.pwned=3>",
    "javascript:window.pwned=4",
    "\u202eright to left\u202c and \u2066isolates\u2069 and \u0000 \u0007 \x1b[31m",
    "Z\u0351\u0354\u035c\u0360algo" + "\u0301" * 300,
    "a" * 5000,
    "${window.pwned = 5} {{window.pwned = 6}} `${window.pwned = 7}`",
)
"""Texts that must be shown as text."""


def write_hostile(directory: Path) -> str:
    """Episodes with hostile texts in instructions, notes, metadata, and names of fields; two break rules."""
    episodes = []
    for i, text in enumerate(HOSTILE):
        length = 12 + i
        broken = {2: ["missing_is_last"], 5: ["non_finite"]}.get(i, [])
        pixels = np.random.default_rng(i).integers(0, 255, (length, 48, 64, 3), np.uint8)
        made = make_episode(
            length,
            seed=i,
            observation={"state": 4, "<b>bold": 2},
            action=3,
            breaks=broken,
            columns={
                "language_instruction": [text] * length,
                "observation/note": [f"{text[:80]} at {step}" for step in range(length)],
            },
            metadata={"file": text.encode(), "<i>name": text[:300].encode()},
        )
        images = encode_jpeg(pixels)
        if i == 1:
            images[4] = images[4][:200]
            images[5] = b"no image"
        steps = {**made.steps, "observation/<u>camera": lerobot_data.images(images, (48, 64, 3))}
        episodes.append(dataclasses.replace(made, steps=steps))
    return str(write_dataset(directory, episodes, name="hostile"))


def write_large_images(directory: Path, size: int = 20_000_000, steps: int = 6) -> str:
    """An episode whose PNG images have `size` bytes each."""
    column = lerobot_data.images([_png(size, 40 * step) for step in range(steps)], (1080, 1920, 3))
    made = make_episode(steps, observation={"state": 3}, columns={"observation/image": column})
    return str(write_dataset(directory, [made], name="large"))


def _png(size: int, shade: int) -> bytes:
    """A PNG of 1920 x 1080 pixels of one shade, with an unused chunk that makes it `size` bytes long."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    width, height = 1920, 1080
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    pixels = zlib.compress((b"\0" + bytes([shade]) * 3 * width) * height, 1)
    filler = np.random.default_rng(shade).bytes(size - len(pixels))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"tEXt", b"k\0" + filler)
        + chunk(b"IDAT", pixels)
        + chunk(b"IEND", b"")
    )


def write_videos(directory: Path) -> tuple[str, str]:
    """An RLDS dataset with two moving cameras, and the LeRobot dataset with videos that `convert` makes from it."""
    source, _ = lerobot_data.write_moving_data(directory / "data")
    output = directory / "lerobot"
    lerobot_data.convert_here(source, output, images="video", vcodec="h264", lerobot_version="3.0")
    return source, str(output)


def write_million(directory: Path, episodes: int = 1_000_000) -> tuple[str, str]:
    """A dataset of one short episode, again and again, and its table; returns their paths."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = write_dataset(directory, [make_episode(2, observation=(), action=())], name="many")
    (shard,) = shard_paths(path)
    record = shard.read_bytes()
    with shard.open("wb") as file:
        for _ in range(episodes // 1000):
            file.write(record * 1000)
    info = json.loads((path / "dataset_info.json").read_text())
    info["splits"][0].update(shardLengths=[str(episodes)], numBytes=str(shard.stat().st_size))
    (path / "dataset_info.json").write_text(json.dumps(info))
    numbers = np.arange(episodes)
    words = pa.array(["push the block", "open the drawer", "pick up the cup"])
    positions = numbers * len(record)
    table = pa.table(
        {
            "key": pa.array([f"many/1.0.0:train:00000@{position}" for position in positions.tolist()]),
            "split": pa.DictionaryArray.from_arrays(np.zeros(episodes, np.int32), ["train"]).cast(pa.string()),
            "shard": np.zeros(episodes, np.int64),
            "position": positions,
            "part": np.zeros(episodes, np.int64),
            "steps": numbers * 7919 % 1000 + 1,
            "return": np.sin(numbers),
            "rule": pa.nulls(episodes, pa.string()),
            "instruction": words.take(pa.array(numbers % 3)),
        }
    )
    pq.write_table(table, directory / "signals.parquet")
    return str(path), str(directory / "signals.parquet")
