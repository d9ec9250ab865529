"""Write pickles of dicts with large arrays piece by piece, for `pickle.load` (Python 3.8 and later)."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

START, STOP = b"\x80\x05", b"."
_MARK, _EMPTY_DICT, _SETITEMS, _EMPTY_LIST, _APPENDS, _REDUCE, _TUPLE3 = b"(", b"}", b"u", b"]", b"e", b"R", b"\x87"
_NDARRAY = b"cnumpy\nndarray\n"


def plain(value: Any) -> bytes:
    """The pickle of a built-in value, to embed in another pickle."""
    return pickle.dumps(value, protocol=2)[2:-1]


def array(dtype: np.dtype[Any], shape: tuple[int, ...], data: Iterable[bytes]) -> Iterator[bytes]:
    """The pickle of an array whose bytes come in pieces; it is writable when loaded."""
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    yield _NDARRAY + plain(shape) + plain(dtype.str) + b"\x96" + struct.pack("<Q", size)
    yield from data
    yield _TUPLE3 + _REDUCE


def texts(blocks: Iterable[Sequence[bytes]]) -> Iterator[bytes]:
    """The pickle of a list of strings (UTF-8)."""
    yield _EMPTY_LIST
    for block in blocks:
        yield _MARK + b"".join(b"X" + struct.pack("<I", len(text)) + text for text in block) + _APPENDS


def mapping(items: Mapping[str, Iterable[bytes]]) -> Iterator[bytes]:
    """The pickle of a dict, given the pickled pieces of each value."""
    yield _EMPTY_DICT + _MARK
    for name, pieces in items.items():
        yield plain(name)
        yield from pieces
    yield _SETITEMS
