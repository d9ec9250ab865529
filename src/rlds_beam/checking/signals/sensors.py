"""The signals of cameras and clocks.

Repeated images are found without decoding; the pixels are those of a few decoded images. The usual interval of
timestamps is the median of the episode's own, so the unit does not matter. Standard deviations are 1.4826 times the
median absolute deviation.

    timestamps    0    10    20    50    60        usual interval 10, 2 frames missing before step 3
"""

from __future__ import annotations

import contextlib
import functools
from typing import NamedTuple

import numpy as np

from rlds_beam.checking.signals.base import Measured, once, signal, statistics
from rlds_beam.checking.signals.episodes import Episodes, Layout
from rlds_beam.checking.signals.rows import Rows, median
from rlds_beam.checking.steps import MIN_STEPS, estimate_rate, runs
from rlds_beam.episodes.episode import Column
from rlds_beam.errors import BadEpisode, RldsBeamError
from rlds_beam.images.codecs import decode_image, decode_reduced
from rlds_beam.images.encoded_images import EncodedImages, StoredImages
from rlds_beam.images.headers import UndecodableImageError, read_image_header, read_pixel_format
from rlds_beam.images.video_frames import VideoFrames
from rlds_beam.typing import Array

_DARK = 16
"""Mean brightness below which an image is black (of 255). forge calls images below 32 underexposed."""
_CLIPPED, _CLIPPED_SHARE = 254, 0.2
"""An image is overexposed if this share of its pixels is this bright: forge's definition."""
_SIDE = 128
"""Decoded images are measured at about this many pixels per side, as in forge."""
_STILL = 0.01
"""The robot moves while an image repeats if a state changes by more than this share of its range in the episode."""
_MIN_FROZEN = 3
"""The shortest run of repeated images that counts as frozen: a camera slower than the loop has shorter ones."""
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


@signal(
    "Cameras",
    "share of steps",
    0.1,
    misses="a camera that hangs while the robot rests, fewer than three repeats, images encoded again",
)
def frozen_camera(episodes: Episodes) -> dict[str, Measured]:
    """Longest run of byte-identical images while the robot moves."""
    found = {}
    for camera, mask in _repeats(episodes).items():
        _, longest, first, stop = episodes.layout.find_runs(mask, _MIN_FROZEN)
        found[camera] = Measured(longest / episodes.layout.lengths, first - 1, stop)  # with the image that is repeated
    return found


@signal(
    "Cameras",
    "share of steps",
    0.15,
    remedy="a camera slower than the control loop repeats images: record at its rate",
    misses="repeats while the robot rests, images encoded again",
)
def repeated_images(episodes: Episodes) -> dict[str, Measured]:
    """Images equal to the one before while the robot moves."""
    found = {}
    for camera, mask in _repeats(episodes).items():
        _, _, first, stop = episodes.layout.find_runs(mask)
        found[camera] = Measured(episodes.share(mask), first - 1, stop)
    return found


@once
def _repeats(episodes: Episodes) -> dict[str, Array]:
    """Camera -> which images (N,) repeat the one before while the robot moves.

    A repeated image of a robot at rest is no defect: simulators draw the same one again. lerobot-doctor's issue 7 asks
    for this signal by bytes, because rules that compare pixels loosely find scenes in which little happens.
    """
    found = {}
    for camera, steps in episodes.repeats.items():
        found[camera] = mask = np.zeros(int(episodes.layout.lengths.sum()), bool)
        for start, repeated in zip(episodes.layout.starts.tolist(), steps, strict=True):
            mask[np.array(repeated, np.int64) + start] = True
        if mask.any():
            _drop_rests(mask, episodes)
    return found


