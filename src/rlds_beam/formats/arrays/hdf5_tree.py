"""A tree of HDF5 groups and datasets that many episodes have in common: laid out once, then filled in for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays import hdf5_objects as objects

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A dataset of each episode.

    Attributes:
      column: number of the column of values that it holds.
      dtype: of a value: numpy's, or `bytes` or `text` for values of any length.
      shape: of one row.
      scalar: whether it is one value, not an array of rows.
    """

    column: int
    dtype: Any
    shape: tuple[int, ...] = ()
    scalar: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        size = objects.REFERENCE.itemsize if self.dtype in ("bytes", "text") else np.dtype(self.dtype).itemsize
        return int(np.prod(self.shape, dtype=np.int64)) * size


Tree: TypeAlias = "Mapping[str, Leaf | Tree]"


class EpisodeTemplate:
    """The objects of one episode as bytes, with the places of what differs between episodes.

    Attributes:
      size: bytes of an episode's objects.
      links: the objects that the file's root links to, by name: where each of them is within the `size` bytes.
    """

    def __init__(self, tree: Tree, attributes: Sequence[str] = ()):
        """
        Args:
          tree: what the root is to link to; the attributes are those of its first group.
          attributes: names of attributes, int64.
        """
        self._data = bytearray()
        self._own: list[int] = []  # places of addresses of this template's own objects
        self._columns: list[tuple[int, int | None, int, int]] = []  # column, place of the rows, of the address, bytes
        self._attributes: list[int] = []
        self.links: dict[str, int] = {}
        for name, child in tree.items():
            self.links[name] = self._add(child, attributes)
            attributes = ()
        self.size = len(self._data)

    def _put(self, data: bytes) -> int:
        at = len(self._data)
        self._data += data.ljust(objects.aligned(len(data)), b"\0")
        return at

    def _add(self, child: Leaf | Tree, attributes: Sequence[str] = ()) -> int:
        return self._add_dataset(child) if isinstance(child, Leaf) else self._add_group(child, attributes)

    def _add_dataset(self, leaf: Leaf) -> int:
        header = objects.dataset(leaf.dtype, () if leaf.scalar else (0, *leaf.shape), 0, 0)
        at = self._put(header)
        rows = None if leaf.scalar else at + objects.ROWS_AT
        self._columns.append((leaf.column, rows, at + objects.address_at(header), leaf.row_bytes))
        return at

    def _add_group(self, tree: Tree, attributes: Sequence[str]) -> int:
        messages = [objects.attribute(name, np.dtype("<i8"), bytes(8)) for name in attributes]
        header = objects.group(0, 0, messages)
        at = self._put(header)
        place = at + objects.GROUP_BYTES
        for message in messages:
            place += len(message)
            self._attributes.append(place - 8)
        names = sorted(tree, key=str.encode)
        children = [self._add(tree[name]) for name in names]
        heap, offsets = heap_of(names)
        nodes = self._put(objects.symbol_nodes(offsets, children))
        count = -(-len(names) // objects.NODE_ENTRIES)
        if count > objects.NODE_CHILDREN:
            raise UsageError(f"a group of {len(names)} fields is more than HDF5 files of ours have: leave some out")
        for i in range(len(names)):
            node, entry = divmod(i, objects.NODE_ENTRIES)
            self._own.append(nodes + node * objects.NODE_BYTES + 8 + 40 * entry + 8)
        last = [offsets[min(len(names), (i + 1) * objects.NODE_ENTRIES) - 1] for i in range(count)]
        starts = [nodes + i * objects.NODE_BYTES for i in range(count)]
        tree_at = self._put(objects.tree_node(0, objects.UNDEFINED, objects.UNDEFINED, [0, *last], starts))
        self._own += [tree_at + 24 + 8 + 16 * i for i in range(count)]
        data = self._put(heap)
        heap_at = self._put(objects.local_heap(len(heap), data))
        self._own.append(heap_at + 24)
        for offset, address in ((24, tree_at), (32, heap_at)):
            self._data[at + offset : at + offset + 8] = address.to_bytes(8, "little")
            self._own.append(at + offset)
        return at

    def fill(self, base: int, rows: Array, addresses: Array, attributes: Array) -> bytes:
        """The objects of episodes that follow each other in a file.

        Args:
          base: where those of the first episode are.
          rows: int64 (episodes, columns), the rows of each column.
          addresses: int64 (episodes, columns), where their values are.
          attributes: int64 (episodes, attributes).
        """
        count = len(rows)
        bases = base + self.size * np.arange(count, dtype=np.int64)
        made = np.tile(np.frombuffer(bytes(self._data), np.uint8), (count, 1))
        for place in self._own:
            own = int.from_bytes(self._data[place : place + 8], "little")
            _set(made, place, bases + own)
        for column, rows_at, address_at, row_bytes in self._columns:
            if rows_at is not None:
                _set(made, rows_at, rows[:, column])
            _set(made, address_at, addresses[:, column])
            _set(made, address_at + 8, rows[:, column] * row_bytes)
        for i, place in enumerate(self._attributes):
            _set(made, place, attributes[:, i])
        return made.tobytes()


def _set(made: Array, place: int, values: npt.ArrayLike) -> None:
    made[:, place : place + 8] = np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8)


def heap_of(names: Sequence[str]) -> tuple[bytes, list[int]]:
    """The bytes of a heap of names, and the place of each."""
    heap, offsets = bytearray(8), []
    for name in names:
        offsets.append(len(heap))
        encoded = name.encode() + b"\0"
        heap += encoded.ljust(objects.aligned(len(encoded)), b"\0")
    return bytes(heap), offsets
