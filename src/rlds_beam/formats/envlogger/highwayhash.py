"""64-bit HighwayHash with Riegeli's key: https://github.com/google/highwayhash (portable version)."""

from __future__ import annotations

import struct

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