def _drop_rests(mask: Array, episodes: Episodes) -> None:
    """Clears the runs of repeated images (N,) in which the robot stays where it was; none if no field says so.

    The whole run counts if a state moves away from its value at the repeated image by more than `_STILL`: a slow robot
    takes several steps for that, and one that works also pauses.
    """
    context, motions = episodes.context, episodes.motions
    fields = [motions[path] for path in context.states or context.actions if path in motions]
    if not fields:
        return
    edges = runs(mask)
    lengths = edges[:, 1] - edges[:, 0]
    at, base = np.flatnonzero(mask), np.repeat(edges[:, 0] - 1, lengths)
    episode = episodes.layout.find_episode(at)
    moved = np.zeros(len(at), bool)
    for motion in fields:
        limit = _STILL * (motion.high - motion.low)[:, episode]
        moved |= (np.abs(motion.values[:, at] - motion.values[:, base]) > limit).any(axis=0)
    moves = np.add.reduceat(moved.view(np.int8), np.cumsum(lengths) - lengths, dtype=np.int64) > 0
    mask[at[~np.repeat(moves, lengths)]] = False


@signal(
    "Cameras",
    "share of decoded images",
    0.1,
    remedy="the connector DropFields leaves out a camera that was off",
    misses="black images between those decoded, and dim ones",
    decodes=True,
)
def black_images(episodes: Episodes) -> dict[str, Array]:
    """Black images among those decoded."""
    return {camera: pixels[:, 0] for camera, pixels in episodes.pixels.items()}


@signal("Cameras", "share of decoded images", 0.1, misses="bright images between those decoded", decodes=True)
def overexposed_images(episodes: Episodes) -> dict[str, Array]:
    """Overexposed images among those decoded."""
    return {camera: pixels[:, 1] for camera, pixels in episodes.pixels.items()}


@statistics
def _sharpness(episodes: Episodes) -> dict[str, Array]:
    """The usual sharpness of each camera; NaN if all images are black or overexposed, which have no details."""
    return {
        f"#sharpness/{camera}": np.where((pixels[:, :2] == 1).any(axis=1), np.nan, pixels[:, 2])
        for camera, pixels in episodes.pixels.items()
    }


@signal(
    "Cameras",
    "times",
    5,
    misses="a camera that is always blurred, and blur by fast motion in a few images",
    needs="images with details",
    relative=True,
    decodes=True,
)
def blurred_images(rows: Rows) -> dict[str, Array]:
    """How many times less sharp than usual for this camera."""
    found = {}
    for camera in rows.context.cameras:
        sharpness = rows.numbers.get(f"#sharpness/{camera}")
        if sharpness is not None:
            usual = median(sharpness)
            with np.errstate(divide="ignore", invalid="ignore"):
                found[camera] = np.minimum(usual / sharpness, 1e6) if usual > 0 else sharpness * np.nan
    return found


