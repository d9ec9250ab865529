"""Parts become one HDF5 file: the blocks of each as they are, then the objects of its episodes; the root comes last."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.formats.arrays import hdf5_objects as objects
from rlds_beam.formats.arrays.hdf5_root import RootGroup
from rlds_beam.formats.arrays.hdf5_tree import EpisodeTemplate
from rlds_beam.formats.arrays.parts import Part

Array: TypeAlias = "np.ndarray[Any, Any]"

_EPISODES = 1024  # whose objects are made at a time


@dataclasses.dataclass(frozen=True)
class SingleDataset:
    """A dataset that the file has once.

    Attributes:
      dtype: of a value.
      shape: () of one value.
      data: the values.
    """

    dtype: Any
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, values: Any) -> SingleDataset:
        """Of a number, a text or an array."""
        array = np.asarray(values)
        return cls(array.dtype, array.shape, array.tobytes())


def merge_hdf5(
    parts: Sequence[Part],
    template: EpisodeTemplate,
    singles: Mapping[str, SingleDataset] | None = None,
    steps_column: int | None = None,
) -> Iterator[bytes]:
    """The bytes of a file.

    Args:
      parts: in order.
      template: the objects of an episode; the names of its links hold `{}` for the number of the episode.
      singles: what the file has besides, by name.
      steps_column: of the attribute `total_steps`, the column whose rows are counted; `id` is the episode's number.
    """
    bodies, metas, at = [], [], objects.SUPERBLOCK_BYTES
    for part in parts:
        bodies.append(at)
        metas.append(at + part.body)
        at += part.body + template.size * len(part)
    names, addresses = [], []
    pieces = []
    for name, one in (singles or {}).items():
        data = one.data.ljust(objects.aligned(len(one.data)), b"\0")
        header = objects.dataset(one.dtype, one.shape, at, len(one.data))
        pieces.append(data + header.ljust(objects.aligned(len(header)), b"\0"))
        names.append(np.array([name.encode()]))
        addresses.append(np.array([at + len(data)]))
        at += len(pieces[-1])
    numbers = np.arange(sum(map(len, parts))).astype("S")
    starts = np.concatenate([meta + template.size * np.arange(len(p)) for meta, p in zip(metas, parts, strict=True)])
    for pattern, place in template.links.items():
        before, after = pattern.encode().split(b"{}")
        names.append(np.char.add(np.char.add(before, numbers), after))
        addresses.append(starts + place)
    root = RootGroup(np.concatenate(names), np.concatenate(addresses), at)
    del names, addresses, starts, numbers
    yield root.superblock
    first = 0
    for part, body, meta in zip(parts, bodies, metas, strict=True):
        yield from part.body_bytes(body)
        yield from _objects(part, template, body, meta, first, steps_column)
        first += len(part)
    yield from pieces
    yield from root.pieces()


def _objects(
    part: Part, template: EpisodeTemplate, body: int, meta: int, first: int, steps_column: int | None
) -> Iterator[bytes]:
    """The objects of a part's episodes."""
    offsets = part.offsets() + body
    for start in range(0, len(part), _EPISODES):
        rows = part.rows[start : start + _EPISODES]
        attributes = np.empty((len(rows), 0), np.int64)
        if steps_column is not None:
            attributes = np.stack([first + start + np.arange(len(rows)), rows[:, steps_column]], axis=1)
        yield template.fill(meta + start * template.size, rows, offsets[start : start + len(rows)], attributes)
