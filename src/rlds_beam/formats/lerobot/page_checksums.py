"""The checksum in the header of a Parquet page, as bytes that can be replaced in place.

The header is a Thrift struct in the compact protocol. Its fourth field is the CRC-32 of the page's bytes as a number of
1 to 5 bytes, depending on its value; a number may have more bytes than it needs. Each byte holds 7 bits, and all but
the last have the upper bit:

    15 00       15 50       15 50       15 DA B7 A0 B6 07       1C ...
    type        sizes                   checksum, i32 (zigzag)  of the kind of page
"""

from __future__ import annotations

import zlib

SIZE = 5
"""Bytes of every checksum that we write."""

_I32 = 0x15
"""Head of a 32-bit field that follows the one before."""

_BEFORE = 3
"""Fields before the checksum."""


def encoded(page: bytes) -> bytes:
    """The checksum of a page's bytes, in `SIZE` bytes."""
    number = _zigzag(zlib.crc32(page))
    return bytes((number >> 7 * i) & 0x7F | (0x80 if i < SIZE - 1 else 0) for i in range(SIZE))


def fills_its_place(page: bytes) -> bool:
    """Whether the checksum of a page's bytes needs all of the `SIZE` bytes, so that every writer uses them."""
    return _zigzag(zlib.crc32(page)) >> 7 * (SIZE - 1) > 0


def place_in(header: bytes) -> int | None:
    """The offset of the checksum in the header of a page; None if there is none with `SIZE` bytes."""
    at = 0
    for _ in range(_BEFORE):
        stop = _end(header, at)
        if stop is None:
            return None
        at = stop
    return at + 1 if _end(header, at) == at + 1 + SIZE else None


def _end(header: bytes, at: int) -> int | None:
    """The end of the 32-bit field at this offset."""
    if header[at : at + 1] != bytes([_I32]):
        return None
    return next((i + 1 for i in range(at + 1, len(header)) if header[i] < 0x80), None)


def _zigzag(checksum: int) -> int:
    signed = checksum - (1 << 32) if checksum >> 31 else checksum
    return (signed << 1) ^ (signed >> 31)
