"""Reverb's insert protocol: chunks of frames, and items that are slices of them, as bytes.

Source: reverb/cc/schema.proto, reverb/cc/reverb_service.proto and the server's reactor in
reverb/cc/reverb_service_impl.cc (https://github.com/google-deepmind/reverb). Undocumented, and pinned by
tests against dm-reverb 0.14: everything this project assumes of it is on this page.

`/deepmind.reverb.ReverbService/InsertStream` is a stream of `InsertStreamRequest`s one way and of
`InsertStreamResponse`s the other.

- A *chunk* (`ChunkData`) is a run of frames: one snappy-compressed tensor [n, ...] for each column, a key of
  its own, and its place in an episode (`sequence_range`: episode id, first and last step, both included). The
  table counts episodes by that id. `delta_encoded` stays unset: Reverb's TrajectoryWriter never sets it
  (chunker.h, `delta_encode = false`), and snappy does the work.
- An *item* (`PrioritizedItem`) names its table, its priority, and for each column (in the order of the
  table's flattened signature) the slices of chunks that make it up. Its key is the client's choice. An item
  whose key is in the table already only sets the priority again: that is what makes a retry harmless.
- Chunks come before the items that use them, in the same request or in the one before it, if that named them
  in `keep_chunk_keys`. A request of ours holds all that its items need, so that any of them can be sent again;
  what the request before it kept is left out only where that was sent on the same call.
- The response holds the keys of items that are in their tables now, each item of a call once. They may come
  in any order, and late: a table whose rate limiter blocks acknowledges when the limiter lets the item in.
- The server checks nothing but that tables and chunks exist. Slices that run over the end of their chunk, or
  columns that are not those of the signature, are taken, acknowledged, and break the clients that sample them. So all
  of it is checked before it is sent.

Wherever a number differs from item to item it is written as a varint of fixed width, with continuation bits
on zeros where it is short (protobuf reads that): all items of a request are then rows of one matrix, filled
column by column.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow

from rlds_beam.encoding.tensor_types import DATA_TYPES
from rlds_beam.encoding.wire import (
    LEN,
    LONGEST_VARINT,
    VARINT,
    MalformedError,
    decode_varints,
    delimited,
    fields,
    fixed_varints,
    integer,
    tag_and_length,
    varint_width,
)

METHOD = "/deepmind.reverb.ReverbService/InsertStream"

Array = np.ndarray[Any, Any]
Keys = np.ndarray[Any, np.dtype[np.uint64]]

_KEY_WIDTH = LONGEST_VARINT
_SMALL = 1024  # bytes of a column in a chunk up to which repeated columns are looked for
_SNAPPY = pyarrow.Codec("snappy")


class Chunk(NamedTuple):
    """Frames begin..end of a run (`end` excluded), encoded: an element of a request.

    Attributes:
      key: a uint64; no other chunk in the server may have it, unless it is the same one.
      begin, end: in frames.
      parts: its bytes, end to end.
      size: of all parts, in bytes.
    """

    key: int
    begin: int
    end: int
    parts: Sequence[bytes]
    size: int

    def shifted(self, frames: int) -> Chunk:
        """The same chunk of a run that has so many frames more before it."""
        return Chunk(self.key, self.begin + frames, self.end + frames, self.parts, self.size)


@dataclasses.dataclass(frozen=True)
class Request:
    """One message of the stream: items, and all the chunks that they are slices of.

    Attributes:
      parts: end to end the serialised InsertStreamRequest, but for `keep`; joined once, when it is sent. Those of
        several requests in a row are one request.
      keys: uint64 [K], of its items: what the server acknowledges.
      keep: its last field, the chunks that the server is to hold for the request that follows.
      kept: more parts: the chunks that the request before it has the server hold.
    """

    parts: Sequence[bytes | memoryview]
    keys: Keys
    keep: bytes = b""
    kept: Sequence[bytes] = ()

    @functools.cached_property
    def size(self) -> int:
        """Of the parts, in bytes, without those that are kept."""
        return sum(map(len, self.parts))


@dataclasses.dataclass(frozen=True)
class Slices:
    """Where items lie in chunks: all of these K items spread over m chunks each.

    Attributes:
      chunk_keys: uint64 [K, m], of the chunks of each item, in order.
      offsets: int [K, m]: the first frame taken of each chunk.
      lengths: int [K, m]: how many frames are taken of it.
    """

    chunk_keys: Keys
    offsets: Array
    lengths: Array


def chunks(keys: Keys, columns: Sequence[Array], length: int, episode_id: int, start: int) -> list[Chunk]:
    """A run of frames in chunks of `length` (the last one is what is left).

    Args:
      keys: uint64, of the chunks.
      columns: [n, ...] each, of the signature's dtypes.
      length: frames in a chunk.
      episode_id: uint64.
      start: which frame of its episode the first one is.
    """
    count = len(columns[0])
    contents = [np.ascontiguousarray(column).reshape(-1).view(np.uint8).data for column in columns]
    widths = [len(content) // count for content in contents]
    key_bytes, episode = fixed_varints(keys, _KEY_WIDTH).tobytes(), integer(1, episode_id)
    key_numbers = keys.tolist()
    result, heads, after, n = [], list[bytes](), b"", 0
    for i, begin in enumerate(range(0, count, length)):
        end = min(begin + length, count)
        if end - begin != n:  # the first chunk, and perhaps the last one
            n = end - begin
            heads = [_tensor_head(column.dtype, (n, *column.shape[1:])) for column in columns]
            after = integer(6, len(columns)) + integer(7, n * sum(widths))
        # Not joined here: a chunk of a whole episode is megabytes, and each copy of it counts.
        tensors: list[bytes] = []
        for head, content, width in zip(heads, contents, widths, strict=True):
            raw = content[begin * width : end * width]
            if len(raw) <= _SMALL:
                tensors.append(_small_tensor(head, bytes(raw)))
            else:
                tensors += _tensor(head, raw)
        size = sum(map(len, tensors))
        place = episode + integer(2, start + begin) + integer(3, start + end - 1)
        key = key_bytes[i * _KEY_WIDTH : (i + 1) * _KEY_WIDTH]
        before = b"".join((b"\x08", key, delimited(2, place), tag_and_length(5, size)))
        head = tag_and_length(1, len(before) + size + len(after)) + before
        parts = [head, *tensors, after]
        result.append(Chunk(key_numbers[i], begin, end, parts, len(head) + size + len(after)))
    return result


def items(table: str, keys: Keys, priorities: Array, slices: Slices, columns: int, *, squeeze: bool = False) -> Array:
    """Items of one table, as elements of a request: uint8 [K, W], one a row.

    Args:
      table: its name.
      keys: uint64 [K].
      priorities: float64 [K].
      slices: of the K items.
      columns: how many columns (tensors of each chunk) an item has.
      squeeze: give single frames without a time axis (one slice of length 1).
    """
    count, spread = slices.offsets.shape
    width = varint_width(max(int(slices.offsets.max()), int(slices.lengths.max()), columns))
    template = _item_template(table, spread, columns, width, squeeze)
    rows = np.empty((count, len(template.row)), np.uint8)
    rows[:] = template.row
    rows[:, template.key : template.key + _KEY_WIDTH] = fixed_varints(keys, _KEY_WIDTH)
    rows[:, template.priority : template.priority + 8] = priorities.astype("<f8")[:, None].view(np.uint8)
    # All columns take the same slices; only the index of the tensor differs, and that is in the template.
    cells = rows[:, template.slices :].reshape(count, columns, -1)
    for i, place in enumerate(template.places):
        cut = np.empty((count, _KEY_WIDTH + 2 * (1 + width)), np.uint8)  # one write to all columns, not one a number
        cut[:, :_KEY_WIDTH] = fixed_varints(slices.chunk_keys[:, i], _KEY_WIDTH)
        for at, tag, values in ((_KEY_WIDTH, 0x10, slices.offsets), (_KEY_WIDTH + 1 + width, 0x18, slices.lengths)):
            cut[:, at] = tag
            cut[:, at + 1 : at + 1 + width] = fixed_varints(values[:, i], width)
        cells[:, :, place : place + cut.shape[1]] = cut[:, None]
    return rows


def acknowledged_keys(response: bytes) -> bytes:
    """The keys in a serialised InsertStreamResponse, as varints end to end.

    Raises:
      MalformedError: the bytes are no such message.
    """
    packed = []
    for number, wire, start, end in fields(response, 0, len(response)):
        if number == 1 and wire in (LEN, VARINT):  # Reverb sends one packed list; protobuf allows other forms
            if end > start and response[end - 1] >= 0x80:
                raise MalformedError("a key that does not end")
            packed.append(response[start:end])
    return b"".join(packed)


def count_keys(packed: bytes) -> int:
    """How many keys `acknowledged_keys` found."""
    return int(np.count_nonzero(np.frombuffer(packed, np.uint8) < 0x80))


def decode_keys(packed: Iterable[bytes]) -> Keys:
    """What `acknowledged_keys` found, in several responses perhaps: uint64 [n].

    Raises:
      MalformedError: a key is longer than a number may be.
    """
    return decode_varints(b"".join(packed), np.uint64)


def _tensor(head: bytes, raw: bytes | memoryview) -> tuple[bytes, bytes, bytes]:
    content: bytes = _SNAPPY.compress(raw, asbytes=True)
    before = head + tag_and_length(4, len(content))
    return tag_and_length(1, len(before) + len(content)), before, content


@functools.lru_cache(maxsize=1024)
def _small_tensor(head: bytes, raw: bytes) -> bytes:
    """Many are the same: step types, discounts, rewards where they are rare."""
    return b"".join(_tensor(head, raw))


@functools.lru_cache(maxsize=4096)
def _tensor_head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """A TensorProto but for its content, which is compressed as reverb/cc/tensor_compression.cc does."""
    dims = b"".join(delimited(2, integer(1, size)) for size in shape)
    return integer(1, DATA_TYPES[dtype.name]) + delimited(2, dims)


@dataclasses.dataclass(frozen=True)
class _ItemTemplate:
    """An item with holes: `row` is its bytes, the rest say where the holes are.

    `places` are those of the chunk keys within one column's stretch of bytes; offset and length follow each, after
    their tags.
    """

    row: Array
    key: int
    priority: int
    slices: int
    places: tuple[int, ...]


@functools.lru_cache(maxsize=1024)
def _item_template(table: str, spread: int, columns: int, width: int, squeeze: bool) -> _ItemTemplate:
    hole, number = b"\x80" * (_KEY_WIDTH - 1) + b"\0", b"\x80" * (width - 1) + b"\0"
    stretches, places = [], []
    for column in range(columns):
        index = fixed_varints(np.array([column]), width).tobytes()
        one = b"\x08" + hole + b"\x10" + number + b"\x18" + number + b"\x20" + index
        parts = delimited(1, one) * spread
        stretches.append(delimited(1, parts + (b"\x10\x01" if squeeze else b"")))
    head = len(stretches[0]) - spread * len(delimited(1, one)) - (2 if squeeze else 0)
    for i in range(spread):
        places.append(head + i * len(delimited(1, one)) + len(tag_and_length(1, len(one))) + 1)
    trajectory = b"".join(stretches)
    before = b"\x08" + hole + delimited(2, table.encode()) + b"\x29"
    body = before + struct.pack("<d", 0) + delimited(8, trajectory)
    row = tag_and_length(2, len(body)) + body
    start = len(row) - len(body)
    return _ItemTemplate(
        np.frombuffer(row, np.uint8), start + 1, start + len(before), len(row) - len(trajectory), tuple(places)
    )
