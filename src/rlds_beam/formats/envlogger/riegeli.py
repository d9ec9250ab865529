"""Find the chunks of Riegeli record files without decoding them, and write files of a few records.

EnvLogger's reader finds records only through index files. If these are missing or damaged, the records are located
here and the index files rebuilt. The format is described in Riegeli's `doc/riegeli_records_file_format.md`:

    file    chunk | chunk | chunk ...        a block header of 24 bytes lies at every multiple of 64 KiB, within a chunk
    chunk   hash, size of the data, hash of the data, type, number of records, size when decoded (40 bytes) | data

A record's position is the offset of its chunk plus its number in the chunk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

from rlds_beam.encoding import wire
from rlds_beam.formats.envlogger.highwayhash import highway_hash

BLOCK = 1 << 16
_BLOCK_HEADER, _CHUNK_HEADER = struct.Struct("<QQQ"), struct.Struct("<QQQB7sQ")
_USABLE = BLOCK - _BLOCK_HEADER.size
_RECORDS = b"rt"
"""Chunk types that hold records: simple and transposed."""
_SIGNATURE, _SIMPLE, _PADDING = ord("s"), ord("r"), ord("p")


class RiegeliChunk(NamedTuple):
    """A chunk of records.

    Attributes:
      begin: the offset in the file.
      records: the number of records.
    """

    begin: int
    records: int


class Gap(NamedTuple):
    """Bytes without a valid chunk.

    Attributes:
      begin, end: the offsets in the file.
    """

    begin: int
    end: int


def scan(file: IO[bytes]) -> Iterator[RiegeliChunk | Gap]:
    """The chunks of records in a file, by their headers. After a damaged header it continues with the next block.

    A chunk's data may still be damaged. A chunk that was not fully written is a gap.
    """
    size = file.seek(0, 2)
    place = 0
    while place < size:
        header = _chunk_header(file, place)
        end = None if header is None else _end(place, header[0], header[2])
        if header is None or end is None or end > size:
            following = _next_chunk(file, place, size)
            yield Gap(place, following)
            place = following
            continue
        _, kind, records = header
        if kind in _RECORDS and records:
            yield RiegeliChunk(place, records)
        place = end


def _chunk_header(file: IO[bytes], place: int) -> tuple[int, int, int] | None:
    """Data size, type and number of records; None if there is no valid header at this offset."""
    content = _read(file, place, _CHUNK_HEADER.size)
    if len(content) < _CHUNK_HEADER.size:
        return None
    digest, size, _, kind, records, _ = _CHUNK_HEADER.unpack(content)
    if highway_hash(content[8:]) != digest:
        return None
    return size, kind, int.from_bytes(records, "little")


def _next_chunk(file: IO[bytes], place: int, size: int) -> int:
    """The offset of the first chunk after `place` that a block header names, or the end of the file."""
    for block in range((place // BLOCK + 1) * BLOCK, size, BLOCK):
        file.seek(block)
        content = file.read(_BLOCK_HEADER.size)
        if len(content) == _BLOCK_HEADER.size:
            digest, before, after = _BLOCK_HEADER.unpack(content)
            if highway_hash(content[8:]) == digest:
                begins = [begin for begin in (block - before, block + after) if place < begin < size]
                if begins:
                    return int(begins[0])
    return size


def _read(file: IO[bytes], place: int, count: int) -> bytes:
    """Bytes of a chunk starting at `place`, without the block headers."""
    content = b""
    while len(content) < count:
        if place % BLOCK == 0:
            place += _BLOCK_HEADER.size
        file.seek(place)
        data = file.read(min(count - len(content), BLOCK - place % BLOCK))
        if not data:
            break
        content += data
        place += len(data)
    return content


def _end(begin: int, data: int, records: int) -> int:
    """The end of a chunk with this many bytes of data and records."""
    size = _CHUNK_HEADER.size + data
    blocks = (size + (begin + _USABLE - 1) % BLOCK) // _USABLE
    least = begin + records
    remaining = BLOCK - 1 - (least + BLOCK - 1) % BLOCK
    return max(begin + size + blocks * _BLOCK_HEADER.size, least + max(0, remaining - (_USABLE - 1)))


def bridge(gap: Gap) -> Iterator[tuple[int, bytes]]:
    """The bytes, with their offsets in the file, that turn a gap into a chunk without records.

    To find the chunk after a damaged one, a reader first reads the damaged one's header.
    """
    blocks = -(-gap.end // BLOCK) - -(-gap.begin // BLOCK)
    data = gap.end - gap.begin - blocks * _BLOCK_HEADER.size - _CHUNK_HEADER.size
    if data < 0 or _end(gap.begin, data, 0) != gap.end:
        return
    rest = _CHUNK_HEADER.pack(0, data, 0, _PADDING, bytes(7), 0)[8:]  # padding is not read, so its hash does not matter
    place = gap.begin
    for byte in highway_hash(rest).to_bytes(8, "little") + rest:
        place += _BLOCK_HEADER.size if place % BLOCK == 0 else 0
        yield place, bytes((byte,))
        place += 1


def riegeli_file(*chunks: Sequence[bytes]) -> bytes:
    """A file of a few records, in uncompressed chunks."""
    file = bytearray()
    _write_chunk(file, _SIGNATURE, 0, 0, b"")
    for records in filter(None, chunks):
        sizes = b"".join(wire.varint(len(record)) for record in records)
        data = b"\0" + wire.varint(len(sizes)) + sizes + b"".join(records)
        _write_chunk(file, _SIMPLE, len(records), sum(map(len, records)), data)
    return bytes(file)


def _write_chunk(file: bytearray, kind: int, records: int, decoded: int, data: bytes) -> None:
    begin = len(file)
    rest = _CHUNK_HEADER.pack(0, len(data), highway_hash(data), kind, records.to_bytes(7, "little"), decoded)[8:]
    content = highway_hash(rest).to_bytes(8, "little") + rest + data
    end = _end(begin, len(data), records)
    content += bytes(end - begin - len(content))  # longer than the padding; cut below
    used = 0
    while len(file) < end:
        if len(file) % BLOCK == 0:
            header = struct.pack("<QQ", len(file) - begin, end - len(file))
            file += highway_hash(header).to_bytes(8, "little") + header
        count = min(BLOCK - len(file) % BLOCK, end - len(file))
        file += content[used : used + count]
        used += count
