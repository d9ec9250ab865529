"""Files that show an episode."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pytest
import simplejpeg

from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import MissingExtraError, UsageError
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.testing import make_episode
from rlds_beam.viewing.pictures import FileOptions, write_episode

STEPS = 12


def with_cameras(*sizes: tuple[int, int], damaged: int | None = None) -> Episode:
    """An episode whose cameras show a white image first, then a black one, and so on."""
    columns: dict[str, Any] = {}
    for i, (height, width) in enumerate(sizes):
        pixels = np.zeros((STEPS, height, width, 3), np.uint8)
        pixels[::2] = 255
        images = np.array(encode_jpeg(pixels), object)
        if damaged is not None:
            images[damaged] = b"damaged"
        columns[f"observation/camera_{i}"] = EncodedImages(images, (height, width, 3))
    return make_episode(STEPS, columns=columns)


def test_a_strip(tmp_path: Path) -> None:
    episode = with_cameras((32, 48), (32, 32))
    write_episode(episode, str(tmp_path / "strip.png"), FileOptions(frames=3, height=16))
    pixels = imagecodecs.png_decode((tmp_path / "strip.png").read_bytes())
    assert pixels.shape == (16 + 2 + 16, 3 * 24 + 2 * 2, 3)
    write_episode(episode, str(tmp_path / "strip.JPG"), FileOptions(frames=3, height=16, curves=True))
    pixels = simplejpeg.decode_jpeg((tmp_path / "strip.JPG").read_bytes())
    assert pixels.shape == (34 + 80 * 4 + 16, 480, 3)  # observation, action, reward, discount


def test_curves_with_unknown_and_huge_values(tmp_path: Path) -> None:
    columns = {
        "a": np.array([np.nan] * STEPS),
        "b": np.array([1.7e308, -1.7e308, np.inf] * 4),
        "c": np.arange(STEPS) > 5,
    }
    write_episode(make_episode(STEPS, columns=columns), str(tmp_path / "curves.png"), FileOptions())
    assert imagecodecs.png_decode((tmp_path / "curves.png").read_bytes()).shape == (80 * 7 + 16, 480, 3)
    with pytest.raises(UsageError, match="neither images nor numbers"):
        write_episode(make_episode(3).replace(steps={}), str(tmp_path / "none.png"), FileOptions())


@pytest.mark.parametrize("curves", [False, True])
def test_a_video(tmp_path: Path, curves: bool) -> None:
    av = pytest.importorskip("av")
    path = tmp_path / "clip.mp4"
    write_episode(
        with_cameras((33, 47), (33, 33), damaged=5), str(path), FileOptions(height=33, curves=curves, fps=12.5)
    )
    with av.open(str(path)) as container:
        (stream,) = container.streams
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        assert stream.average_rate == 12.5 and len(frames) == STEPS
    assert frames[0].shape == ((34 + 80 * 4) if curves else 34, 47 + 2 + 33 + 0, 3)
    assert frames[0][:30, :40].mean() > 240 and frames[1][:30, :40].mean() < 15
    assert 100 < frames[5][:30, :40].mean() < 220  # the placeholder
    write_episode(with_cameras((33, 47)), str(tmp_path / "again.mp4"), FileOptions(curves=curves))
    write_episode(with_cameras((33, 47)), str(tmp_path / "twice.mp4"), FileOptions(curves=curves))
    assert (tmp_path / "again.mp4").read_bytes() == (tmp_path / "twice.mp4").read_bytes()


def test_a_video_needs_images_or_curves(tmp_path: Path) -> None:
    pytest.importorskip("av")
    with pytest.raises(UsageError, match="--curves draws its numbers"):
        write_episode(make_episode(5), str(tmp_path / "clip.mp4"), FileOptions())
    write_episode(make_episode(5), str(tmp_path / "clip.mp4"), FileOptions(curves=True))
    assert (tmp_path / "clip.mp4").stat().st_size


def test_a_missing_package(tmp_path: Path) -> None:
    if importlib.util.find_spec("av") is not None:
        pytest.skip("av is installed")
    with pytest.raises(MissingExtraError, match=r"pip install '[\w.-]*\[lerobot\]"):
        write_episode(with_cameras((32, 32)), str(tmp_path / "clip.mp4"), FileOptions())
    assert not (tmp_path / "clip.mp4").exists()


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    episode = with_cameras((32, 32))
    with pytest.raises(UsageError, match=r"must end with \.png, \.jpg, \.jpeg or \.mp4"):
        write_episode(episode, str(tmp_path / "a.bmp"), FileOptions())