def find_repeated(column: Column) -> list[int]:
    """The steps whose image has the same bytes as the one before."""
    if isinstance(column, StoredImages):
        starts, stops = column.places
        record = column.record
        sizes = [stop - start for start, stop in zip(starts, stops, strict=True)]
        return [
            t
            for t in range(1, len(sizes))
            if sizes[t] == sizes[t - 1] and record[starts[t] : stops[t]] == record[starts[t - 1] : stops[t - 1]]
        ]
    if isinstance(column, EncodedImages):
        data = _digests(column) if isinstance(column, VideoFrames) else column.data.tolist()
        return [t for t in range(1, len(data)) if data[t] == data[t - 1] is not None]
    flat = column.reshape(len(column), -1)
    few = flat[:, :: max(1, flat.shape[1] // 64)]  # almost all images differ here already
    alike = np.flatnonzero((few[1:] == few[:-1]).all(axis=1)) + 1
    return [int(t) for t in alike if np.array_equal(flat[t], flat[t - 1])]


def _digests(column: VideoFrames) -> list[bytes | None]:
    """A digest of each frame's pixels, which need not be encoded for that; None from where the video is damaged."""
    import xxhash

    digests: list[bytes | None] = [None] * len(column)
    with contextlib.suppress(BadEpisode):
        for step, image in column.pixels():
            digests[step] = xxhash.xxh3_128_digest(image.data)
    return digests


class Pixels(NamedTuple):
    """The pixels of an image in numbers.

    Attributes:
      black, overexposed: whether it is.
      sharpness: the variance of its Laplacian (Pech-Pacheco et al., 2000: Diatom autofocusing in brightfield
        microscopy).
    """

    black: bool
    overexposed: bool
    sharpness: float


def sample_images(column: Column, count: int) -> list[Pixels]:
    """The pixels of up to `count` evenly spaced images; damaged ones are skipped."""
    places = np.unique(np.linspace(0, len(column) - 1, min(count, len(column))).round().astype(int))
    images = (_image(column, int(t)) for t in places)
    return [measure_image(image) for image in images if image is not None]


def is_uniform(column: Column) -> bool:
    """Whether the first image has one color only: padding in place of a camera that the robot does not have."""
    if isinstance(column, VideoFrames):
        image = _image(column, 0)
        return image is not None and _has_one_color(image)
    if isinstance(column, EncodedImages):
        return _is_uniform(column.image(0), column.shape[-1])
    return bool(np.ptp(column[0]) == 0)


@functools.lru_cache(maxsize=16)  # padding is the same in all episodes
def _is_uniform(data: bytes, channels: int | None) -> bool:
    image = _decode(data, channels)
    return image is not None and _has_one_color(image)


def _has_one_color(image: Array) -> bool:
    return bool((np.ptp(image, axis=(0, 1)) <= 2).all())


def _image(column: Column, step: int) -> Array | None:
    if isinstance(column, VideoFrames):
        with contextlib.suppress(BadEpisode):
            frame: Array = column[[step]].decode()[0]
            return frame
        return None
    if isinstance(column, EncodedImages):
        return _decode(column.image(step), column.shape[-1])
    image: Array = column[step]
    return image


def _decode(data: bytes, channels: int | None) -> Array | None:
    try:
        if not data.startswith(b"\xff\xd8\xff"):
            return decode_image(data, channels, "uint8")
        height, width = read_image_header(data)
        side = min(height, width, _SIDE)
        return decode_reduced(data, side, side, channels=read_pixel_format(data).channels)
    except (UndecodableImageError, RldsBeamError):
        return None


def measure_image(image: Array) -> Pixels:
    """Measures a uint8 image [H, W, C]."""
    stride = max(1, min(image.shape[:2]) // _SIDE)
    small = image[::stride, ::stride].astype(np.float32)
    gray = small[..., :3] @ _LUMA if small.shape[2] >= 3 else small[..., 0]
    middle = gray[1:-1, 1:-1]
    laplacian = gray[:-2, 1:-1] + gray[2:, 1:-1] + gray[1:-1, :-2] + gray[1:-1, 2:] - 4 * middle
    return Pixels(
        bool(gray.mean() < _DARK),
        bool((gray >= _CLIPPED).mean() > _CLIPPED_SHARE),
        float(laplacian.var()) if laplacian.size else 0.0,
    )


_GAP, _GAP_DEVIATIONS = 1.5, 5.0
"""A frame is missing after this many usual intervals, lerobot-doctor's definition (checks/temporal.py), if the interval
is also this many standard deviations longer: jitter makes long intervals and loses nothing."""


class _Clock(NamedTuple):
    """A field of timestamps of E episodes.

    Attributes:
      gaps: the time since the step before (N,).
      known: whether it is a number (N,); it is not at the first step of an episode.
      counts: the number of known ones (E,).
      usual: the usual interval (E,); NaN if there are too few, or time stands still.
      ratios: `gaps / usual` (N,); 1 where it is unknown.
    """

    gaps: Array
    known: Array
    counts: Array
    usual: Array
    ratios: Array


@once
def _clocks(episodes: Episodes) -> dict[str, _Clock]:
    layout, clocks = episodes.layout, {}
    for path in episodes.context.clocks:
        times = episodes.columns[path]
        if not isinstance(times, np.ndarray) or times.size != len(times):
            continue
        gaps = np.zeros(len(times))
        gaps[1:] = np.diff(times.ravel().astype(np.int64 if times.dtype.kind in "iu" else np.float64))
        inner = np.ones(len(times), bool)
        inner[layout.starts] = False
        known = inner & np.isfinite(gaps)
        counts = layout.sum(known)
        usual = _medians(gaps, known, layout, counts)
        usual = np.where((counts + 1 >= MIN_STEPS) & (usual > 0), usual, np.nan)
        with np.errstate(invalid="ignore", over="ignore"):
            ratios = np.where(known & ~np.isnan(layout.spread(usual)), gaps / layout.spread(usual), 1.0)
        clocks[path] = _Clock(gaps, known, counts, usual, ratios)
    return clocks


def _medians(gaps: Array, known: Array, layout: Layout, counts: Array) -> Array:
    order = np.lexsort((gaps, ~known, layout.spread(np.arange(len(layout.starts)))))  # known gaps first, ascending
    middle = layout.starts + np.maximum(counts - 1, 0) // 2
    return np.where(counts > 0, gaps[order][middle], np.nan)


@signal(
    "Time",
    "share of frames",
    0.0,
    remedy="lost frames cannot be restored",
    misses="single frames lost in strong jitter (a fifth of the interval), timestamps written by index",
)
def dropped_frames(episodes: Episodes) -> dict[str, Measured]:
    """Frames missing between timestamps."""
    found, layout = {}, episodes.layout
    for path, clock in _clocks(episodes).items():
        deviation = 1.4826 * _medians(np.abs(clock.ratios - 1), clock.known, layout, clock.counts)
        longest = layout.spread(np.maximum(_GAP, 1 + _GAP_DEVIATIONS * deviation))
        missing = np.where(clock.ratios > longest, np.rint(clock.ratios) - 1, 0.0)
        lost = layout.sum(missing)
        share = np.where(np.isnan(clock.usual), np.nan, lost / (clock.counts + 1 + lost))
        found[path] = Measured(share, np.where(lost > 0, layout.find_largest(missing[None])[0], np.nan))
    return found


@signal("Time", "ratio", 0.1, misses="timestamps written by index, which have none")
def jitter(episodes: Episodes) -> dict[str, Array]:
    """Standard deviation of the time between steps, over its median."""
    found, layout = {}, episodes.layout
    for path, clock in _clocks(episodes).items():
        regular = clock.known & (clock.ratios > 0) & (clock.ratios <= _GAP)
        squares = layout.sum(np.where(regular, np.square(clock.ratios - 1), 0.0))
        deviation = np.sqrt(squares / np.maximum(layout.sum(regular), 1))
        found[path] = np.where(np.isnan(clock.usual), np.nan, deviation)
    return found


@signal("Time", "share of steps", 0.0, misses="a clock that jumps forward: see `dropped_frames`")
def time_reversals(episodes: Episodes) -> dict[str, Measured]:
    """Steps whose timestamp does not increase."""
    found, layout = {}, episodes.layout
    for path, clock in _clocks(episodes).items():
        back = clock.known & (clock.gaps <= 0)
        share = np.where(clock.counts > 0, layout.sum(back) / np.maximum(clock.counts, 1), np.nan)
        found[path] = Measured(share, np.where(layout.sum(back) > 0, layout.find_largest(back[None])[0], np.nan))
    return found


@statistics
def _intervals(episodes: Episodes) -> dict[str, Array]:
    return {f"#interval/{path}": clock.usual for path, clock in _clocks(episodes).items()}


@signal(
    "Time",
    "ratio",
    0.1,
    remedy="declare the right rate, or resample by the timestamps (Resample)",
    misses="differences up to a tenth",
    relative=True,
)
def rate_mismatch(rows: Rows) -> dict[str, Array]:
    """Difference between the rate of the timestamps and the declared (or usual) rate."""
    found, fps = {}, rows.context.fps
    for path in rows.context.clocks:
        interval = rows.numbers.get(f"#interval/{path}")
        if interval is not None and not path.endswith("frame_index"):
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = estimate_rate(interval, fps) / fps if fps else median(interval) / interval
            found[path] = np.abs(ratio - 1)
    return found
