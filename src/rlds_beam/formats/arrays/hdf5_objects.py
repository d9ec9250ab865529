"""Objects of an HDF5 file as bytes: datasets, groups and attributes in the old form that every version reads.

The formats are those of the "HDF5 File Format Specification 2.0": object headers of version 1, symbol tables,
contiguous data. Nothing of it depends on the time, so that equal data make equal bytes. h5py is not needed to write: it
would take a tenth of a millisecond for a dataset.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rlds_beam.errors import UsageError

Array: TypeAlias = "np.ndarray[Any, Any]"

UNDEFINED = 0xFFFFFFFFFFFFFFFF
"""The address of nothing."""

NODE_ENTRIES = 8
"""Entries of a symbol table node: twice the "group leaf node K" of the superblock."""

NODE_CHILDREN = 32
"""Children of a node of a group's B-tree: twice the "group internal node K"."""

TREE_BYTES = 24 + 8 * (2 * NODE_CHILDREN + 1)
NODE_BYTES = 8 + 40 * NODE_ENTRIES
HEAP_BYTES = 32
GROUP_BYTES = 40

REFERENCE = np.dtype([("count", "<u4"), ("address", "<u8"), ("index", "<u4")])
"""A value of variable length, as a dataset holds it: where it is in a global heap."""

_COLLECTION = 4096
_MOST_OBJECTS = 60000  # of one collection; the format has 65535

_DATASPACE, _DATATYPE, _FILL_VALUE, _LAYOUT, _ATTRIBUTE, _SYMBOL_TABLE = 0x01, 0x03, 0x05, 0x08, 0x0C, 0x11
_FLOATS = {2: (15, 10, 5, 10, 15), 4: (31, 23, 8, 23, 127), 8: (63, 52, 11, 52, 1023)}
"""By size: place of the sign and of the exponent, bits of the exponent and of the mantissa, bias."""


