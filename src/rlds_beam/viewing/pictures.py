"""Pictures of an episode: strips of its images, curves as pixels, and the files that show them."""

from __future__ import annotations

import os
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rlds_beam import storage
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError, needs
from rlds_beam.images.codecs import encode_jpeg, encode_png
from rlds_beam.images.thumbnails import (
    GAP,
    find_image,
    is_image,
    join_pictures,
    small_pixels,
    spread,
)
from rlds_beam.text import join_texts, printable
from rlds_beam.typing import Array
from rlds_beam.viewing.facts import Curve, find_curves


def find_cameras(episode: Episode) -> list[str]:
    """The paths of the step fields that hold images, sorted."""
    return sorted(path for path, column in episode.steps.items() if is_image(column))


def strip(episode: Episode, count: int, height: int) -> Array:
    """One picture of an episode: a row for each camera, a column for each of `count` steps.

    Returns:
      uint8 [H, W, 3]; all images of a row have `height` rows. Empty if the episode has no images.
    """
    steps = spread(len(episode), count)
    rows = []
    for path in find_cameras(episode) if steps else ():
        column = episode.steps[path]
        rows.append(join_pictures([small_pixels(find_image(column, step), height)[0] for step in steps], height))
    if not rows:
        return np.zeros((0, 0, 3), np.uint8)
    width = max(row.shape[1] for row in rows)
    padded = [np.pad(row, ((0, GAP), (0, width - row.shape[1]), (0, 0)), constant_values=255) for row in rows]
    return np.asarray(np.concatenate(padded)[:-GAP])


COLORS = ((59, 130, 246), (245, 158, 11), (16, 185, 129), (239, 68, 68), (139, 92, 246), (236, 72, 153), (20, 184, 166))
_CURSOR, _INK, _GRAY, _LINE = (220, 38, 38), (31, 35, 40), (89, 99, 110), (209, 217, 224)
_GUTTER, _RIGHT, _TITLE, _AXIS = 56, 16, 14, 16
"""Pixels beside a plot, above it, and below all of them."""
_MIN_LABELED = 240
"""The least width of a plot with names and axes."""


def draw_curves(curves: Sequence[Curve], height: int, width: int) -> Array:
    """Fields below each other as uint8 [H, width, 3], each `height` rows, and the steps at the bottom.

    Each has its name, and the names of its dimensions in their colors, which share the axis of values. Plots that are
    too narrow have only the lines.
    """
    if not curves:
        return np.zeros((0, width, 3), np.uint8)
    labeled = width >= _MIN_LABELED
    image = Image.new("RGB", (width, height * len(curves) + (_AXIS if labeled else 0)), "white")
    draw = ImageDraw.Draw(image)
    for i, curve in enumerate(curves):
        _draw_curve(draw, curve, i * height, height, width)
    last = len(curves[0].values) - 1
    for step in sorted({0, last // 2, last}) if labeled else ():
        anchor = {0: "la", last: "ra"}.get(step, "ma")
        place = _x_of(step, last + 1, width), height * len(curves) + 2
        draw.text(place, f"step {step:,}", _GRAY, ImageFont.load_default(10), anchor)
    return np.asarray(image)


def _x_of(step: float, steps: int, width: int) -> float:
    """The pixel column of a step."""
    left, right = (_GUTTER, width - _RIGHT) if width >= _MIN_LABELED else (0, width - 1)
    return left + step * (right - left) / max(1, steps - 1)


def _draw_curve(draw: ImageDraw.ImageDraw, curve: Curve, top: int, height: int, width: int) -> None:
    labeled, values, steps = width >= _MIN_LABELED, curve.values / 2, len(curve.values)  # half: a range may overflow
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
    first, last = top + (_TITLE if labeled else 4), top + height - 5
    left, right = round(_x_of(0, steps, width)), round(_x_of(steps - 1, steps, width))
    at = np.arange(left, right + 1)
    for i, column in enumerate(values.T):
        finite = np.isfinite(column)
        if finite.any():
            line = np.interp(np.linspace(0, steps - 1, len(at)), np.flatnonzero(finite), column[finite])
            rows = last - (line - low) / ((high - low) or 1.0) * (last - first)
            draw.line(list(zip(at.tolist(), rows.tolist(), strict=True)), COLORS[i % len(COLORS)])
    draw.line([(0, top + height - 1), (width, top + height - 1)], _LINE)
    if not labeled:
        return
    font = ImageFont.load_default(10)
    for value, row, anchor in ((high, first, "rt"), (low, last, "rb")):
        draw.text((left - 4, row), f"{2 * float(value):.4g}", _GRAY, font, anchor)
    x = left + draw.textlength(printable(curve.path, 60) + "  ", font)
    draw.text((left, top + 1), printable(curve.path, 60), _INK, font)
    for i, label in enumerate(curve.labels):
        text = f"{printable(label, 20)}  "
        if x + draw.textlength(text, font) > right:
            break
        draw.text((x, top + 1), text, COLORS[i % len(COLORS)], font)
        x += draw.textlength(text, font)


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
      OSError: the file cannot be written.
    """
    storage.write_bytes(path, WRITERS[kind_of_file(path)](episode, options))


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
            marked = plots.copy()
            marked[:, round(_x_of(step, steps, plots.shape[1]))] = _CURSOR
            frame = np.concatenate([frame, marked])
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
