"""The records of MCAP files, checked before anything is allocated."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from rlds_beam.formats.ros2.messages import MAX_BYTES, DamagedBag

MAX_EXPANSION = 1 << 15
"""Maximum ratio of zstd's compression: 128 KiB from a block of 4 bytes. That of LZ4 is 255."""
MAGIC = b"\x89MCAP0\r\n"
FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK, MESSAGE_INDEX, CHUNK_INDEX, STATISTICS, DATA_END = 2, 3, 4, 5, 6, 7, 8, 11, 15

_HEAD = struct.Struct("<BQ")
_U32 = struct.Struct("<I")


class MessageSchema(NamedTuple):
    """A message type and its definition."""

    name: str
    language: str
    text: str


class Channel(NamedTuple):
    """A stream of messages of a topic."""

    topic: str
    schema: int
    encoding: str


class MessageChunk(NamedTuple):
    """Consecutive messages of a file.

    Attributes:
      offset, length: where its record is; of a run, where its records are.
      start, end: the first and the last log time.
      indexes: the offset of the message index of each channel in it; None if there are none.
      limit: where its message indexes end at the latest.
      is_run: whether these are messages outside of a chunk.
    """

    offset: int
    length: int
    start: int
    end: int
    indexes: Mapping[int, int] | None = None
    is_run: bool = False
    limit: int = 0

    def may_hold(self, ids: Collection[int]) -> bool:
        """Whether it may hold messages of these channels."""
        return bool(ids) and (self.indexes is None or not self.indexes.keys().isdisjoint(ids))

    @classmethod
    def from_index(cls, fields: Fields) -> MessageChunk:
        """The chunk that a ChunkIndex record describes."""
        start, end, offset, length = fields.take(struct.Struct("<QQQQ"))
        entries = fields.block(fields.take(_U32)[0])
        indexes = dict(struct.iter_unpack("<HQ", entries[: len(entries) // 10 * 10]))
        return cls(offset, length, start, end, indexes or None)


def place_chunks(chunks: Collection[MessageChunk], end: int) -> list[MessageChunk]:
    """The chunks of a summary in the order of the file, with their limits.

    Args:
      end: where the chunks and their indexes end.

    Raises:
      DamagedBag: chunks overlap, or a message index is not between its chunk and the next one. A small file could list
        the same messages again and again.
    """
    placed: list[MessageChunk] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.offset, reverse=True):
        stop = chunk.offset + chunk.length
        if stop > end or any(not stop <= at < end for at in (chunk.indexes or {}).values()):
            raise DamagedBag(f"the chunk at byte {chunk.offset:,} or its indexes are beyond byte {end:,}")
        placed.append(chunk._replace(limit=end))
        end = chunk.offset
    return placed[::-1]


class Fields:
    """Reads the fields of a record."""

    def __init__(self, data: memoryview, where: str):
        self._data, self._at, self._where = data, 0, where

    def take(self, form: struct.Struct) -> tuple[Any, ...]:
        """Numbers."""
        return form.unpack(self.block(form.size))

    def text(self) -> str:
        """A text, or the bytes of a schema as text."""
        return bytes(self.block(self.take(_U32)[0])).decode("utf-8", "replace")

    def block(self, size: int) -> memoryview:
        """The next bytes."""
        data = self._data[self._at : self._at + size]
        if len(data) != size:
            raise DamagedBag(f"{self._where}: a record ends early")
        self._at += size
        return data


def records(data: memoryview, where: str) -> Iterator[tuple[int, int, int, memoryview]]:
    """The records in the bytes of a chunk or a summary: kind, start and end of the content, and `data`.

    Raises:
      DamagedBag: a record goes beyond the bytes.
    """
    at, size = 0, len(data)
    while at < size:
        if at + _HEAD.size > size:
            raise DamagedBag(f"{where}: a record ends early")
        kind, length = _HEAD.unpack_from(data, at)
        start = at + _HEAD.size
        at = start + length
        if at > size:
            raise DamagedBag(f"{where}: a record of {length:,} bytes goes beyond its end")
        yield kind, start, at, data


def decompress(stored: memoryview, compression: str, size: int, where: str) -> memoryview:
    """The bytes of a chunk, which are exactly `size`.

    Raises:
      DamagedBag: they cannot be decompressed, or are not as many as the chunk claims.
    """
    if size > MAX_BYTES:
        raise DamagedBag(f"{where} claims {size:,} bytes; at most {MAX_BYTES:,} are supported")
    if size > len(stored) * MAX_EXPANSION:
        raise DamagedBag(f"{where} claims {size:,} bytes, but the file stores only {len(stored):,}")
    if not compression:
        data: Any = stored
    elif compression in ("zstd", "lz4"):
        import imagecodecs

        decode = imagecodecs.zstd_decode if compression == "zstd" else imagecodecs.lz4f_decode
        try:
            data = decode(stored, out=size + 1)  # one more, to see whether there is more
        except Exception as error:  # each codec has its own
            raise DamagedBag(f"{where} cannot be decompressed: {error}") from error
    else:
        raise DamagedBag(f"{where} is compressed as {compression!r}; supported: zstd, lz4")
    if len(data) != size:
        raise DamagedBag(f"{where} holds {len(data):,} bytes, but claims {size:,}")
    return memoryview(data)


def zstd_size(stored: memoryview, where: str) -> int:
    """The size that a zstd frame claims to have uncompressed. Raises DamagedBag if it claims none."""
    frame = bytes(stored[:18])
    if frame[:4] == b"\x28\xb5\x2f\xfd" and len(frame) > 5:
        # RFC 8878, 3.1.1.1: flags say how many bytes the window, the dictionary's number, and the size take
        flags, is_single = frame[4] >> 6, frame[4] >> 5 & 1
        width = (is_single, 2, 4, 8)[flags]
        at = 5 + (not is_single) + (0, 1, 2, 4)[frame[4] & 3]
        if width and len(frame) >= at + width:
            return int.from_bytes(frame[at : at + width], "little") + (256 if width == 2 else 0)
    raise DamagedBag(f"{where} is not zstd with a known size")


def checked_crc(data: memoryview, crc: int, where: str) -> memoryview:
    """The same bytes. Raises DamagedBag if their checksum differs; 0 means that there is none."""
    import imagecodecs

    if crc and imagecodecs.deflate_crc32(data) != crc:
        raise DamagedBag(f"{where} has a wrong checksum")
    return data
