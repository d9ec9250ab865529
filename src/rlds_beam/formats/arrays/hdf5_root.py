"""The root of an HDF5 file: a group that may link to millions of objects, written at the end of the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.formats.arrays import hdf5_objects as objects

Array: TypeAlias = "np.ndarray[Any, Any]"

_SOME = objects.NODE_ENTRIES * 4096  # names that are written at a time


class RootGroup:
    """The links of a file's root. About 50 bytes a link are in memory.

    Attributes:
      end: the size of the file.
      superblock: its first bytes.
    """

    def __init__(self, names: Array, addresses: Array, start: int):
        """
        Args:
          names: bytes (dtype S), in any order.
          addresses: int64, of the objects.
          start: where the group is written, a multiple of 8.
        """
        order = np.argsort(names, kind="stable")
        self._names, self._addresses = names[order], addresses[order]
        sizes = (np.char.str_len(self._names) // 8 + 1) * 8  # with a zero, aligned
        self._places = 8 + np.cumsum(sizes) - sizes
        self._heap_bytes = 8 + int(sizes.sum())
        self._start = start
        heap = start + self._heap_bytes
        self._nodes = heap + objects.HEAP_BYTES
        count = -(-len(names) // objects.NODE_ENTRIES)
        self._trees = self._nodes + count * objects.NODE_BYTES
        self._levels = _levels(count)
        root_tree = self._trees + (sum(self._levels) - 1) * objects.TREE_BYTES
        root = root_tree + objects.TREE_BYTES
        self.end = root + objects.GROUP_BYTES
        self.superblock = objects.superblock(root, root_tree, heap, self.end)
        self._header = objects.group(root_tree, heap)

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the group, in order."""
        yield bytes(8)
        for first in range(0, len(self._names), _SOME):
            some = self._names[first : first + _SOME].tolist()
            yield b"".join(name.ljust((len(name) // 8 + 1) * 8, b"\0") for name in some)
        yield objects.local_heap(self._heap_bytes, self._start)
        for first in range(0, len(self._names), _SOME):
            some = slice(first, first + _SOME)
            yield objects.symbol_nodes(self._places[some], self._addresses[some])
        yield from self._tree()
        yield self._header

    def _tree(self) -> Iterator[bytes]:
        """The nodes of the B-tree, level by level from the leaves."""
        last = self._places[objects.NODE_ENTRIES - 1 :: objects.NODE_ENTRIES]
        if len(self._places) % objects.NODE_ENTRIES:
            last = np.append(last, self._places[-1])
        children = self._nodes + objects.NODE_BYTES * np.arange(len(last))
        at = self._trees
        for level, nodes in enumerate(self._levels):
            own = at + objects.TREE_BYTES * np.arange(nodes)
            for i in range(nodes):
                some = slice(i * objects.NODE_CHILDREN, (i + 1) * objects.NODE_CHILDREN)
                before = last[some.start - 1] if i else 0
                left = own[i - 1] if i else objects.UNDEFINED
                right = own[i + 1] if i + 1 < nodes else objects.UNDEFINED
                yield objects.tree_node(level, int(left), int(right), [before, *last[some]], children[some])
            ends = np.minimum((np.arange(nodes) + 1) * objects.NODE_CHILDREN, len(last)) - 1
            last, children, at = last[ends], own, at + objects.TREE_BYTES * nodes


def _levels(nodes: int) -> list[int]:
    """Tree nodes at each level above so many symbol table nodes."""
    levels = [max(1, -(-nodes // objects.NODE_CHILDREN))]
    while levels[-1] > 1:
        levels.append(-(-levels[-1] // objects.NODE_CHILDREN))
    return levels
