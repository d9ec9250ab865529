"""Frames of videos by number: the same pixels as when the whole video is decoded."""

from __future__ import annotations

import functools
import os
import pickle
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.errors import BadEpisode
from rlds_beam.formats.lerobot.videos import DepthEncoding, Encoding, VideoFile
from rlds_beam.images import videos
from rlds_beam.images.resizing import edit_images
from rlds_beam.images.video_frames import Depth, VideoFrames, color_pixels, video_frames
from rlds_beam.images.videos import Video

av = pytest.importorskip("av")

HEIGHT, WIDTH, COUNT, FPS = 48, 64, 45, 10
KINDS = ("av1", "h264", "h264 long", "depth", "mpeg4", "late")


def images() -> Iterator[Any]:
    rng = np.random.default_rng(0)
    tiles = rng.integers(0, 255, (HEIGHT // 6 + 1, WIDTH // 6 + 1, 3), np.uint8).repeat(6, 0).repeat(6, 1)
    for i in range(COUNT):
        yield np.roll(tiles[:HEIGHT, :WIDTH], 2 * i, 1) // 2 + rng.integers(0, 9, (HEIGHT, WIDTH, 3), np.uint8)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("videos")
    encodings = {
        "av1": Encoding(),
        "h264": Encoding("h264", 30, 2, "medium"),
        "depth": DepthEncoding(Depth()),
        "h264 long": Encoding("h264", 30, 20, "medium"),
    }
    for name, encoding in encodings.items():
        video = VideoFile(str(path / name), encoding, FPS, HEIGHT, WIDTH)
        video.add((image[..., 0].astype(np.uint16) * 16 for image in images()) if name == "depth" else images(), name)
        video.commit()
    other(path / "mpeg4", "mpeg4", {"g": "9", "bf": "2"})
    other(path / "late", "libx264", {"g": "9", "bf": "2"}, first=7)
    return path


def other(path: Path, encoder: str, options: dict[str, str], first: int = 0) -> None:
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream(encoder, FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, FPS)
        for i, image in enumerate(images()):
            frame = av.VideoFrame.from_ndarray(image, "rgb24")
            frame.pts = first + i
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def column(path: Path, start: float = 0.0, count: int = COUNT) -> VideoFrames:
    if path.name == "depth":
        return video_frames(str(path), start, FPS, count, "x", (HEIGHT, WIDTH, 1), "uint16", "png", scale=Depth())
    return video_frames(str(path), start, FPS, count, "x", (HEIGHT, WIDTH, 3), "uint8", "png")


@functools.cache
def decoded(path: Path) -> Any:
    """All frames, decoded in order by PyAV."""
    convert = Depth().of_frame if path.name == "depth" else color_pixels
    with av.open(str(path)) as container:
        return np.stack([convert(frame) for frame in container.decode(container.streams.video[0])])


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_those_of_the_whole_video(directory, kind):
    path = directory / kind
    first = {"late": 7}.get(kind, 0)
    frames = column(path, first / FPS)
    np.testing.assert_array_equal(frames.decode(), decoded(path))
    np.testing.assert_array_equal(frames.with_data(frames.data).decode(), decoded(path))  # PNGs
    rng = np.random.default_rng(1)
    for _ in range(20):
        numbers = rng.integers(0, COUNT, rng.integers(1, 8))
        np.testing.assert_array_equal(frames[numbers].decode(), decoded(path)[numbers])
    later = column(path, (first + 13) / FPS, 9)
    np.testing.assert_array_equal(later.decode(), decoded(path)[13:22])
    assert later.image(3) == frames.data[16]


@given(numbers=st.lists(st.integers(0, COUNT - 1), max_size=8), kind=st.sampled_from(KINDS))
def test_any_frames(directory, numbers, kind):
    video = Video.probe(str(directory / kind))
    wanted = np.unique(np.array(numbers, np.int64))
    found = dict(video.decode(wanted))
    assert sorted(found) == wanted.tolist()
    convert = Depth().of_frame if kind == "depth" else color_pixels
    for number, frame in found.items():
        np.testing.assert_array_equal(convert(frame), decoded(directory / kind)[number])


def test_a_column_is_picklable_and_checked_without_decoding(directory, monkeypatch):
    frames = column(directory / "av1")[3:20:4]
    again = pickle.loads(pickle.dumps(frames))
    np.testing.assert_array_equal(again.decode(), decoded(directory / "av1")[3:20:4])
    monkeypatch.setattr(Video, "decode", None)
    assert not again.check(1 << 20, "x")
    (large,) = again.check(100, "x")
    assert large.rule == "image_too_large" and "48x64 pixels" in large.detail
    assert len(again[again.numbers > 5]) == 4
    assert len(column(directory / "av1", count=0)) == 0
    assert column(directory / "av1", count=0).decode().shape == (0, HEIGHT, WIDTH, 3)


def test_edits(directory):
    frames = column(directory / "h264 long")
    edited = edit_images(frames, inverted, "x", encoding="png")
    wanted = inverted(decoded(directory / "h264 long"))
    np.testing.assert_array_equal(edited.decode(), wanted)
    np.testing.assert_array_equal(edited[[7, 7, 3]].decode(), wanted[[7, 7, 3]])


def inverted(pixels: Any) -> Any:
    return 255 - pixels


def test_a_changed_file_is_an_error(directory, tmp_path):
    path = tmp_path / "video.mp4"
    path.write_bytes((directory / "h264").read_bytes())
    frames = column(path)
    content = bytearray(path.read_bytes())
    place = int(frames.videos[0].packets["offset"][20]) + 9
    content[place] ^= 255
    path.write_bytes(content)
    np.testing.assert_array_equal(frames[:9].decode(), decoded(directory / "h264")[:9])
    with pytest.raises(BadEpisode, match=r"video\.mp4 cannot be read: it has changed"):
        frames.decode()
    path.write_bytes((directory / "av1").read_bytes())
    with pytest.raises(BadEpisode, match=r"video\.mp4 cannot be read: it has changed"):
        frames.decode()
    os.remove(path)
    with pytest.raises(BadEpisode, match=r"video\.mp4 cannot be read: No such file or directory$"):
        frames.decode()


def test_what_is_checked_before_decoding(directory, tmp_path, monkeypatch):
    with pytest.raises(BadEpisode, match=r"has 45 frames from 0.0 s on, but the episode has 46"):
        column(directory / "av1", count=COUNT + 1)
    with pytest.raises(BadEpisode, match=r"has 5 frames from 4.0 s on"):
        column(directory / "av1", 4.0, 6)
    with pytest.raises(BadEpisode, match=r"has a frame at 0.200 s, but at 5 fps it is due at 0.400 s"):
        video_frames(str(directory / "av1"), 0.0, 5, 9, "x", (None, None, 3), "uint8", "png")
    with pytest.raises(BadEpisode, match=r"[Nn]o such file"):
        column(directory / "none")
    content = (directory / "av1").read_bytes()
    (tmp_path / "short").write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(BadEpisode, match=r"frames from 0.0 s on"):
        column(tmp_path / "short")
    assert len(column(tmp_path / "short", count=20).data) == 20
    with pytest.raises(BadEpisode, match="12 bits of gray"):
        video_frames(str(directory / "depth"), 0, FPS, 3, "x", (HEIGHT, WIDTH, 3), "uint8", "png")
    with pytest.raises(BadEpisode, match="depth maps have 12 bits"):
        video_frames(str(directory / "av1"), 0, FPS, 3, "x", (HEIGHT, WIDTH, 1), "uint16", "png", scale=Depth())
    videos._scan.cache_clear()
    monkeypatch.setattr(videos.storage, "size", lambda path: 10)
    with pytest.raises(BadEpisode, match="more packets than it has bytes"):
        column(directory / "av1")


def test_a_frame_that_ffmpeg_guesses_is_an_error(directory, tmp_path):
    """FFmpeg fills in damaged blocks, and says so only in a flag of the frame."""
    whole, packets = (directory / "h264").read_bytes(), Video.probe(str(directory / "h264")).packets
    guessed = 0
    for middle in (packets["offset"] + packets["size"] // 2)[:10].tolist():
        path = tmp_path / f"{middle}"
        path.write_bytes(whole[:middle] + b"\xff" * 8 + whole[middle + 8 :])
        try:
            with av.open(str(path)) as container:
                guesses = any(frame.is_corrupt for frame in container.decode(video=0))
        except av.FFmpegError:
            continue
        if guesses:
            guessed += 1
            with pytest.raises(BadEpisode, match="a frame is damaged"):
                column(path).stack()
    assert guessed
