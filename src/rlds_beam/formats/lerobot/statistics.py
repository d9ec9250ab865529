"""LeRobot's statistics of each episode and of the whole dataset.

    {feature: {min, max, mean, std, count, q01, q10, q50, q90, q99}}

Quantiles are those of `np.quantile` over all values, not means or bounds of episode quantiles. Image statistics are per
channel, in 0 to 1, from a sample of decoded frames.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from rlds_beam.connectors.statistics.episode_statistics import QUANTILES, LeafStatistics
from rlds_beam.episodes.episode import Column
from rlds_beam.errors import BadEpisode, Violation
from rlds_beam.images.codecs import decode_reduced
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.headers import UndecodableImageError
from rlds_beam.typing import Array

STATISTICS = ("min", "max", "mean", "std", *QUANTILES)
LEVELS = 256
_JPEG = b"\xff\xd8\xff"
_SIDE = 100
"""Minimum side of an image: larger JPEGs are decoded at 1/2, 1/4 or 1/8 of their size."""

_PIXELS = 4096
"""Minimum number of pixels to count: in larger images, only every second (third, ...) row and column counts."""

FRAMES_OF_A_SAMPLE, MAX_SAMPLES = 50, 4
"""Frames for each decoded one, and the maximum number of decoded frames per episode, in a dataset of many frames."""

MIN_FRAMES = 1000
"""A dataset of fewer frames has all of them decoded; one of more has at least about as many."""


def episodes_statistics(episodes: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The statistics of E episodes by feature, (E, len(STATISTICS), D) for D dimensions.

    Args:
      episodes: the columns of each episode, all with the same names: (T, ...), T > 0, of any length.
    """
    names = tuple(episodes[0])
    columns = [np.concatenate([episode[name] for episode in episodes]) for name in names]
    parts = [column.reshape(len(column), -1) for column in columns]
    values = np.concatenate(parts, axis=1, dtype=np.float64)
    lengths = np.array([len(episode[names[0]]) for episode in episodes])
    starts, count = np.cumsum(lengths) - lengths, lengths[:, None]
    mean = np.add.reduceat(values, starts) / count
    std = np.sqrt(np.add.reduceat(np.square(values - np.repeat(mean, lengths, axis=0)), starts) / count)
    ordered = np.full((len(lengths), values.shape[1], lengths.max()), np.nan)  # NaN sorts last
    ordered.transpose(0, 2, 1)[np.arange(lengths.max()) < count] = values
    ordered.sort(axis=2)
    ranks, shares = _ranks(count)
    picked = np.take_along_axis(ordered, ranks[:, None], axis=2).transpose(0, 2, 1)
    quantiles = _between(picked[:, 2:], shares[..., None])
    every = np.concatenate([picked[:, :2], mean[:, None], std[:, None], quantiles], axis=1)
    ends = np.cumsum([part.shape[1] for part in parts])
    return dict(zip(names, np.split(every, ends[:-1], axis=2), strict=True))


def _ranks(count: Array) -> tuple[Array, Array]:
    """The ranks of the minimum, the maximum, and the values below and above each of Q quantiles of N values.

    Args:
      count: N, (E, 1).

    Returns:
      The ranks, int64 (E, 2 + 2 * Q), and the share of the value above in each quantile, (E, Q).
    """
    places = np.array(list(QUANTILES.values())) * (count - 1)
    low = np.floor(places).astype(np.int64)
    ranks = np.concatenate([np.zeros_like(count), count - 1, low, np.minimum(low + 1, count - 1)], axis=1)
    return ranks, places - low


def _between(pairs: Array, shares: Array) -> Array:
    """Interpolates linearly between the values below each quantile and those above (axis 1), by the latter's share."""
    below, above = np.split(pairs, 2, axis=1)
    return cast(Array, below + (above - below) * shares)


