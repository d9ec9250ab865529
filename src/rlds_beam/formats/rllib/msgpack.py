"""MessagePack, as far as it takes to write numbers, text, lists, maps and (as msgpack-numpy has them) arrays."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Repeated:
    """A list of one value, `count` times, which is packed once."""

    value: Any
    count: int


def packb(value: Any) -> bytes:
    """A value as bytes; `msgpack.unpackb(data, object_hook=msgpack_numpy.decode)` reads it.

    Raises:
      TypeError: it is of another type than those.
    """
    parts: list[bytes] = []
    _pack(value, parts)
    return b"".join(parts)


def _pack(value: Any, parts: list[bytes]) -> None:
    if value is None:
        parts.append(b"\xc0")
    elif isinstance(value, bool):
        parts.append(b"\xc3" if value else b"\xc2")
    elif isinstance(value, int):
        parts.append(bytes([value]) if 0 <= value < 128 else struct.pack(">Bq", 0xD3, value))
    elif isinstance(value, float):
        parts.append(struct.pack(">Bd", 0xCB, value))
    elif isinstance(value, str):
        data = value.encode()
        parts += struct.pack(">BI", 0xDB, len(data)), data
    elif isinstance(value, bytes):
        parts += struct.pack(">BI", 0xC6, len(value)), value
    elif isinstance(value, np.ndarray):
        _pack(_array(value), parts)
    elif isinstance(value, Mapping):
        parts.append(struct.pack(">BI", 0xDF, len(value)) if value else b"\x80")
        for name, one in value.items():
            _pack(name, parts)
            _pack(one, parts)
    elif isinstance(value, Repeated):
        parts += struct.pack(">BI", 0xDD, value.count), packb(value.value) * value.count
    elif isinstance(value, Sequence):
        parts.append(struct.pack(">BI", 0xDD, len(value)))
        for one in value:
            _pack(one, parts)
    else:
        raise TypeError(f"{type(value).__name__} cannot be packed")


def _array(array: np.ndarray[Any, Any]) -> dict[bytes, Any]:
    if array.dtype.kind not in "biuf":
        raise TypeError(f"an array of {array.dtype} cannot be packed")
    return {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": array.shape, b"data": array.tobytes()}
