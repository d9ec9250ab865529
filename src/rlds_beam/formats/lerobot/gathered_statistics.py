"""The statistics of many episodes, worked out at once for as many of them as fit into a little memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_beam.formats.lerobot import statistics

Array = np.ndarray[Any, Any]

_MOST_EPISODES = 64
"""Held at once: each has a histogram of every camera."""

_MOST_VALUES = 1 << 19
"""Held at once, where all episodes count as the longest."""


class GatheredStatistics:
    """Takes episodes one after another; what it makes of one does not depend on the others."""

    def __init__(self) -> None:
        self._numbers: list[Mapping[str, Array]] = []
        self._histograms: list[Mapping[str, Array]] = []
        self._longest = 0
        self._made: dict[str, list[Array]] = {}

    def add(self, numbers: Mapping[str, Array], histograms: Mapping[str, Array]) -> None:
        """Takes an episode.

        Args:
          numbers: by feature, (T, ...), T > 0.
          histograms: by image feature, (C, statistics.LEVELS).
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
        """By feature, the statistics of all episodes: (E, len(STATISTICS), D); nothing where there is none."""
        self._end()
        return {name: np.concatenate(parts) for name, parts in self._made.items()}

    def _end(self) -> None:
        if self._numbers:
            by_feature = statistics.episodes_statistics(self._numbers)
            for name in self._histograms[0]:
                by_feature[name] = statistics.image_statistics(np.stack([one[name] for one in self._histograms]))
            for name, values in by_feature.items():
                self._made.setdefault(name, []).append(values)
        self._numbers, self._histograms = [], []
