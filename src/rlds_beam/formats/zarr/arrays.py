"""Zarr arrays, versions 2 (`.zarray`) and 3 (`zarr.json`): codecs, and metadata, checked before it is trusted."""

from __future__ import annotations

import dataclasses
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import google_crc32c
import numpy as np

from rlds_beam.encoding.checked_json import parse_json
from rlds_beam.errors import UsageError
from rlds_beam.formats.zarr.stores import MAX_BYTES, ZarrStore
from rlds_beam.text import shorten
from rlds_beam.typing import Array

_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248]|[SU][0-9]{1,6})")
_NAMES = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")
_MAX_DIMENSIONS = 16
_MAX_CHUNKS = 1 << 16
"""Maximum chunks that hold the values of one row."""

_NO_SHARDS = "Write the array again without shards: group.create_array(name, data=array[:], chunks=array.chunks)"


@dataclasses.dataclass(frozen=True)
class ZarrArray:
    """An array of a store.

    Attributes:
      key: its key: `data/img`.
      shape: the shape; the first axis counts rows.
      chunks: the shape of a chunk.
      dtype: the stored dtype; object for text of varying length.
      fill: the value of chunks that are not stored.
      codecs: the codecs to undo, in this order.
      axes: the order in which the axes of a chunk are stored.
      prefix, separator: how a chunk's key is made from its place: `0.0`, or `c/0/0`.
    """

    key: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: Any
    codecs: tuple[str, ...]
    axes: tuple[int, ...]
    prefix: tuple[str, ...]
    separator: str

    @property
    def name(self) -> str:
        """The key without its group."""
        return self.key.partition("/")[2]

    @property
    def is_text(self) -> bool:
        return self.dtype.kind in "OSU"

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def chunk_count(self) -> int:
        """The number of chunks if all are stored."""
        return math.prod(-(-size // chunk) for size, chunk in zip(self.shape, self.chunks, strict=True))

    def chunk_key(self, place: Sequence[int]) -> str:
        """The key of a chunk."""
        return f"{self.key}/{self.separator.join([*self.prefix, *map(str, place)] or ['0'])}"


def read_array(store: ZarrStore, key: str) -> ZarrArray | None:
    """The metadata of an array; None if there is none.

    Raises:
      OSError: it is damaged, or uses a feature that is not supported; the message names the array.
    """
    for name, parse in ((".zarray", _version_2), ("zarr.json", _version_3)):
        content = store.read(f"{key}/{name}")
        if content is not None:
            try:
                return _check(parse(key, parse_json(content, name)))
            except KeyError as error:
                raise OSError(f"{key}: its metadata has no {error.args[0]}") from None
            except (AttributeError, IndexError, OverflowError, TypeError, ValueError, UsageError) as error:
                raise OSError(f"{key}: {shorten(error)}") from None
    return None


def _version_2(key: str, content: Any) -> ZarrArray:
    shape, chunks = _sizes(content["shape"], 0), _sizes(content["chunks"], 1)
    filters = [str(entry["id"]) for entry in content.get("filters") or ()]
    compressor = content.get("compressor")
    codecs = [*([str(compressor["id"])] if compressor else []), *reversed(filters)]
    dtype = _dtype(content["dtype"], codecs)
    axes = tuple(range(len(shape)))
    axes = axes[::-1] if content.get("order") == "F" else axes
    separator = content.get("dimension_separator") or "."
    return ZarrArray(key, shape, chunks, dtype, content.get("fill_value"), tuple(codecs), axes, (), separator)


def _version_3(key: str, content: Any) -> ZarrArray:
    if content.get("node_type") != "array":
        raise ValueError("it is a group, expected an array")
    grid, encoding = content["chunk_grid"], content["chunk_key_encoding"]
    if grid["name"] != "regular":
        raise ValueError(f"its chunks are {shorten(grid['name'])}; supported: regular")
    shape, chunks = _sizes(content["shape"], 0), _sizes(grid["configuration"]["chunk_shape"], 1)
    codecs: list[str] = []
    axes: tuple[int, ...] = tuple(range(len(shape)))
    order: Literal["<", ">"] = "<"
    for item in content["codecs"]:
        name, options = str(item["name"]).removeprefix("numcodecs."), item.get("configuration") or {}
        if name == "transpose":
            axes = tuple(axes[axis] for axis in _sizes(options["order"], 0))
        elif name == "bytes":
            order = ">" if options.get("endian") == "big" else "<"
        else:
            codecs.insert(0, name)
    kind = content["data_type"]
    text = kind in ("string", "bytes", "variable_length_bytes")
    if not text and not (isinstance(kind, str) and _NAMES.fullmatch(kind)):
        raise ValueError(f"it holds {shorten(kind)} values, which are not supported")
    dtype = np.dtype(object) if text else np.dtype(kind).newbyteorder(order)
    separated = (encoding.get("configuration") or {}).get("separator")
    is_v2 = encoding["name"] == "v2"
    separator, prefix = separated or ("." if is_v2 else "/"), () if is_v2 else ("c",)
    return ZarrArray(key, shape, chunks, dtype, content.get("fill_value"), tuple(codecs), axes, prefix, separator)


def _sizes(content: Any, least: int) -> tuple[int, ...]:
    if not isinstance(content, list) or not all(type(size) is int and least <= size < 1 << 62 for size in content):
        raise ValueError(f"a shape in its metadata is {shorten(content)}, expected sizes")
    return tuple(content)


def _dtype(content: Any, codecs: Sequence[str]) -> np.dtype[Any]:
    if content == "|O":
        if not set(codecs) & set(TEXT_CODECS):
            raise ValueError("it holds Python objects, which only run as code")
        return np.dtype(object)
    if not isinstance(content, str) or not _DTYPE.fullmatch(content):
        raise ValueError(f"it holds {shorten(content)} values, which are not supported")
    return np.dtype(content)


def _check(array: ZarrArray) -> ZarrArray:
    known = (*BYTES_CODECS, *IMAGE_CODECS, *TEXT_CODECS)
    for codec in array.codecs:
        if codec == "sharding_indexed":
            raise ValueError(f"its chunks are in shards, which are not supported. {_NO_SHARDS}")
        if codec not in known:
            raise ValueError(f"it is stored with the codec {shorten(codec)}; supported: {', '.join(known)}")
    if not 1 <= len(array.shape) <= _MAX_DIMENSIONS or len(array.chunks) != len(array.shape):
        raise ValueError(f"its shape is {list(array.shape)}, with chunks of {list(array.chunks)}")
    if sorted(array.axes) != list(range(len(array.shape))) or array.separator not in (".", "/"):
        raise ValueError("the order of its axes, or the separator of its chunks, is not valid")
    item = array.dtype.itemsize
    rows = math.prod((array.chunks[0], *array.shape[1:])) * item
    if max(math.prod(array.chunks) * item, rows) > MAX_BYTES:
        raise ValueError(f"its chunks are larger than {MAX_BYTES >> 20:,} MB")
    if (
        math.prod(-(-size // chunk) for size, chunk in zip(array.shape[1:], array.chunks[1:], strict=True))
        > _MAX_CHUNKS
    ):
        raise ValueError(f"a row is spread over more than {_MAX_CHUNKS:,} chunks")
    return dataclasses.replace(array, fill=_fill(array))


def _fill(array: ZarrArray) -> Any:
    """The fill value in the array's dtype; zero or empty if there is none."""
    value = array.fill
    if array.is_text:
        return b"" if array.dtype == object else np.zeros((), array.dtype)[()]
    if value is None:
        return np.zeros((), array.dtype)[()]
    if isinstance(value, str):
        if value not in ("NaN", "Infinity", "-Infinity") or array.dtype.kind != "f":
            raise ValueError(f"its fill value is {shorten(value)}")
        return array.dtype.type(float(value.replace("Infinity", "inf")))
    made = np.array(value).astype(array.dtype)[()] if isinstance(value, (bool, int, float)) else None
    if made is None or (array.dtype.kind != "f" and made != value):
        raise ValueError(f"its fill value is {shorten(value)}")
    return made


def attributes(store: ZarrStore) -> Mapping[str, Any]:
    """The attributes of the store's root; empty if there are none. Raises OSError if they are damaged."""
    try:
        if (content := store.read(".zattrs")) is not None:
            found = parse_json(content, f"{store.root}: .zattrs")
        elif (content := store.read("zarr.json")) is not None:
            found = parse_json(content, f"{store.root}: zarr.json").get("attributes") or {}
        else:
            found = {}
    except (AttributeError, UsageError) as error:
        raise OSError(str(error)) from None
    return found if isinstance(found, dict) else {}


BYTES_CODECS = ("blosc", "bz2", "crc32c", "gzip", "lz4", "zlib", "zstd")
"""Compress bytes."""

IMAGE_CODECS = ("imagecodecs_jpeg2k", "imagecodecs_jpegxl", "imagecodecs_png")
"""Store a chunk as an image, or as several."""

TEXT_CODECS = ("vlen-bytes", "vlen-utf8")
"""Store values of varying length."""

_MAX_TEXT_BYTES = 64 << 20
"""Maximum bytes of a chunk of text."""


def most_encoded(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """The most bytes that an encoded chunk needs: random bytes grow a little, images of random pixels by a third."""
    return (1 << 16) + 2 * (_MAX_TEXT_BYTES if dtype.kind == "O" else math.prod(shape) * dtype.itemsize)


class CodecError(ValueError):
    """A chunk cannot be decoded."""


def decode_bytes(data: bytes, codec: str, size: int) -> bytes:
    """Undoes a codec of `BYTES_CODECS`.

    Args:
      data: the encoded bytes.
      codec: the codec.
      size: the most bytes that the result may have; no more is allocated.

    Raises:
      CodecError: they are damaged, or larger.
    """
    import imagecodecs

    if codec == "crc32c":
        if len(data) < 4 or google_crc32c.value(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise CodecError("the checksum is wrong")
        return data[:-4]
    if codec == "blosc":  # c-blosc trusts the sizes in the header
        if len(data) < 16 or struct.unpack_from("<I", data, 12)[0] != len(data):
            raise CodecError("it is cut short")
        if struct.unpack_from("<I", data, 4)[0] > size:
            raise CodecError("it is larger than its shape")
    decode: Callable[..., Any] = getattr(imagecodecs, f"{codec}_decode")
    more: dict[str, Any] = {"header": True} if codec == "lz4" else {"numthreads": 1} if codec == "blosc" else {}
    try:
        decoded: bytes = decode(data, out=bytearray(size), **more)
    except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise CodecError(str(error)) from None
    return decoded


def decode_image(data: bytes, codec: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Decodes a chunk stored by a codec of `IMAGE_CODECS`. Raises CodecError."""
    import imagecodecs

    out = np.empty(_frames(shape), dtype)
    decode: Callable[..., Any] = getattr(imagecodecs, f"{codec.removeprefix('imagecodecs_')}_decode")
    more = {} if codec.endswith("png") else {"numthreads": 1}
    try:
        decode(data, out=out, **more)
    except (RuntimeError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise CodecError(str(error)) from None
    return out.reshape(shape)


def _frames(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape as codecs see it: a single image, or several."""
    frames, image = math.prod(shape[:-3]), shape[-3:]
    return image if frames == 1 else (frames, *image)


def decode_text(data: bytes, shape: tuple[int, ...]) -> Array:
    """Decodes values of varying length to an object array of bytes. Raises CodecError."""
    count, at = math.prod(shape), 4
    if len(data) < 4 + 4 * count or struct.unpack_from("<I", data)[0] != count:
        raise CodecError("its number of values does not match the shape of a chunk")
    values: list[bytes] = []
    for _ in range(count):
        length = int.from_bytes(data[at : at + 4], "little")
        value = bytes(data[at + 4 : at + 4 + length])
        if len(value) != length:
            raise CodecError("it is cut short")
        values.append(value)
        at += 4 + length
    return np.fromiter(values, object, count).reshape(shape)


def decode_chunk(
    data: bytes, codecs: tuple[str, ...], shape: tuple[int, ...], dtype: np.dtype[Any], axes: tuple[int, ...]
) -> Array:
    """The values of a chunk.

    Args:
      data: the stored bytes.
      codecs: the codecs, the last one applied first.
      shape: the shape of the chunk.
      dtype: the dtype of the values; object for text.
      axes: the order in which the axes are stored.

    Raises:
      CodecError: they are damaged.
    """
    stored = tuple(shape[axis] for axis in axes)
    size = math.prod(shape) * dtype.itemsize if dtype.kind != "O" else _MAX_TEXT_BYTES
    values: Array | None = None
    for i, codec in enumerate(codecs):
        if codec in IMAGE_CODECS:
            values = decode_image(data, codec, stored, dtype)
        elif codec in TEXT_CODECS:
            values = decode_text(data, stored)
        else:  # a checksum may still follow the bytes
            data = decode_bytes(data, codec, size + 4 * (len(codecs) - i - 1))
    if values is None:
        if len(data) != size:
            raise CodecError(f"it has {len(data):,} bytes, expected {size:,}")
        values = np.frombuffer(data, dtype).reshape(stored)
    return values.transpose(np.argsort(axes)) if stored != shape or list(axes) != sorted(axes) else values