def range_statistics(count: Array) -> Array:
    """The statistics of 0, 1, ..., n - 1, for each of E counts n: (E, len(STATISTICS))."""
    last = np.asarray(count, np.float64) - 1
    std = np.sqrt((np.square(last + 1) - 1) / 12)
    return np.stack([np.zeros_like(last), last, last / 2, std, *(q * last for q in QUANTILES.values())], axis=-1)


def histogram_statistics(histograms: Array, values: Array | None = None) -> Array:
    """The statistics of histograms (..., C, levels): (..., len(STATISTICS), C).

    Args:
      values: the value of each level, rising; 0 to 1 by default.
    """
    levels = histograms.shape[-1]
    rows = histograms.reshape(-1, levels)
    values, ends = np.arange(levels) / (levels - 1) if values is None else values, np.cumsum(rows, axis=1)
    total = ends[:, -1:]
    mean = (rows * values).sum(axis=1, keepdims=True) / total
    std = np.sqrt((rows * np.square(values - mean)).sum(axis=1, keepdims=True) / total)
    ranks, shares = _ranks(total)
    # The value at a rank is the first whose cumulative count exceeds it; the concatenated rows are one sorted list.
    before = np.cumsum(total, axis=0) - total
    at = (ends + before).reshape(-1).searchsorted(ranks + before, side="right")
    picked = values[at - levels * np.arange(len(rows))[:, None]]
    every = np.concatenate([picked[:, :2], mean, std, _between(picked[:, 2:], shares)], axis=1)
    return np.swapaxes(every.reshape(*histograms.shape[:-1], -1), -1, -2)


def leaf_statistics(leaf: LeafStatistics) -> Array:
    """The statistics of numbers: (len(STATISTICS), D)."""
    quantiles = leaf.distribution.quantiles(list(QUANTILES.values()))
    return np.stack([leaf.low, leaf.high, leaf.mean, leaf.std, *quantiles])


def to_json(statistics: Array, count: int, shape: Sequence[int]) -> dict[str, Any]:
    """A feature's entry in `stats.json`; each statistic has at least one axis.

    Args:
      statistics: the statistics, (len(STATISTICS), D).
      shape: the shape of each.
    """
    values = {name: row.reshape(shape).tolist() for name, row in zip(STATISTICS, statistics, strict=True)}
    return {**values, "count": [count]}


def samples_of_few(episodes: Iterable[int | None]) -> int:
    """The minimum of decoded frames per episode that adds up to `MIN_FRAMES`, from the episodes of each split."""
    counts = list(episodes)
    return 0 if None in counts else MIN_FRAMES // max(1, sum(count or 0 for count in counts))


