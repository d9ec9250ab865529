"""Frames that files store as pixels become PNGs, a piece of an episode at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds_beam.formats.hdf5.options import Hdf5Options
from rlds_beam.formats.hdf5.source import Hdf5Source
from rlds_beam.formats.profiles import episodes
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader

FIELDS = "name: mine\nepisodes: file\nfields:\n  action: a\n  observation/s: a\n"


def read(directory: Path, image: str, raw_images: Any = "png") -> Any:
    """The images of the only episode, as pixels."""
    profile = directory / "profile.yaml"
    profile.write_text(f"{FIELDS}  observation/image: {image}\n")
    source = Hdf5Source.open(str(directory), options=Hdf5Options(profile=str(profile), raw_images=raw_images))
    (work,) = plan_ranges(source)
    (episode,) = EpisodeReader(source).read(work.split, work.segments[0])
    assert not episode.faults
    column = episode.steps["observation/image"]
    return column if isinstance(column, np.ndarray) else column.decode()


@pytest.mark.parametrize("chunks", [None, (1, 20, 24, 3), (4, 20, 24, 3), (13, 10, 24, 1)])
@pytest.mark.parametrize("rows", [(0, 13), (1, 13), (0, 12), (5, 11)])
def test_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: tuple[int, ...] | None, rows: tuple[int, int]
) -> None:
    h5py = pytest.importorskip("h5py")
    pixels = np.random.default_rng(0).integers(0, 255, (13, 20, 24, 3)).astype(np.uint8)
    start, stop = rows
    with h5py.File(tmp_path / "a.hdf5", "w") as root:
        root["a"] = np.ones((stop - start, 2))
        root.create_dataset("camera", data=pixels, chunks=chunks, compression="gzip" if chunks else None)
    for frames in (1, 3, 100):
        monkeypatch.setattr(episodes, "_PIECE", frames * 20 * 24 * 3)
        found = read(tmp_path, f'{{from: "camera[{start}:{stop}]", images: true}}')
        np.testing.assert_array_equal(found, pixels[start:stop])


@pytest.mark.parametrize("raw_images", ["png", "raw"])
def test_rows_of_bytes_without_an_encoding(tmp_path: Path, raw_images: str) -> None:
    """Black pixels at the end of a frame are no padding."""
    h5py = pytest.importorskip("h5py")
    pixels = np.random.default_rng(0).integers(0, 255, (5, 20, 24, 3)).astype(np.uint8)
    pixels[0, -1] = 0
    with h5py.File(tmp_path / "a.hdf5", "w") as root:
        root["a"] = np.ones((5, 2))
        camera = root.create_dataset("camera", (5,), h5py.vlen_dtype(np.uint8))
        for t, frame in enumerate(pixels):
            camera[t] = frame.reshape(-1)
    found = read(tmp_path, "{from: camera, images: true, raw_shapes: [[20, 24, 3]]}", raw_images)
    np.testing.assert_array_equal(found, pixels)