def aligned(size: int) -> int:
    """The next multiple of 8."""
    return -(-size // 8) * 8


def _padded(data: bytes) -> bytes:
    return data.ljust(aligned(len(data)), b"\0")


def datatype(dtype: np.dtype[np.generic] | str) -> bytes:
    """The datatype of a dataset: of numbers, of bools (as h5py has them), of text of a fixed length (`S5`).

    Args:
      dtype: or `bytes` (a sequence of bytes of any length) or `text` (a string of any length, UTF-8).

    Raises:
      UsageError: HDF5 has no such type.
    """
    if dtype == "bytes":
        return struct.pack("<B3BI", 0x19, 0, 0, 0, 16) + datatype(np.dtype("u1"))
    if dtype == "text":
        return struct.pack("<B3BI", 0x19, 0x01, 0x01, 0, 16) + struct.pack("<B3BI", 0x13, 0x10, 0, 0, 1)
    dtype = np.dtype(dtype)
    kind, size = dtype.kind, dtype.itemsize
    if kind in "iu":
        return struct.pack("<B3BIHH", 0x10, 8 if kind == "i" else 0, 0, 0, size, 0, 8 * size)
    if kind == "f" and size in _FLOATS:
        sign, place, exponent, mantissa, bias = _FLOATS[size]
        return struct.pack(
            "<B3BIHH4BI", 0x11, 0x20, sign, 0, size, 0, 8 * size, place, exponent, 0, mantissa, bias
        )  # fmt: skip
    if kind == "b":
        names = _padded(b"FALSE\0") + _padded(b"TRUE\0")
        return struct.pack("<B3BI", 0x18, 2, 0, 0, 1) + datatype(np.dtype("i1")) + names + b"\0\1"
    if kind == "S":
        return struct.pack("<B3BI", 0x13, 1, 0, 0, size)
    raise UsageError(f"HDF5 has no type for {dtype}")


def _dataspace(shape: Sequence[int]) -> bytes:
    return struct.pack("<BBB5x", 1, len(shape), 0) + struct.pack(f"<{len(shape)}Q", *shape)


def _message(kind: int, data: bytes) -> bytes:
    data = _padded(data)
    return struct.pack("<HHB3x", kind, len(data), 0) + data


def _header(messages: Sequence[bytes]) -> bytes:
    body = b"".join(messages)
    return struct.pack("<BxHII4x", 1, len(messages), 1, len(body)) + body


def attribute(name: str, dtype: np.dtype[np.generic], value: bytes) -> bytes:
    """A message that gives a group an attribute: one number."""
    label, kind, space = name.encode() + b"\0", datatype(dtype), _dataspace(())
    head = struct.pack("<BxHHH", 1, len(label), len(kind), len(space))
    return _message(_ATTRIBUTE, head + _padded(label) + _padded(kind) + _padded(space) + value)


def dataset(dtype: np.dtype[np.generic] | str, shape: Sequence[int], address: int, size: int) -> bytes:
    """The object header of a dataset whose `size` bytes of values are at an address."""
    layout = struct.pack("<BBQQ", 3, 1, address, size)
    return _header(
        [
            _message(_DATASPACE, _dataspace(shape)),
            _message(_DATATYPE, datatype(dtype)),
            _message(_FILL_VALUE, struct.pack("<BBBBI", 2, 2, 2, 1, 0)),
            _message(_LAYOUT, layout),
        ]
    )


ROWS_AT = 16 + 8 + 8
"""Where the first dimension is in a `dataset` that has one."""


def address_at(header: bytes) -> int:
    """Where the address is in a `dataset`; the number of bytes follows it."""
    return len(header) - 24 + 2


def group(tree: int, heap: int, attributes: Sequence[bytes] = ()) -> bytes:
    """The object header of a group; the addresses of its B-tree and its heap are at 24 and 32."""
    return _header([_message(_SYMBOL_TABLE, struct.pack("<QQ", tree, heap)), *attributes])


def tree_node(level: int, left: int, right: int, keys: npt.ArrayLike, children: Array | Sequence[int]) -> bytes:
    """A node of a group's B-tree.

    Args:
      level: 0 where the children are symbol table nodes.
      left, right: addresses of its neighbours.
      keys: in the heap, one more than children: the last name before each child, and the last of all.
    """
    pairs = np.zeros(2 * len(children) + 1, "<u8")
    pairs[0::2], pairs[1::2] = keys, children
    head = struct.pack("<4sBBHQQ", b"TREE", 0, level, len(children), left, right)
    return (head + pairs.tobytes()).ljust(TREE_BYTES, b"\0")


SYMBOL = np.dtype([("name", "<u8"), ("address", "<u8"), ("rest", "<u8", 3)])
"""An entry of a symbol table node."""


def symbol_nodes(names: Array | Sequence[int], addresses: Array | Sequence[int]) -> bytes:
    """Symbol table nodes, one after another, all but the last one full.

    Args:
      names: places in the heap, in the order of the names.
      addresses: of the objects.
    """
    if not len(names):
        return b""
    count = -(-len(names) // NODE_ENTRIES)
    entries = np.zeros(count * NODE_ENTRIES, SYMBOL)
    entries["name"][: len(names)], entries["address"][: len(names)] = names, addresses
    nodes = np.zeros((count, NODE_BYTES), np.uint8)
    used = np.full(count, NODE_ENTRIES)
    used[-1] = len(names) - NODE_ENTRIES * (count - 1)
    heads = b"".join(struct.pack("<4sBxH", b"SNOD", 1, n) for n in used.tolist())
    nodes[:, :8] = np.frombuffer(heads, np.uint8).reshape(count, 8)
    nodes[:, 8:] = entries.view(np.uint8).reshape(count, -1)
    return nodes.tobytes()


def local_heap(size: int, address: int) -> bytes:
    """The header of a heap of names; its `size` bytes, of which the first 8 are zeros, are at an address."""
    return struct.pack("<4sB3xQQQ", b"HEAP", 0, size, 1, address)


def superblock(root: int, tree: int, heap: int, end: int) -> bytes:
    """The first 96 bytes of a file."""
    sizes = struct.pack("<8BHHI", 0, 0, 0, 0, 0, 8, 8, 0, NODE_ENTRIES // 2, NODE_CHILDREN // 2, 0)
    addresses = struct.pack("<QQQQ", 0, UNDEFINED, end, UNDEFINED)
    return b"\x89HDF\r\n\x1a\n" + sizes + addresses + struct.pack("<QQIIQQ", 0, root, 1, 0, tree, heap)


SUPERBLOCK_BYTES = 96


def heap_collections(values: Sequence[bytes], address: int) -> tuple[bytes, Array]:
    """Values of variable length as global heap collections, to be written at an address.

    Returns:
      The bytes, and a `REFERENCE` to each of the values.
    """
    references = np.zeros(len(values), REFERENCE)
    parts: list[bytes] = []
    for start in range(0, len(values), _MOST_OBJECTS):
        some = values[start : start + _MOST_OBJECTS]
        body = b"".join(struct.pack("<HHIQ", i, 0, 0, len(v)) + _padded(v) for i, v in enumerate(some, 1))
        size = max(_COLLECTION, 16 + len(body))
        free = size - 16 - len(body)
        if free >= 16:
            body += struct.pack("<HHIQ", 0, 0, 0, free)
        found = references[start : start + len(some)]
        found["count"], found["address"] = [len(v) for v in some], address + sum(map(len, parts))
        found["index"] = np.arange(1, len(some) + 1)
        parts.append((struct.pack("<4sB3xQ", b"GCOL", 1, size) + body).ljust(size, b"\0"))
    return b"".join(parts), references
