"""Files that show one episode: a strip of pictures, or a video."""

from __future__ import annotations

import os
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError, needs
from rlds_beam.images.codecs import encode_jpeg, encode_png
from rlds_beam.images.thumbnails import find_image, join_pictures, small_pixels
from rlds_beam.text import join_texts
from rlds_beam.typing import Array
from rlds_beam.viewing.facts import find_curves
from rlds_beam.viewing.pictures import draw_curves, find_cameras, strip, with_cursor

DEFAULT_FPS = 10.0
"""The rate of a video if the dataset says none."""

_STRIP_HEIGHT, _VIDEO_HEIGHT, _PLOT_HEIGHT = 128, 256, 80
_MAX_PLOTS = 8
_MIN_WIDTH_PIXELS = 480
"""Pixels of a plot without pictures."""


class FileOptions(NamedTuple):
    """Options for drawing an episode.

    Attributes:
      frames: the number of pictures of each camera in a strip.
      height: rows of a picture; None for the default of the kind of file.
      curves: whether curves are drawn beneath the pictures.
      fps: frames per second of a video; None for 10.
      names: the names of the values of fields, by path.
    """

    frames: int = 8
    height: int | None = None
    curves: bool = False
    fps: float | None = None
    names: Mapping[str, Sequence[str]] = types.MappingProxyType({})


def kind_of_file(path: str) -> str:
    """The ending of a path in `WRITERS`. Raises UsageError if there is no such kind of file."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in WRITERS:
        raise UsageError(f"--output={path}: its name must end with {join_texts([*WRITERS]).replace(' and ', ' or ')}")
    return ending


def write_episode(episode: Episode, path: str, options: FileOptions) -> None:
    """Writes an episode to a file, of the kind that its name says.

    Raises:
      UsageError: the kind of file is unknown, or the episode has nothing to show.
      MissingExtraError: a package for this kind of file is missing.
      RldsBeamError: the file cannot be written.
    """
    storage.write_given(path, WRITERS[kind_of_file(path)](episode, options), "--output")


def _png(episode: Episode, options: FileOptions) -> bytes:
    return encode_png(_strip(episode, options)[None])[0]


def _jpeg(episode: Episode, options: FileOptions) -> bytes:
    return encode_jpeg(_strip(episode, options)[None])[0]


def _strip(episode: Episode, options: FileOptions) -> Array:
    """The strips of all cameras, above curves if wanted."""
    height = options.height or _STRIP_HEIGHT
    pixels = strip(episode, options.frames, height)
    if pixels.size and not options.curves:
        return pixels
    plots = _plots(episode, max(pixels.shape[1], _MIN_WIDTH_PIXELS), options)
    if not pixels.size and not plots.size:
        raise UsageError(f"{episode.key} has neither images nor numbers to draw")
    if not pixels.size:
        return plots
    wide = np.pad(pixels, ((0, 0), (0, plots.shape[1] - pixels.shape[1]), (0, 0)), constant_values=255)
    return np.concatenate([wide, plots])


def _video(episode: Episode, options: FileOptions) -> bytes:
    """An H.264 video of all cameras side by side."""
    with needs("lerobot", "writing videos needs PyAV"):
        import av  # noqa: F401
    from rlds_beam.formats.lerobot.videos import Encoding, VideoFile

    frames = _frames(episode, options)
    first = next(frames)
    rate = Fraction(options.fps or DEFAULT_FPS).limit_denominator(1000)
    encoding = Encoding("h264", crf=20, gop=30, preset="medium")

    def every() -> Iterator[Array]:
        yield first
        yield from frames

    with tempfile.TemporaryDirectory(prefix="rlds-beam-") as directory:
        path, height, width = os.path.join(directory, "clip.mp4"), first.shape[0], first.shape[1]
        with VideoFile(path, encoding, rate, height, width) as video:
            video.add(every(), episode.key)
            return video.content()


def _frames(episode: Episode, options: FileOptions) -> Iterator[Array]:
    """The frames of a video; height and width are even, as the encoder requires."""
    height, cameras, steps = options.height or _VIDEO_HEIGHT, find_cameras(episode), len(episode)
    if not steps or not (cameras or options.curves):
        raise UsageError(f"{episode.key} has no images to show; --curves draws its numbers")
    size: tuple[int, int] | None = None
    plots: Array | None = None
    for step in range(steps):
        images = [small_pixels(find_image(episode.steps[path], step), height)[0] for path in cameras]
        frame = join_pictures(images, height) if images else np.zeros((0, _MIN_WIDTH_PIXELS, 3), np.uint8)
        if size is None:
            size = frame.shape[0], frame.shape[1]
            plots = _plots(episode, size[1], options) if options.curves else None
        frame = frame[: size[0], : size[1]]  # a camera whose images have several sizes
        frame = np.pad(frame, ((0, size[0] - frame.shape[0]), (0, size[1] - frame.shape[1]), (0, 0)))
        if plots is not None:
            frame = np.concatenate([frame, with_cursor(plots, step, steps)])
        yield np.pad(frame, ((0, len(frame) % 2), (0, frame.shape[1] % 2), (0, 0)), mode="edge")


def _plots(episode: Episode, width: int, options: FileOptions) -> Array:
    """The first fields that change, as curves."""
    curves = [curve for curve in find_curves(episode, names=options.names) if not curve.is_embedding]
    changing = [curve for curve in curves if (curve.values != curve.values[:1]).any()]
    return draw_curves(changing[:_MAX_PLOTS], _PLOT_HEIGHT, width)


WRITERS: dict[str, Callable[[Episode, FileOptions], bytes]] = {
    ".png": _png,
    ".jpg": _jpeg,
    ".jpeg": _jpeg,
    ".mp4": _video,
}
"""The ending of a file -> what makes its content."""
