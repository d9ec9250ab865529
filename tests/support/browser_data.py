"""Datasets for the tests of the page of `rlds-beam browse`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import lerobot_data
import numpy as np

from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.testing import make_episode, write_dataset

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


def write_videos(directory: Path) -> tuple[str, str]:
    """An RLDS dataset with two moving cameras, and the LeRobot dataset with videos that `convert` makes from it."""
    source, _ = lerobot_data.write_moving_data(directory / "data")
    output = directory / "lerobot"
    lerobot_data.convert_here(source, output, images="video", vcodec="h264", lerobot_version="3.0")
    return source, str(output)
