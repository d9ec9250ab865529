"""Protobuf's wire format by hand: the few lines of it that a handful of messages take.

Source of the format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator


@functools.lru_cache(maxsize=1 << 12)
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


class Message:
    """A message that was read. Where a field stands several times the last one counts, as protobuf has it.

    Raises:
      ValueError: here or on a look at a field: the bytes are not such a message.
    """

    def __init__(self, data: bytes):
        self._fields: dict[int, list[int | bytes]] = {}
        for number, value in _fields(data):
            self._fields.setdefault(number, []).append(value)

    def __contains__(self, field: int) -> bool:
        return field in self._fields

    def integer(self, field: int) -> int:
        """An int32, int64 or bool field; 0 where it is not there."""
        value = self.unsigned(field)
        return value - (1 << 64) if value >> 63 else value

    def unsigned(self, field: int) -> int:
        """A uint64 or enum field; 0 where it is not there."""
        value = self._last(field, 0)
        if not isinstance(value, int):
            raise ValueError(f"field {field} is not an integer")
        return value

    def double(self, field: int) -> float:
        """A double field; 0 where it is not there."""
        return float(struct.unpack("<d", self._bytes(field, 8) or bytes(8))[0])

    def text(self, field: int) -> str:
        """A string field; empty where it is not there."""
        return self._bytes(field).decode()

    def message(self, field: int) -> Message:
        """A field that is a message; an empty one where it is not there."""
        return Message(self._bytes(field))

    def messages(self, field: int) -> list[Message]:
        """A repeated field of messages."""
        values = self._fields.get(field, [])
        return [Message(value) for value in values if isinstance(value, bytes)]

    def _bytes(self, field: int, size: int | None = None) -> bytes:
        value = self._last(field, b"")
        if not isinstance(value, bytes) or (value and size is not None and len(value) != size):
            raise ValueError(f"field {field} is of another type")
        return value

    def _last(self, field: int, default: int | bytes) -> int | bytes:
        return self._fields.get(field, [default])[-1]


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: varints as unsigned integers, everything else as its bytes."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        wire_type = tag & 7
        if wire_type == 0:
            value, at = _read_varint(data, at)
            yield tag >> 3, value
            continue
        if wire_type == 2:
            size, at = _read_varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(wire_type, len(data))
        if at + size > len(data):
            raise ValueError(f"a field of wire type {wire_type} runs over the end of the message")
        yield tag >> 3, data[at : at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at `at`, and where it ends."""
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value & (1 << 64) - 1, at + i + 1
    raise ValueError("a number runs over the end of the message")
