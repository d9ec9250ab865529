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


_MASK, _LOW = (1 << 64) - 1, (1 << 32) - 1
_KEY = (0x2F696C6567656952, 0x0A7364726F636572) * 2
_MUL0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_MUL1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
_PACKET = struct.Struct("<4Q")


def highway_hash(data: bytes) -> int:
    """The hash of bytes, as in Riegeli's headers."""
    state = _State()
    whole = len(data) // 32 * 32
    for lanes in _PACKET.iter_unpack(data[:whole]):
        state.update(lanes)
    if whole < len(data):
        state.update_rest(data[whole:])
    return state.finish()


class _State:
    def __init__(self) -> None:
        self.v0 = [m ^ k for m, k in zip(_MUL0, _KEY, strict=True)]
        self.v1 = [m ^ _swap(k) for m, k in zip(_MUL1, _KEY, strict=True)]
        self.mul0, self.mul1 = list(_MUL0), list(_MUL1)

    def update(self, lanes: tuple[int, ...]) -> None:
        v0, v1, mul0, mul1 = self.v0, self.v1, self.mul0, self.mul1
        for i in range(4):
            v1[i] = (v1[i] + mul0[i] + lanes[i]) & _MASK
            mul0[i] ^= (v1[i] & _LOW) * (v0[i] >> 32)
            v0[i] = (v0[i] + mul1[i]) & _MASK
            mul1[i] ^= (v0[i] & _LOW) * (v1[i] >> 32)
        for source, into in ((v1, v0), (v0, v1)):
            for i in (0, 2):
                low, high = _zip(source[i], source[i + 1])
                into[i], into[i + 1] = (into[i] + low) & _MASK, (into[i + 1] + high) & _MASK

    def update_rest(self, rest: bytes) -> None:
        """Adds the last 1 to 31 bytes."""
        count, short = len(rest), len(rest) % 4
        self.v0 = [(v + (count << 32) + count) & _MASK for v in self.v0]
        self.v1 = [_rotate(v & _LOW, count) | _rotate(v >> 32, count) << 32 for v in self.v1]
        packet = bytearray(32)
        packet[: count - short] = rest[: count - short]
        if count & 16:
            packet[28:] = rest[-4:]
        elif short:
            last = rest[-short:]
            packet[16:19] = bytes((last[0], last[short >> 1], last[-1]))
        self.update(_PACKET.unpack(packet))

    def finish(self) -> int:
        for _ in range(4):
            v0 = self.v0
            self.update((_swap(v0[2]), _swap(v0[3]), _swap(v0[0]), _swap(v0[1])))
        return (self.v0[0] + self.v1[0] + self.mul0[0] + self.mul1[0]) & _MASK


def _swap(value: int) -> int:
    return value >> 32 | (value & _LOW) << 32


def _rotate(half: int, count: int) -> int:
    return (half << count | half >> (32 - count)) & _LOW


def _zip(v0: int, v1: int) -> tuple[int, int]:
    """Mixes the bytes of two lanes: the terms to add to the lower and the higher lane."""
    low = (
        ((v0 & 0xFF000000) | (v1 & 0xFF00000000)) >> 24
        | ((v0 & 0xFF0000000000) | (v1 & 0xFF000000000000)) >> 16
        | (v0 & 0xFF0000)
        | (v0 & 0xFF00) << 32
        | (v1 & 0xFF00000000000000) >> 8
        | (v0 << 56) & _MASK
    )
    high = (
        ((v1 & 0xFF000000) | (v0 & 0xFF00000000)) >> 24
        | (v1 & 0xFF0000)
        | (v1 & 0xFF0000000000) >> 16
        | (v1 & 0xFF00) << 24
        | (v0 & 0xFF000000000000) >> 8
        | (v1 & 0xFF) << 48
        | (v0 & 0xFF00000000000000)
    )
    return low, high
