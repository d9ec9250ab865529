"""Compressed TFRecord files: members, padding, damage, and seeking."""

from __future__ import annotations

import gzip
import io

import numpy as np
import pytest
from framed_records import FAULTS, GOOD, PAYLOADS, damages, read, records

from rlds_beam.encoding.base import Damage, Record
from rlds_beam.encoding.tfrecord.file import read_records
from rlds_beam.encoding.tfrecord.framing import GzipStream
from rlds_beam.encoding.tfrecord.rows import frame_all


def read_gzip(data: bytes) -> list[Record | Damage]:
    return list(read_records(GzipStream(io.BytesIO(data))))


def test_gzip_members_and_padding() -> None:
    first, second = frame_all(PAYLOADS[:3]), frame_all(PAYLOADS[3:])
    for padding in (b"", bytes(100)):
        data = gzip.compress(first) + padding + gzip.compress(second) + padding
        assert read_gzip(data) == read(GOOD)
    assert read_gzip(gzip.compress(b"")) == []


def test_gzip_cut_anywhere_is_damage() -> None:
    data = gzip.compress(GOOD)
    whole = read(GOOD)
    for cut in range(3, len(data)):
        units = read_gzip(data[:cut])
        assert [u for u in units if isinstance(u, Record)] == whole[: len(records(units))]
        (damage,) = damages(units)
        assert units[-1] == damage
        assert "cut short" in damage.reason and "gzip" in damage.reason


@pytest.mark.parametrize("end", [b"trailing", b"\x1f\x8b\x08garbage......"])
def test_gzip_with_trailing_garbage(end: bytes) -> None:
    units = read_gzip(gzip.compress(GOOD) + end)
    assert records(units) == PAYLOADS
    assert "gzip stream is" in damages(units)[0].reason


def test_gzip_reading_continues_after_damaged_records() -> None:
    for data in FAULTS.values():
        assert read_gzip(gzip.compress(data)) == read(data)


def test_gzip_stream_seeks() -> None:
    data = np.random.default_rng(3).bytes(300_000)
    stream = GzipStream(io.BytesIO(gzip.compress(data)))
    for place in (0, 200_000, 5, 299_999, 300_000, 70_000):
        assert stream.seek(place) == stream.tell() == place
        assert stream.read(10) == data[place : place + 10]
    assert stream.seek(1 << 30) == len(data)
