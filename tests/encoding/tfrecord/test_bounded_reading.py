"""Damage crafted to be expensive: the bytes read and checked are bounded by the size of the file."""

from __future__ import annotations

import gzip
import io
import struct
import zlib

import numpy as np
import pytest

from rlds_beam.encoding.base import Damage, Record
from rlds_beam.encoding.tfrecord import file as tfrecord
from rlds_beam.encoding.tfrecord import framing as tfrecord_framing
from rlds_beam.encoding.tfrecord.file import read_records, scan_headers
from rlds_beam.encoding.tfrecord.framing import EFFORT, EFFORT_BYTES, GzipStream, record_header
from rlds_beam.encoding.tfrecord.rows import frame, frame_all

SIZE = 6 << 20


class CostHint:
    """Counts the bytes that are read from a file, and the bytes that are checksummed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.read = self.checked = 0
        crc = tfrecord_framing.masked_crc

        def counted(data: bytes) -> int:
            self.checked += len(data)
            return crc(data)

        monkeypatch.setattr(tfrecord_framing, "masked_crc", counted)
        monkeypatch.setattr(tfrecord, "masked_crc", counted)
        effort = self

        class Counted(io.BytesIO):
            def readinto(self, buffer):
                count = super().readinto(buffer)
                effort.read += count
                return count

        self.file = Counted

    def assert_bounded(self, size: int) -> None:
        assert self.read + self.checked <= (EFFORT + 2) * size + 2 * EFFORT_BYTES


@pytest.fixture
def effort(monkeypatch):
    return CostHint(monkeypatch)


def headers_everywhere() -> bytes:
    """Only headers, each claiming half of the file."""
    return record_header(SIZE // 2 - 101) * (SIZE // 12)


def headers_and_records() -> bytes:
    """Alternating headers that claim half of the file and intact records: every damaged region ends at once."""
    return (record_header(SIZE // 2 - 100) + frame(b"sound")) * (SIZE // 33)


def headers_of_falling_length() -> bytes:
    """Headers that each claim the rest of the file, except a few bytes."""
    return b"".join(record_header(SIZE - at - 40) for at in range(0, SIZE - 100, 12)) + bytes(100)


HOSTILE = (headers_everywhere, headers_and_records, headers_of_falling_length)


@pytest.mark.timeout(100)
@pytest.mark.parametrize("made", HOSTILE)
def test_headers_that_claim_much(effort, made):
    data = made()
    position = 0
    for unit in read_records(effort.file(data)):
        assert unit.position == position
        position = unit.stop if isinstance(unit, Damage) else position + 16 + len(unit.payload)
    assert position == len(data)  # every byte is still accounted for
    assert "not searched" in unit.reason
    effort.assert_bounded(len(data))


@pytest.mark.timeout(100)
@pytest.mark.parametrize("made", HOSTILE)
def test_scanning_these_headers(effort, made):
    data = made()
    scan_headers(effort.file(data))
    effort.assert_bounded(len(data))


@pytest.mark.timeout(100)
@pytest.mark.parametrize("made", HOSTILE)
def test_these_headers_in_a_gzip_file(effort, made):
    data = made()
    for read in (lambda file: list(read_records(file)), scan_headers):
        stream = GzipStream(io.BytesIO(gzip.compress(data, 1)))
        read(stream)
        assert stream.inflated <= (EFFORT + 2) * len(data) + 2 * EFFORT_BYTES


def test_accidental_damage_in_every_record_is_read_to_the_end(effort):
    random = np.random.default_rng(0)
    payloads = [random.bytes(int(n)) for n in random.integers(1000, 60_000, 200)]
    data, at = bytearray(frame_all(payloads)), 0
    for i, payload in enumerate(payloads):
        data[at + (2, 9, 13, len(payload) + 13)[i % 4]] ^= 0x40  # length, its checksum, data, its checksum
        at += len(payload) + 16
    good = frame(b"good")
    for file in (effort.file(bytes(data) + good), GzipStream(io.BytesIO(gzip.compress(bytes(data) + good, 1)))):
        *damages, last = read_records(file)
        assert last == Record(len(data), b"good")
        assert not any("not searched" in unit.reason for unit in damages)
    assert effort.read + effort.checked <= 8 * len(data) + EFFORT_BYTES


def test_damage_in_a_gzip_file_does_not_decompress_it_repeatedly():
    random = np.random.default_rng(1)
    payloads = [random.bytes(200_000) for _ in range(150)]
    data, at = bytearray(frame_all(payloads)), 0
    for i, payload in enumerate(payloads):
        if i % 3 == 1:
            data[at + (2 if i % 2 else 100)] ^= 1
        at += len(payload) + 16
    stream = GzipStream(io.BytesIO(gzip.compress(bytes(data), 0)))
    units = list(read_records(stream))
    assert units == list(read_records(io.BytesIO(bytes(data))))
    assert sum(isinstance(unit, Damage) for unit in units) == 50
    assert stream.inflated <= 1.5 * len(data)


def test_stream_damage_is_found_again_after_going_back():
    data = bytearray(gzip.compress(frame_all([b"x" * 100_000] * 300), 0))
    data[len(data) // 2 : len(data) // 2 + 8] = struct.pack("<Q", zlib.crc32(b"damage"))
    units = list(read_records(GzipStream(io.BytesIO(bytes(data)))))
    assert sum(isinstance(unit, Record) for unit in units) > 100
    assert isinstance(units[-1], Damage)
