"""Looks at the numbers of several short episodes at once.

Checking them episode by episode costs more than reading them. Most are sound, and one look at the concatenated columns
shows it; all others are checked as if nobody had looked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.columns import is_float
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import FLAGS
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array


def screen_batches(batches: Iterable[list[Episode]]) -> Iterator[tuple[Episode, bool]]:
    """Yields the episodes of each batch in order, each with whether its numbers are sound (`are_sound`).

    Empties the batches, so that each episode is freed before the next one is read.
    """
    for episodes in batches:
        sound = are_sound(episodes)
        episodes.reverse()
        while episodes:
            yield episodes.pop(), sound


def are_sound(episodes: Sequence[Episode]) -> bool:
    """Whether the numbers of all of these episodes certainly break no rule of `validate_episode`.

    That is: each has one is_first, at its first step, and one is_last, at its last step; is_terminal at most at its
    last step; finite numbers; and discounts from 0 to 1. False if they are not alike, or if there is only one, whose
    check would take as long.
    """
    if len(episodes) < 2 or any(episode.steps.keys() != episodes[0].steps.keys() for episode in episodes):
        return False
    lengths = np.array([len(episode) for episode in episodes])
    if not lengths.all():
        return False
    joined: dict[str, Array] = {}
    for path in episodes[0].steps:
        parts: list[Any] = [episode.steps[path] for episode in episodes]
        dtypes = {part.dtype for part in parts}
        if len(dtypes) > 1:
            return False
        if not isinstance(parts[0], EncodedImages) and (is_float(parts[0].dtype) or path in _CHECKED):
            try:
                joined[path] = np.concatenate(parts)
            except ValueError:  # other shapes
                return False
    return _are_regular(joined, lengths) and _are_in_range(joined)


_CHECKED = (*FLAGS, "discount")


def _are_regular(columns: Mapping[str, Array], lengths: Array) -> bool:
    """Whether the flags are those of `len(lengths)` whole episodes."""
    if any(name not in columns or columns[name].shape != (lengths.sum(),) for name in FLAGS):
        return False
    first, last, terminal = (columns[name].astype(bool, copy=False) for name in FLAGS)
    ends = np.cumsum(lengths)
    starts, ends = ends - lengths, ends - 1
    firsts, lasts, terminals = (np.count_nonzero(flags) for flags in (first, last, terminal))
    return bool(
        firsts == lasts == len(lengths)
        and first[starts].all()
        and last[ends].all()
        and terminals == np.count_nonzero(terminal[ends])
    )


def _are_in_range(columns: Mapping[str, Array]) -> bool:
    """Whether all numbers are finite, and discounts from 0 to 1."""
    for path, column in columns.items():
        if path == "discount" and not (column.min() >= 0 and column.max() <= 1):
            return False
        if path not in FLAGS and np.count_nonzero(np.isfinite(column)) < column.size:
            return False
    return True
