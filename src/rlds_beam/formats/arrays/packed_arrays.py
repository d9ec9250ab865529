"""An episode's arrays as `.npz` bytes: the payload of sources whose files have no records.

`np.load(io.BytesIO(payload))` reads it, also from `rejected/`.
"""

from __future__ import annotations

import ast
import functools
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_beam.formats.arrays.parts import npy_header
from rlds_beam.typing import Array

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_DATE = 0x21  # 1 January 1980, the format's earliest date
_MAX_ZIP32_BYTES = 0xFFFFFFFF
LENGTHS = " lengths"


def pack(arrays: Mapping[str, Array]) -> bytes:
    """The arrays as `.npz` bytes. Text, an object array of bytes of any shape, is stored as its bytes and their
    lengths.

    Raises:
      ValueError: they are larger than 4 GB, or an object is not text.
    """
    parts: list[bytes | memoryview] = []
    central: list[bytes] = []
    at = 0
    for name, array in _plain(arrays).items():
        file = f"{name}.npy".encode()
        header = npy_header(array.dtype, array.shape)
        data = _view(array)
        size, crc = len(header) + len(data), zlib.crc32(data, zlib.crc32(header))
        if at + size > _MAX_ZIP32_BYTES - 4096:
            raise ValueError("the episode is larger than 4 GB")
        parts += [_LOCAL.pack(b"PK\3\4", 20, 0x800, 0, 0, _DATE, crc, size, size, len(file), 0), file, header, data]
        central += [
            _CENTRAL.pack(b"PK\1\2", 20, 20, 0x800, 0, 0, _DATE, crc, size, size, len(file), 0, 0, 0, 0, 0, at),
            file,
        ]
        at += _LOCAL.size + len(file) + size
    directory = b"".join(central)
    count = len(central) // 2
    return b"".join([*parts, directory, _END.pack(b"PK\5\6", 0, 0, count, count, len(directory), at, 0)])


def _view(array: Array) -> memoryview:
    """The bytes of an array, without a copy if its rows follow each other."""
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def unpack(payload: bytes) -> dict[str, Array]:
    """The packed arrays, as views of the payload.

    Raises:
      ValueError: the payload was not written by `pack`.
    """
    arrays: dict[str, Array] = {}
    at = 0
    try:
        while payload[at : at + 4] == b"PK\3\4":
            *_, size, name_size, extra = _LOCAL.unpack_from(payload, at)
            start = at + _LOCAL.size + name_size + extra
            name = payload[at + _LOCAL.size : at + _LOCAL.size + name_size].decode().removesuffix(".npy")
            (length,) = struct.unpack_from("<H", payload, start + 8)
            dtype, shape = _header(payload[start : start + 10 + length])
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(payload, dtype, count, start + 10 + length).reshape(shape)
            at = start + size
    except (struct.error, SyntaxError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"not the arrays of an episode ({error})") from None
    if not arrays:
        raise ValueError("not the arrays of an episode")
    return _with_text(arrays)


@functools.lru_cache(maxsize=1024)
def _header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    content = ast.literal_eval(header[10:].decode())
    return np.dtype(content["descr"]), tuple(content["shape"])


def _plain(arrays: Mapping[str, Array]) -> dict[str, Array]:
    plain: dict[str, Array] = {}
    for name, array in arrays.items():
        if array.dtype == object:
            values = [_text(name, value) for value in array.reshape(-1)]
            plain[name] = np.frombuffer(b"".join(values), np.uint8)
            lengths = np.fromiter(map(len, values), np.int64, len(values))
            plain[name + LENGTHS] = lengths.reshape(array.shape)
        else:
            plain[name] = array
    return plain


def _text(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise ValueError(f"{name} holds a {type(value).__name__}, expected text")
    return value


def _with_text(arrays: dict[str, Array]) -> dict[str, Array]:
    decoded = {}
    for name, array in arrays.items():
        lengths = arrays.get(name + LENGTHS)
        if lengths is not None:
            decoded[name] = split_bytes(array.tobytes(), lengths.reshape(-1)).reshape(lengths.shape)
        elif not name.endswith(LENGTHS):
            decoded[name] = array
    return decoded


def split_bytes(data: bytes, lengths: Array) -> Array:
    """Splits concatenated bytes into an object array."""
    ends = np.cumsum(lengths).tolist()
    starts = [0, *ends[:-1]]
    return np.fromiter((data[start:end] for start, end in zip(starts, ends, strict=True)), object, len(ends))
