"""Episodes of the example's point mass, seen by a camera, with an instruction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rlds_beam import EncodedImages, Episode
from rlds_beam.cli.commands.example import make_episodes
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.testing import write_dataset

SIDE = 96


def camera_episodes(count: int, broken: int = 0, seed: int = 0) -> Iterator[Episode]:
    """`make_episodes` with `observation/image` (JPEG, 96x96), and `language_instruction`."""
    for episode in make_episodes(count, broken=broken, seed=seed):
        goal = episode.steps["observation/goal"][0]
        images = np.full((len(episode), SIDE, SIDE, 3), (236, 239, 241), np.uint8)
        for image, position in zip(images, episode.steps["observation/position"], strict=True):
            for (x, y), radius, color in ((goal, 9, (76, 175, 80)), (position, 5, (26, 35, 126))):
                row, column = SIDE / 2 * (1 - y / 1.25), SIDE / 2 * (1 + x / 1.25)
                image[np.hypot(*(np.mgrid[:SIDE, :SIDE].T - (row, column)).T) < radius] = color
        corner = f"{'top' if goal[1] > 0 else 'bottom'} {'right' if goal[0] > 0 else 'left'}"
        text = f"push the point to the goal at the {corner}".encode()
        columns = {
            "observation/image": EncodedImages(objects(encode_jpeg(images, 95)), (SIDE, SIDE, 3)),
            "language_instruction": np.full(len(episode), text, object),
        }
        yield episode.with_columns(columns)


def write_camera_episodes(directory: Path, count: int, seed: int = 0) -> str:
    """Writes `camera_episodes` as a dataset of two shards; returns its directory."""
    return str(write_dataset(directory, camera_episodes(count, seed=seed), name="point_mass_camera", shards=2))