def sample_count(length: int, before: int, samples: int | None = None, least: int = 0) -> int:
    """The number of frames of an episode to decode for image statistics.

    Args:
      length: the length of the episode.
      before: the number of frames of the range after the last episode with a decoded frame, and before this one;
        `FRAMES_OF_A_SAMPLE` at the start of the range, so that its first episode has one.
      samples: the number that the user asks for. By default, one frame in `FRAMES_OF_A_SAMPLE` is decoded, at most
        `MAX_SAMPLES` of an episode.
      least: the minimum by default, see `samples_of_few`.
    """
    if samples is not None:
        return min(length, samples)
    if length >= FRAMES_OF_A_SAMPLE:
        usual = min(MAX_SAMPLES, length // FRAMES_OF_A_SAMPLE)
    else:
        usual = int(before + length >= FRAMES_OF_A_SAMPLE)
    return max(usual, min(length, least))


@functools.lru_cache(maxsize=1024)
def sample_places(length: int, count: int) -> list[int]:
    """`count` frames of an episode, each in the middle of its part of the episode."""
    return [(2 * i + 1) * length // (2 * count) for i in range(count)]


def count_levels(images: Column, channels: int, path: str) -> Array:
    """The number of pixels with each value, int64 (channels, LEVELS); of 16-bit values, the upper 8 bits.

    Large images are sampled (`_SIDE`, `_PIXELS`).

    Raises:
      BadEpisode: an image is damaged.
    """
    counts = np.zeros((channels, LEVELS), np.int64)
    for image in _pixels(images, channels, path):
        pixels = (image >> 8).astype(np.uint8) if image.dtype == np.uint16 else image
        height, width, _ = pixels.shape
        step = max(1, math.isqrt(height * width // _PIXELS))
        for channel, values in enumerate(pixels[step // 2 :: step, step // 2 :: step].reshape(-1, channels).T):
            counts[channel] += np.bincount(values, minlength=LEVELS)
    return counts


def _pixels(images: Column, channels: int, path: str) -> Iterator[Array]:
    """The pixels of each image, [H, W, C]; large JPEGs are reduced."""
    if not isinstance(images, EncodedImages):
        yield from np.asarray(images)
    elif channels not in (1, 3) or not all(image.startswith(_JPEG) for image in images):
        yield from (image for _, some in images.parts(1, path) for image in some)
    else:
        for image in images:
            try:
                yield decode_reduced(image, _SIDE, _SIDE, channels=channels, min_factor=2)
            except UndecodableImageError as error:
                raise BadEpisode(Violation("undecodable_image", str(error), path)) from None


_MAX_EPISODES = 64
"""Episodes in a batch: each has a histogram for every camera."""

_MAX_VALUES = 1 << 19
"""Padded values in a batch."""


class StatisticsGatherer:
    """Computes statistics of one episode after another, in small batches; each result depends on its episode only."""

    def __init__(self, levels: Mapping[str, Array] | None = None) -> None:
        """Args: levels: the value of each level of a histogram, by image feature; 0 to 1 by default."""
        self._levels = levels or {}
        self._numbers: list[Mapping[str, Array]] = []
        self._histograms: list[Mapping[str, Array]] = []
        self._longest = 0
        self._made: dict[str, list[Array]] = {}
        self._images: dict[str, Array] = {}  # the image statistics of the last episode, (1, len(STATISTICS), C)

    def add(self, numbers: Mapping[str, Array], histograms: Mapping[str, Array]) -> None:
        """Adds an episode.

        Args:
          numbers: the values of each feature, (T, ...), T > 0.
          histograms: the histogram of each image feature, (C, LEVELS). If empty, the episode's image
            statistics are those of the episode before.
        """
        longest = max(self._longest, len(next(iter(numbers.values()))))
        width = sum(math.prod(values.shape[1:]) for values in numbers.values())
        count = len(self._numbers)
        if count == _MAX_EPISODES or (count + 1) * longest * width > _MAX_VALUES:
            self._end()
            longest = len(next(iter(numbers.values())))
        self._numbers.append(numbers)
        self._histograms.append(histograms)
        self._longest = longest

    def finish(self) -> dict[str, Array]:
        """The statistics of all episodes by feature, (E, len(STATISTICS), D); empty if there are no episodes."""
        self._end()
        return {name: np.concatenate(parts) for name, parts in self._made.items()}

    def _end(self) -> None:
        if self._numbers:
            by_feature = episodes_statistics(self._numbers)
            by_feature |= self._of_images()
            for name, values in by_feature.items():
                self._made.setdefault(name, []).append(values)
        self._numbers, self._histograms = [], []

    def _of_images(self) -> dict[str, Array]:
        """The image statistics of the batch; an episode without a histogram repeats those before."""
        given = [histograms for histograms in self._histograms if histograms]
        which = np.cumsum([bool(histograms) for histograms in self._histograms])
        for name in given[0] if given else ():
            own = histogram_statistics(np.stack([histograms[name] for histograms in given]), self._levels.get(name))
            before = self._images.get(name, own)[-1:]
            self._images[name] = np.concatenate([before, own])
        every = {name: rows[which] for name, rows in self._images.items()}
        self._images = {name: rows[-1:] for name, rows in self._images.items()}
        return every
