"""Writing protobuf's wire format by hand: the few lines of it that a handful of messages take.

Source of the format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations


def varint(value: int) -> bytes:
    """`value` (int64; a negative one takes 10 bytes) as a base-128 varint."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(field: int, value: int) -> bytes:
    """An int or enum field. The default 0 is left out, as in proto3."""
    return varint(field << 3) + varint(value) if value else b""


def text(field: int, value: str | None) -> bytes:
    """A string field. The empty string is left out, as in proto3."""
    return delimited(field, value.encode()) if value else b""


def delimited(field: int, payload: bytes) -> bytes:
    """A field of bytes, a packed list or a message: written even when empty."""
    return header(field, len(payload)) + payload


def header(field: int, length: int) -> bytes:
    """What stands before the `length` bytes of a length-delimited field."""
    return varint(field << 3 | 2) + varint(length)
