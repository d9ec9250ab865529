"""Digests of what an episode does, which are equal in every format: copies whose bytes differ have the same.

    RLDS      o0 a0   o1 a1   o2 a2   o3 (void)     whole: 4 steps     shorter: 3 steps
    LeRobot   o0 a0   o1 a1   o2 a2                 whole: 3 steps     shorter: 2 steps

Formats differ in whether an episode ends with an observation that has no action. So each episode has a digest of all
its steps and one of all but the last, and two episodes are copies if they share any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Episode
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Source
from rlds_beam.typing import Array

_SAMPLED = 8
_MIN_STEPS, _MIN_VALUES = 4, 12
"""Fewer steps, or different values in the sampled steps, may be the same by chance: in a grid, or at rest."""


class ComparedFields(NamedTuple):
    """The fields of a dataset that tell copies of an episode.

    Attributes:
      fields: the actions and states, in an order that is the same in every format.
      texts: the fields with the instruction.
    """

    fields: tuple[str, ...]
    texts: tuple[str, ...]

    @classmethod
    def of(cls, source: Source) -> ComparedFields:
        """The fields that all of a dataset's episodes have."""
        from rlds_beam.checking.signals.context import Context

        context = Context.of(source.schema)
        motion, texts = (
            tuple(path for path in paths if path not in source.partial)
            for paths in (sorted(context.motion), context.instructions)
        )
        return cls(motion, texts)

    def digest(self, episode: Episode) -> Digests:
        """The digests of an episode; 0 if it cannot be read."""
        return Digests() if episode.faults else digest_episode(episode, *self)


class Digests(NamedTuple):
    """The digests of an episode, uint64; 0 if it is too short or too simple to be told from others.

    Attributes:
      whole: the digest of all steps.
      shorter: the digest of all steps but the last.
    """

    whole: int = 0
    shorter: int = 0


def digest_episode(episode: Episode, fields: Iterable[str], texts: Sequence[str] = ()) -> Digests:
    """The digests of these fields in float32; fields that the episode lacks, and images and texts, do not count.

    Args:
      fields: the fields to compare, in an order that is the same in every format.
      texts: the fields with the instruction, which has to be the same as well; none if it does not matter.
    """
    from rlds_beam.checking.signals.texts import instructions

    length = len(episode)
    if length <= _MIN_STEPS:
        return Digests()
    columns = [episode.steps[path] for path in fields if path in episode.steps]
    values = [_flat(c) for c in columns if not isinstance(c, EncodedImages) and is_numeric(c) and c.size]
    values = [column for column in values if len(column) == length]
    sampled = np.linspace(0, length - 2, _SAMPLED).astype(np.int64)
    if not values or _count_values([column[sampled] for column in values]) < _MIN_VALUES:
        return Digests()
    said = next((text for match in instructions(episode, texts) for text in match if text.strip()), "")
    return Digests(_hash(values, length, said), _hash(values, length - 1, said))


def _flat(column: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.asarray(column).astype(np.float32).reshape(len(column), -1)
    return values + np.float32(0)  # -0 is 0


def _count_values(columns: list[Array]) -> int:
    """The number of different values of what changes."""
    changing = [column[:, (column != column[0]).any(axis=0)] for column in columns]
    return len(np.unique(np.concatenate([column.ravel() for column in changing])))


def _hash(columns: list[Array], length: int, text: str) -> int:
    state = xxhash.xxh3_64(text.encode())
    for column in columns:
        state.update(column[:length].tobytes())
    return state.intdigest() or 1


def group_copies(whole: Array, shorter: Array) -> Array:
    """The first episode of the copies to which each belongs, int64 (E,); its own index if it has none.

    Args:
      whole: the digests of all steps, uint64 (E,).
      shorter: those of all steps but the last, uint64 (E,).
    """
    number = np.arange(len(whole))
    digests, owners = np.concatenate([whole, shorter]), np.concatenate([number, number])
    order = np.lexsort((owners, digests))
    digests, owners = digests[order], owners[order]
    same = (digests[1:] == digests[:-1]) & (digests[1:] != 0)
    return join_groups(len(whole), owners[:-1][same], owners[1:][same])


def join_groups(size: int, first: Array, second: Array) -> Array:
    """The smallest index that is connected with each of `size` indices by pairs, int64 (size,)."""
    group = np.arange(size)
    while True:
        low = np.minimum(group[first], group[second])
        joined = group.copy()
        np.minimum.at(joined, group[first], low)
        np.minimum.at(joined, group[second], low)
        joined = joined[joined]
        if (joined == group).all():
            return group
        group = joined
