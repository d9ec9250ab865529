"""The statistics of LeRobot: of each episode, and of the whole dataset.

    {feature: {min, max, mean, std, count, q01, q10, q50, q90, q99}}

Quantiles are those of `np.quantile`, of all values: not means or bounds of the quantiles of episodes. Images are 0 to
1, channel by channel, of the frames that were decoded for it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from rlds_beam.connectors.statistics import QUANTILES, LeafStatistics
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.images import EncodedImages
from rlds_beam.episodes.violations import BadEpisode, Violation

Array = np.ndarray[Any, Any]

STATISTICS = ("min", "max", "mean", "std", *QUANTILES)
LEVELS = 256
_JPEG = b"\xff\xd8\xff"
_LARGE, _SMALLER = 200, 100
"""JPEGs with a side of so many pixels are decoded at a fraction of their size, with sides of so many at least."""


def episode_statistics(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Of the numbers of one episode: by feature, (len(STATISTICS), D) of its D dimensions.

    Args:
      columns: (T, ...), T > 0.
    """
    flat = [np.asarray(column).reshape(len(column), -1) for column in columns.values()]
    ordered = np.concatenate(flat, axis=1, dtype=np.float64)
    mean, std = ordered.mean(axis=0), ordered.std(axis=0)
    ordered.sort(axis=0)
    quantiles = [_quantile(ordered, q) for q in QUANTILES.values()]
    every = np.stack([ordered[0], ordered[-1], mean, std, *quantiles])
    ends = np.cumsum([part.shape[1] for part in flat])
    return dict(zip(columns, np.split(every, ends[:-1], axis=1), strict=True))


def _quantile(ordered: Array, q: float) -> Array:
    """Of sorted values (T, D), with linear interpolation."""
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return cast(Array, ordered[low] + (ordered[high] - ordered[low]) * (place - low))


def counted_statistics(values: Array, counts: Array) -> Array:
    """Of sorted values (N,), each of which there are so many: (len(STATISTICS),)."""
    there = counts > 0
    values, counts = np.asarray(values, np.float64)[there], counts[there]
    ends = np.cumsum(counts)
    total = ends[-1]
    mean = (values * counts).sum() / total
    std = math.sqrt((counts * np.square(values - mean)).sum() / total)
    places = np.array(list(QUANTILES.values())) * (total - 1)
    low = np.floor(places).astype(np.int64)
    below = values[np.searchsorted(ends, low, side="right")]
    above = values[np.searchsorted(ends, np.minimum(low + 1, total - 1), side="right")]
    return np.array([values[0], values[-1], mean, std, *(below + (above - below) * (places - low))])


def range_statistics(count: int) -> Array:
    """Of 0, 1, ..., count - 1: (len(STATISTICS),)."""
    last = count - 1
    return np.array([0, last, last / 2, math.sqrt((count**2 - 1) / 12), *(q * last for q in QUANTILES.values())])


def image_statistics(histogram: Array, levels: int = LEVELS) -> Array:
    """Of a histogram (C, levels): (len(STATISTICS), C), in 0 to 1."""
    values, ends = np.arange(levels) / (levels - 1), np.cumsum(histogram, axis=1)
    total = ends[:, -1:]  # of each channel
    mean = (histogram @ values)[:, None] / total
    std = np.sqrt((histogram * np.square(values - mean)).sum(axis=1) / total[:, 0])
    places = np.array(list(QUANTILES.values())) * (total - 1)
    low = np.floor(places).astype(np.int64)
    # The value of a rank is the first whose end is beyond it.
    ranks = np.concatenate([np.zeros_like(total), total - 1, low, np.minimum(low + 1, total - 1)], axis=1)
    found = values[[own.searchsorted(rank, side="right") for own, rank in zip(ends, ranks, strict=True)]]
    below, above = found[:, 2 : 2 + len(QUANTILES)], found[:, 2 + len(QUANTILES) :]
    return np.stack([*found[:, :2].T, mean[:, 0], std, *(below + (above - below) * (places - low)).T])


def leaf_statistics(leaf: LeafStatistics) -> Array:
    """Of numbers: (len(STATISTICS), D)."""
    quantiles = leaf.distribution.quantiles(list(QUANTILES.values()))
    return np.stack([leaf.low, leaf.high, leaf.mean, leaf.std, *quantiles])


def to_json(statistics: Array, count: int, shape: Sequence[int]) -> dict[str, Any]:
    """The entry of a feature in `stats.json`; each statistic has at least one axis.

    Args:
      statistics: (len(STATISTICS), D).
      shape: of each.
    """
    values = {name: row.reshape(shape).tolist() for name, row in zip(STATISTICS, statistics, strict=True)}
    return {**values, "count": [count]}


@functools.lru_cache(maxsize=1024)
def sample_places(length: int, samples: int) -> list[int]:
    """The frames of an episode that are decoded, spread evenly."""
    return sorted({round(place) for place in np.linspace(0, length - 1, min(length, max(1, samples)))})


def histogram_of(images: Column, channels: int, path: str) -> Array:
    """How many pixels of each channel have each value: int64 (channels, LEVELS); of 16 bits, the upper 8.

    Raises:
      BadEpisode: an image is damaged.
    """
    if isinstance(images, EncodedImages):
        jpegs = channels in (1, 3) and all(image.startswith(_JPEG) for image in images)
        parts = _small_jpegs(images, channels, path) if jpegs else [images.decode(path)]
    else:
        parts = [np.asarray(images)]
    counts = np.zeros((channels, LEVELS), np.int64)
    for pixels in parts:
        pixels = (pixels >> 8).astype(np.uint8) if pixels.dtype == np.uint16 else pixels
        for channel, values in enumerate(pixels.reshape(-1, channels).T):
            counts[channel] += np.bincount(values, minlength=LEVELS)
    return counts


def _small_jpegs(images: EncodedImages, channels: int, path: str) -> Iterator[Array]:
    import simplejpeg

    for image in images:
        try:
            height, width, *_ = simplejpeg.decode_jpeg_header(image)
            least = _SMALLER if max(height, width) >= _LARGE else 0
            yield simplejpeg.decode_jpeg(
                image, "RGB" if channels == 3 else "GRAY", fastdct=True, fastupsample=False, min_height=least,
                min_width=least, min_factor=2 if least else 1,
            )  # fmt: skip
        except (ValueError, KeyError) as error:
            raise BadEpisode(Violation("undecodable_image", f"the JPEG is damaged ({error})", path)) from None
