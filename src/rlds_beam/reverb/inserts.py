"""Encodes Reverb's insert protocol: chunks of frames, and items that are slices of chunks.

Source: reverb/cc/schema.proto, reverb/cc/reverb_service.proto, and the server's reactor in
reverb/cc/reverb_service_impl.cc (https://github.com/google-deepmind/reverb). The protocol is undocumented; tests
against dm-reverb 0.14 pin it, and all our assumptions about it are listed here.

`/deepmind.reverb.ReverbService/InsertStream` is a bidirectional stream of `InsertStreamRequest`s and
`InsertStreamResponse`s.

- A *chunk* (`ChunkData`) is a run of frames: one snappy-compressed tensor [n, ...] per column, a key, and its place in
  an episode (`sequence_range`: episode ID, first and last step, both inclusive). The table counts episodes by that ID.
  `delta_encoded` stays unset: Reverb's TrajectoryWriter never sets it (chunker.h, `delta_encode = false`), and snappy
  compresses enough.
- An *item* (`PrioritizedItem`) has a table, a priority, and for each column (in the order of the table's flattened
  signature) its slices of chunks. The client chooses its key. Inserting an item whose key is already in the table only
  sets the priority again, so retries are harmless.
- Chunks come before the items that use them, in the same request, or in the previous one if it named them in
  `keep_chunk_keys`. Our requests hold everything that their items need, so any of them can be sent again; chunks that
  the previous request kept are left out only if it was sent on the same call.
- The response holds the keys of items now in their tables, each item of a call once. They may come in any order, and
  late: a table whose rate limiter blocks acknowledges an item when it admits it.
- The server checks only that tables and chunks exist. It accepts and acknowledges slices that reach past their chunk,
  or columns that do not match the signature, and they break the clients that sample them. So we check this first.

Numbers that differ from item to item are varints of fixed width, padded with continuation bits (which protobuf
accepts). So all items of a request are rows of one matrix, filled column by column.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow

from rlds_beam.encoding.wire import (
    DATA_TYPES,
    LEN,
    MAX_VARINT_BYTES,
    VARINT,
    MalformedError,
    decode_varints,
    encode_delimited,
    fields,
    fixed_varints,
    integer,
    tag_and_length,
    varint_width,
)
from rlds_beam.typing import Array

METHOD = "/deepmind.reverb.ReverbService/InsertStream"

Keys = np.ndarray[Any, np.dtype[np.uint64]]

_KEY_WIDTH = MAX_VARINT_BYTES
_SMALL = 1024  # maximum bytes of a column in a chunk to look up in the cache
_SNAPPY = pyarrow.Codec("snappy")


class Chunk(NamedTuple):
    """Encoded frames begin..end of a run (`end` excluded): an element of a request.

    Attributes:
      key: the uint64 key, unique in the server except for identical chunks.
      begin, end: the range of frames.
      parts: the bytes, to be concatenated.
      size: the total size of the parts, in bytes.
    """

    key: int
    begin: int
    end: int
    parts: Sequence[bytes]
    size: int

    def shift(self, frames: int) -> Chunk:
        """The same chunk in a run with this many more frames before it."""
        return Chunk(self.key, self.begin + frames, self.end + frames, self.parts, self.size)


@dataclasses.dataclass(frozen=True)
class Request:
    """One message of the stream: items, and all chunks that they are slices of.

    Attributes:
      parts: the serialized InsertStreamRequest without `keep`, concatenated once when it is sent. The concatenated
        parts of consecutive requests are also a request.
      keys: the keys of the items, uint64 [K], which the server acknowledges.
      keep: the last field: the chunks that the server must keep for the next request.
      kept: additional parts: the chunks that the previous request asked the server to keep.
    """

    parts: Sequence[bytes | memoryview]
    keys: Keys
    keep: bytes = b""
    kept: Sequence[bytes] = ()

    @functools.cached_property
    def size(self) -> int:
        """The size of `parts`, in bytes, without `kept`."""
        return sum(map(len, self.parts))


@dataclasses.dataclass(frozen=True)
class Slices:
    """The slices of K items that each span m chunks.

    Attributes:
      chunk_keys: the keys of each item's chunks, in order, uint64 [K, m].
      offsets: the first frame in each chunk, int [K, m].
      lengths: the number of frames in each chunk, int [K, m].
    """

    chunk_keys: Keys
    offsets: Array
    lengths: Array


def chunks(keys: Keys, columns: Sequence[Array], length: int, episode_id: int, start: int) -> list[Chunk]:
    """Encodes a run of frames as chunks of `length` frames (the last one may be shorter).

    Args:
      keys: the keys of the chunks, uint64.
      columns: the columns, [n, ...] each, with the signature's dtypes.
      length: the frames per chunk.
      episode_id: the ID of the episode, uint64.
      start: the index of the first frame in its episode.
    """
    count = len(columns[0])
    contents = [np.ascontiguousarray(column).reshape(-1).view(np.uint8).data for column in columns]
    widths = [len(content) // count for content in contents]
    key_bytes, episode = fixed_varints(keys, _KEY_WIDTH).tobytes(), integer(1, episode_id)
    key_numbers = keys.tolist()
    result, heads, after, n = [], list[bytes](), b"", 0
    for i, begin in enumerate(range(0, count, length)):
        end = min(begin + length, count)
        if end - begin != n:  # the first chunk, and the last one if shorter
            n = end - begin
            heads = [_tensor_head(column.dtype, (n, *column.shape[1:])) for column in columns]
            after = integer(6, len(columns)) + integer(7, n * sum(widths))
        # Not joined here: a chunk of a whole episode has megabytes, and copies are expensive.
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
        before = b"".join((b"\x08", key, encode_delimited(2, place), tag_and_length(5, size)))
        head = tag_and_length(1, len(before) + size + len(after)) + before
        parts = [head, *tensors, after]
        result.append(Chunk(key_numbers[i], begin, end, parts, len(head) + size + len(after)))
    return result


def items(table: str, keys: Keys, priorities: Array, slices: Slices, columns: int, *, squeeze: bool = False) -> Array:
    """Encodes items of one table as elements of a request, one per row: uint8 [K, W].

    Args:
      table: the table's name.
      keys: the items' keys, uint64 [K].
      priorities: the items' priorities, float64 [K].
      slices: the items' slices of chunks.
      columns: the number of columns of an item (tensors of a chunk).
      squeeze: writes single frames without a time axis (one slice of length 1).
    """
    count, spread = slices.offsets.shape
    width = varint_width(max(int(slices.offsets.max()), int(slices.lengths.max()), columns))
    template = _item_template(table, spread, columns, width, squeeze)
    rows = np.empty((count, len(template.row)), np.uint8)
    rows[:] = template.row
    rows[:, template.key : template.key + _KEY_WIDTH] = fixed_varints(keys, _KEY_WIDTH)
    rows[:, template.priority : template.priority + 8] = priorities.astype("<f8")[:, None].view(np.uint8)
    # All columns have the same slices; only the tensor's index differs, which is in the template.
    cells = rows[:, template.slices :].reshape(count, columns, -1)
    for i, place in enumerate(template.places):
        cut = np.empty((count, _KEY_WIDTH + 2 * (1 + width)), np.uint8)  # one write to all columns, not one per number
        cut[:, :_KEY_WIDTH] = fixed_varints(slices.chunk_keys[:, i], _KEY_WIDTH)
        for at, tag, values in ((_KEY_WIDTH, 0x10, slices.offsets), (_KEY_WIDTH + 1 + width, 0x18, slices.lengths)):
            cut[:, at] = tag
            cut[:, at + 1 : at + 1 + width] = fixed_varints(values[:, i], width)
        cells[:, :, place : place + cut.shape[1]] = cut[:, None]
    return rows


def acknowledged_keys(response: bytes) -> bytes:
    """The keys in a serialized InsertStreamResponse, as concatenated varints.

    Raises:
      MalformedError: the bytes are not such a message.
    """
    packed = []
    for number, wire, start, end in fields(response, 0, len(response)):
        if number == 1 and wire in (LEN, VARINT):  # Reverb sends one packed list; protobuf allows other forms
            if end > start and response[end - 1] >= 0x80:
                raise MalformedError("a key that does not end")
            packed.append(response[start:end])
    return b"".join(packed)


def count_keys(packed: bytes) -> int:
    """The number of keys in the result of `acknowledged_keys`."""
    return int(np.count_nonzero(np.frombuffer(packed, np.uint8) < 0x80))


def decode_keys(packed: Iterable[bytes]) -> Keys:
    """Decodes results of `acknowledged_keys`: uint64 [n].

    Raises:
      MalformedError: a key is longer than a 64-bit varint.
    """
    return decode_varints(b"".join(packed), np.uint64)


def _tensor(head: bytes, raw: bytes | memoryview) -> tuple[bytes, bytes, bytes]:
    content: bytes = _SNAPPY.compress(raw, asbytes=True)
    before = head + tag_and_length(4, len(content))
    return tag_and_length(1, len(before) + len(content)), before, content


@functools.lru_cache(maxsize=1024)
def _small_tensor(head: bytes, raw: bytes) -> bytes:
    """Encodes a small tensor, cached because many are equal: step types, discounts, sparse rewards."""
    return b"".join(_tensor(head, raw))


@functools.lru_cache(maxsize=4096)
def _tensor_head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """A TensorProto without its content, which is compressed as in reverb/cc/tensor_compression.cc."""
    dims = b"".join(encode_delimited(2, integer(1, size)) for size in shape)
    return integer(1, DATA_TYPES[dtype.name]) + encode_delimited(2, dims)


@dataclasses.dataclass(frozen=True)
class _ItemTemplate:
    """An encoded item with placeholders, and their positions in `row`.

    `places` are the positions of the chunk keys in one column's bytes; each is followed by the offset and the length,
    after their tags.
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
        stretch = b"\x08" + hole + b"\x10" + number + b"\x18" + number + b"\x20" + index
        parts = encode_delimited(1, stretch) * spread
        stretches.append(encode_delimited(1, parts + (b"\x10\x01" if squeeze else b"")))
    head = len(stretches[0]) - spread * len(encode_delimited(1, stretch)) - (2 if squeeze else 0)
    for i in range(spread):
        places.append(head + i * len(encode_delimited(1, stretch)) + len(tag_and_length(1, len(stretch))) + 1)
    trajectory = b"".join(stretches)
    before = b"\x08" + hole + encode_delimited(2, table.encode()) + b"\x29"
    body = before + struct.pack("<d", 0) + encode_delimited(8, trajectory)
    row = tag_and_length(2, len(body)) + body
    start = len(row) - len(body)
    return _ItemTemplate(
        np.frombuffer(row, np.uint8), start + 1, start + len(before), len(row) - len(trajectory), tuple(places)
    )
