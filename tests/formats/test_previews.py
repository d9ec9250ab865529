"""The preview images of RLDS and LeRobot datasets: the same for any number of workers, and never a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from exchanging import export, rich_dataset, rich_episode

import rlds_beam
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.output.preview import PREVIEW, join_previews, make_strip
from rlds_beam.testing import make_episode, write_dataset

LINK = f"]({PREVIEW})"
OUTPUTS: list[dict[str, Any]] = [
    {"to": "rlds"},
    {"to": "rlds", "format": "array_record"},
    {"to": "lerobot", "fps": 10},
    {"to": "lerobot", "fps": 10, "images": "video"},
    {"to": "lerobot", "fps": 10, "lerobot_version": "2.1"},
]


def needed(options: dict[str, Any]) -> None:
    if options.get("images") == "video":
        pytest.importorskip("av")
    if options.get("format") == "array_record":
        pytest.importorskip("array_record")


@pytest.mark.parametrize("options", OUTPUTS, ids=str)
def test_the_card_shows_frames(options: dict[str, Any], tmp_path: Path) -> None:
    needed(options)
    data, _ = rich_dataset(tmp_path / "data")
    rlds_beam.convert(data, tmp_path / "out", shards=2, **options)
    pixels = simplejpeg.decode_jpeg((tmp_path / "out" / PREVIEW).read_bytes())
    assert pixels.shape[0] == 2 * 80 + 2  # a row for each range: images of 16 rows, enlarged five times
    assert LINK in (tmp_path / "out/README.md").read_text()
    again = {"shards": 2, "overwrite": True, **options}
    rlds_beam.convert(write_dataset(tmp_path / "none", [make_episode(5)]), tmp_path / "out", **again)
    assert not (tmp_path / "out" / PREVIEW).exists()
    assert LINK not in (tmp_path / "out/README.md").read_text()


def test_workers_do_not_matter(tmp_path: Path) -> None:
    data, _ = rich_dataset(tmp_path / "data")
    pictures = []
    for number, options in enumerate(({"to": "rlds"}, {"to": "lerobot", "fps": 10}, {"to": "rlds", "workers": 2})):
        rlds_beam.convert(data, tmp_path / str(number), shards=3, **options)
        pictures.append((tmp_path / str(number) / PREVIEW).read_bytes())
    assert pictures[0] == pictures[1] == pictures[2]


def test_a_damaged_image_is_no_failure(tmp_path: Path) -> None:
    made = rich_episode(5, 0, terminal=True)
    images = made.steps["observation/image"]
    holes = np.array([image[: len(image) // 2] + image[-2:] for image in images], object)
    bad = made.replace(steps={**made.steps, "observation/image": EncodedImages(holes, images.shape)})
    data = write_dataset(tmp_path / "data", [bad])
    export(data, tmp_path / "out", "rlds")
    assert simplejpeg.decode_jpeg((tmp_path / "out" / PREVIEW).read_bytes()).shape[0] == 96


def test_parts() -> None:
    assert (
        make_strip([])
        == make_strip([np.zeros((0, 9, 9, 3), np.uint8)])
        == join_previews([])
        == join_previews([b""])
        == b""
    )
    depth = np.arange(3 * 20 * 30, dtype=np.uint16).reshape(3, 20, 30)
    part = make_strip([depth, np.zeros((3, 20, 10, 3), np.uint8)])
    assert simplejpeg.decode_jpeg(join_previews([b"", part, part])).shape == (2 * (2 * 80 + 2) + 2, 3 * 120 + 2 * 2, 3)
