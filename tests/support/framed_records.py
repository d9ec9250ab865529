"""TFRecord files in memory, intact and damaged."""

from __future__ import annotations

import io
import struct
from typing import Any

from rlds_beam.encoding.base import Damage, Record
from rlds_beam.encoding.tfrecord import framing as tfrecord_framing
from rlds_beam.encoding.tfrecord.file import read_records
from rlds_beam.encoding.tfrecord.framing import frame, frame_all


def read(data: bytes, start: int = 0, stop: int | None = None, **options: Any) -> list[Record | Damage]:
    return list(read_records(io.BytesIO(data), start, stop, **options))


def records(units: list[Record | Damage]) -> list[bytes]:
    return [unit.payload for unit in units if isinstance(unit, Record)]


def damages(units: list[Record | Damage]) -> list[Damage]:
    return [unit for unit in units if isinstance(unit, Damage)]


def flip(data: bytes, *places: int) -> bytes:
    changed = bytearray(data)
    for place in places:
        changed[place] ^= 0x40
    return bytes(changed)


PAYLOADS = [b"alfa", b"", b"b", b"gamma", bytes(5), b"\xff" * 3]
GOOD = frame_all(PAYLOADS)
STARTS = [sum(len(p) + 16 for p in PAYLOADS[:i]) for i in range(len(PAYLOADS) + 1)]
THIRD = STARTS[2]
HUGE = (1 << 60).to_bytes(8, "little")
FAULTS: dict[str, bytes] = {
    "none": GOOD,
    "empty": b"",
    "data": flip(GOOD, STARTS[3] + 14),
    "data crc": flip(GOOD, STARTS[4] - 2),
    "two data in a row": flip(GOOD, STARTS[3] + 14, STARTS[4] + 14),
    "first data": flip(GOOD, 13),
    "last data": flip(GOOD, len(GOOD) - 5),
    "length": flip(GOOD, THIRD),
    "length crc": flip(GOOD, THIRD + 9),
    "first length": flip(GOOD, 0),
    "last length": flip(GOOD, STARTS[-2]),
    "data, then length": flip(GOOD, STARTS[3] + 14, STARTS[4]),
    "length, then data": flip(GOOD, STARTS[2], STARTS[3] + 14),
    "torn header": GOOD[: STARTS[-2] + 7],
    "torn payload": GOOD[: STARTS[-2] + 13],
    "torn footer": GOOD[:-2],
    "torn, and data before": flip(GOOD[:-2], STARTS[4] + 14),
    "trailing zeros": GOOD + bytes(40),
    "trailing garbage": GOOD + b"garbage, and not little of it",
    "hole of zeros": GOOD[:THIRD] + bytes(STARTS[4] - THIRD) + GOOD[STARTS[4] :],
    "bytes lost in data": GOOD[: STARTS[3] + 14] + GOOD[STARTS[3] + 17 :],
    "bytes lost in header": GOOD[: STARTS[3] + 2] + GOOD[STARTS[3] + 5 :],
    "bytes put in": GOOD[: STARTS[3] + 14] + b"???" + GOOD[STARTS[3] + 14 :],
    "huge length": GOOD[:THIRD] + HUGE + struct.pack("<I", tfrecord_framing.masked_crc(HUGE)) + GOOD[THIRD + 12 :],
    "longer than the file": GOOD[:THIRD] + tfrecord_framing.record_header(999) + GOOD[THIRD + 12 :],
    "text": b"This is a text file and nothing else.\n" * 3,
    "one bad record": flip(frame(b"alone"), 14),
}
