"""Digests of what an episode does, which are equal in every format: copies whose bytes differ have the same.

    RLDS      o0 a0   o1 a1   o2 a2   o3 (void)     whole: 4 steps     shorter: 3 steps
    LeRobot   o0 a0   o1 a1   o2 a2                 whole: 3 steps     shorter: 2 steps

Formats differ in whether an episode ends with an observation that has no action. So each episode has a digest of all
its steps and one of all but the last, and two episodes are copies if they share any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash

from rlds_beam.episodes.columns import JoinedColumns, join_columns
from rlds_beam.episodes.episode import Episode
from rlds_beam.reading.base import Source
from rlds_beam.typing import Array

_SAMPLED = 8
_MIN_STEPS, _MIN_VALUES = 4, 12
"""Fewer steps, or different values in the sampled steps, may be the same by chance: in a grid, or at rest."""

_MAX_EPISODES, _MAX_BYTES = 512, 1 << 20
"""Maximum episodes to digest at once, and bytes of their compared fields."""


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

    def digest(self, episodes: Sequence[Episode]) -> Array:
        """The digests of episodes, uint64 (E, 2); 0 for one that cannot be read."""
        found = np.zeros((len(episodes), 2), np.uint64)
        readable = [row for row, episode in enumerate(episodes) if not episode.faults]
        if readable:
            found[readable] = digest_episodes([episodes[row] for row in readable], *self)
        return found


class DigestGatherer:
    """The digests of episodes that come one by one, computed for many at once: a small batch takes as long as a large.

    Keeps the compared fields of the episodes that wait, but not their records.
    """

    def __init__(self, compared: ComparedFields):
        self._compared = compared
        self._waiting: list[Episode] = []
        self._size = 0
        self._digests = [np.zeros((0, 2), np.uint64)]

    def add(self, episode: Episode) -> None:
        """Adds an episode."""
        names = [name for part in self._compared for name in part]
        steps, metadata = (
            {name: values[name] for name in names if name in values} for values in (episode.steps, episode.metadata)
        )
        self._waiting.append(Episode(episode.key, steps, metadata, faults=episode.faults))
        self._size += sum(column.nbytes for column in steps.values() if isinstance(column, np.ndarray))
        if len(self._waiting) == _MAX_EPISODES or self._size >= _MAX_BYTES:
            self._digest()

    def last(self) -> Digests:
        """The digests of the last episode."""
        self._digest()
        return Digests(*self._digests[-1][-1].tolist())

    def finish(self) -> Array:
        """The digests of all episodes, uint64 (E, 2); 0 for one that cannot be read."""
        self._digest()
        return np.concatenate(self._digests)

    def _digest(self) -> None:
        if self._waiting:
            self._digests.append(self._compared.digest(self._waiting))
        self._waiting, self._size = [], 0


class Digests(NamedTuple):
    """The digests of an episode, uint64; 0 if it is too short or too simple to be told from others.

    Attributes:
      whole: the digest of all steps.
      shorter: the digest of all steps but the last.
    """

    whole: int = 0
    shorter: int = 0


def digest_episode(episode: Episode, fields: Iterable[str], texts: Sequence[str] = ()) -> Digests:
    """The digests of one episode; see `digest_episodes`."""
    return Digests(*digest_episodes([episode], fields, texts)[0].tolist())


def digest_episodes(episodes: Sequence[Episode], fields: Iterable[str], texts: Sequence[str] = ()) -> Array:
    """The digests of these fields in float32, uint64 (E, 2); missing fields, images, and texts do not count.

    Args:
      fields: the fields to compare, in an order that is the same in every format.
      texts: the fields with the instruction, which has to be the same as well; none if it does not matter.
    """
    from rlds_beam.checking.signals.texts import instructions

    lengths = [len(episode) for episode in episodes]
    joined = [join_columns([episode.steps.get(path) for episode in episodes], lengths) for path in fields]
    said = [""] * len(episodes)
    for row, episode in enumerate(episodes) if texts else ():
        said[row] = next((text for match in instructions(episode, texts) for text in match if text.strip()), "")
    return digest_fields(joined, lengths, said)


def digest_fields(fields: Sequence[JoinedColumns], lengths: Sequence[int], said: Sequence[str] | None = None) -> Array:
    """The digests of episodes (`Digests`), uint64 (E, 2).

    Args:
      fields: the numbers of each field.
      lengths: the number of steps of each episode.
      said: the instruction of each episode; None if it does not matter.
    """
    if all(isinstance(field, np.ndarray) for field in fields):
        return _digest(fields, np.array(lengths), said)
    ends = np.cumsum(lengths)[:-1]
    columns: list[Any] = [np.split(field, ends) if isinstance(field, np.ndarray) else field for field in fields]
    alike: dict[tuple[Any, ...], list[int]] = {}
    for row, length in enumerate(lengths):
        own = (field[row] for field in columns)
        kinds = (None if c is None or len(c) != length else (c.shape[1:], c.dtype) for c in own)
        alike.setdefault(tuple(kinds), []).append(row)
    found = np.zeros((len(lengths), 2), np.uint64)
    for alike_kinds, rows in alike.items():
        known = [field for field, kind in zip(columns, alike_kinds, strict=True) if kind]
        joined = [np.concatenate([field[row] for row in rows]) for field in known]
        found[rows] = _digest(joined, np.array(lengths)[rows], None if said is None else [said[row] for row in rows])
    return found


def _digest(fields: Sequence[Any], steps: Array, said: Sequence[str] | None) -> Array:
    """The digests of episodes that have all of these fields, laid end to end (N, ...)."""
    found = np.zeros((len(steps), 2), np.uint64)
    values = [_flat(field) for field in fields if field.size]
    ends, told = np.cumsum(steps), np.flatnonzero(steps > _MIN_STEPS)
    if not values or not len(told):
        return found
    told = told[_are_told_apart(values, ends[told] - steps[told], steps[told])]
    data = [(column.data.cast("B"), column.strides[0]) for column in values]
    bounds, digests = np.stack([ends - steps, ends], axis=1)[told].tolist(), []
    for row, (start, end) in zip(told.tolist(), bounds, strict=True):
        seed = b"" if said is None else said[row].encode()
        digests.append((_hash(data, start, end, seed), _hash(data, start, end - 1, seed)))
    found[told] = np.array(digests, np.uint64).reshape(-1, 2)
    return found


def _flat(field: Array) -> Array:
    """A field as float32 (N, D)."""
    with np.errstate(over="ignore", invalid="ignore"):
        values: Array = field.astype(np.float32, order="C")
    values += np.float32(0)  # -0 is 0
    return values.reshape(len(values), -1)


def _are_told_apart(columns: list[Array], starts: Array, steps: Array) -> Array:
    """Whether what changes in the sampled steps of each episode has at least `_MIN_VALUES` different values (E,)."""
    places = starts + np.arange(_SAMPLED)[:, None] * (steps - 2) // (_SAMPLED - 1)
    few = columns[0][:, :_SAMPLED]
    enough = _count_values([few[places]]) >= _MIN_VALUES
    rest = np.flatnonzero(~enough)
    if len(rest):
        enough[rest] = _count_values([column[places[:, rest]] for column in columns]) >= _MIN_VALUES
    return np.asarray(enough)


def _count_values(columns: list[Array]) -> Array:
    """The number of different values of what changes (E,), in columns (S, E, D)."""
    values = np.concatenate(columns, axis=2)
    changes = (values != values[0]).any(axis=0)
    unknown = (np.isnan(values) & changes).any(axis=(0, 2))  # NaN is one value
    values = np.where(changes, values, np.float32(np.nan)).transpose(1, 0, 2).reshape(values.shape[1], -1)
    values.sort(axis=1)  # NaN is last
    known = ~np.isnan(values)
    found: Array = known[:, 0] + ((values[:, 1:] != values[:, :-1]) & known[:, 1:]).sum(axis=1) + unknown
    return found


def _hash(columns: list[tuple[memoryview, int]], start: int, stop: int, seed: bytes) -> int:
    """The digest of the steps [start, stop) of columns, each with the bytes of a step."""
    state = xxhash.xxh3_64(seed)
    for data, size in columns:
        state.update(data[start * size : stop * size])
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
