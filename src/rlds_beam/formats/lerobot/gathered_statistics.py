"""Compute statistics of episodes in small batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_beam.formats.lerobot import statistics

Array = np.ndarray[Any, Any]

_MOST_EPISODES = 64
"""Episodes in a batch: each has a histogram for every camera."""

_MOST_VALUES = 1 << 19
"""Padded values in a batch."""


class GatheredStatistics:
    """Computes statistics of one episode after another; each result depends on its episode only."""

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
          histograms: the histogram of each image feature, (C, statistics.LEVELS). If empty, the episode's image
            statistics are those of the episode before.
        """
        longest = max(self._longest, len(next(iter(numbers.values()))))
        width = sum(math.prod(values.shape[1:]) for values in numbers.values())
        count = len(self._numbers)
        if count == _MOST_EPISODES or (count + 1) * longest * width > _MOST_VALUES:
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
            by_feature = statistics.episodes_statistics(self._numbers)
            by_feature |= self._of_images()
            for name, values in by_feature.items():
                self._made.setdefault(name, []).append(values)
        self._numbers, self._histograms = [], []

    def _of_images(self) -> dict[str, Array]:
        """The image statistics of the batch; an episode without a histogram repeats those before."""
        given = [one for one in self._histograms if one]
        which = np.cumsum([bool(one) for one in self._histograms])
        for name in given[0] if given else ():
            own = statistics.image_statistics(np.stack([one[name] for one in given]), self._levels.get(name))
            before = self._images.get(name, own)[-1:]
            self._images[name] = np.concatenate([before, own])
        every = {name: rows[which] for name, rows in self._images.items()}
        self._images = {name: rows[-1:] for name, rows in self._images.items()}
        return every
