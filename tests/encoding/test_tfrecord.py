"""TFRecord files: reading compared with TensorFlow, every kind of damage, splitting, and writing."""

from __future__ import annotations

import gzip
import io
import itertools
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import ALL
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.encoding.base import CheckedRecord, Damage, Record
from rlds_beam.encoding.tfrecord import file as tfrecord
from rlds_beam.encoding.tfrecord.file import read_records, scan_headers
from rlds_beam.encoding.tfrecord.framing import frame, frame_all, masked_crc, record_header


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
    "huge length": GOOD[:THIRD] + HUGE + struct.pack("<I", masked_crc(HUGE)) + GOOD[THIRD + 12 :],
    "longer than the file": GOOD[:THIRD] + record_header(999) + GOOD[THIRD + 12 :],
    "text": b"This is a text file and nothing else.\n" * 3,
    "one bad record": flip(frame(b"alone"), 14),
}


def zipped(data: bytes) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(data)))


@pytest.mark.parametrize("name", FAULTS)
def test_ranges_add_up(name: str) -> None:
    """Any partition into ranges yields the same as one reader, each record exactly once.

    Each offset is the end of a range, and some are also the start of a range that ends elsewhere.
    """
    data = FAULTS[name]
    whole = read(data)
    places = range(len(data) + 2)
    fronts, backs = [read(data, 0, a) for a in places], [read(data, b) for b in places]
    for a, b in itertools.combinations_with_replacement(places, 2):
        if a % (3 if ALL else 11) == 0 or a == b:
            assert fronts[a] + read(data, a, b) + backs[b] == whole, (a, b)


@pytest.mark.parametrize("name", FAULTS)
def test_every_byte_is_accounted_for(name: str) -> None:
    units = read(FAULTS[name])
    position = 0
    for unit in units:
        assert unit.position == position
        position = unit.stop if isinstance(unit, Damage) else position + 16 + len(unit.payload)
    assert position == len(FAULTS[name])


@pytest.mark.parametrize(
    ("name", "lost", "reason"),
    [
        ("data", [3], "does not match its checksum"),
        ("data crc", [3], "does not match its checksum"),
        ("two data in a row", [3, 4], "does not match its checksum"),
        ("first data", [0], "does not match its checksum"),
        ("last data", [5], "does not match its checksum"),
        ("length", [2], "length does not match its checksum"),
        ("length crc", [2], "length does not match its checksum"),
        ("first length", [0], "length does not match its checksum"),
        ("data, then length", [3, 4], "does not match its checksum"),
        ("length, then data", [2, 3], "length does not match its checksum"),
        ("torn header", [5], "header is cut short (expected 12 bytes, found 7)"),
        ("torn payload", [5], "cut short (expected 19 bytes, found 13)"),
        ("torn footer", [5], "cut short (expected 19 bytes, found 17)"),
        ("trailing zeros", [], "zeros instead of a record"),
        ("trailing garbage", [], "length does not match its checksum"),
        ("hole of zeros", [2, 3], "zeros instead of a record"),
        ("bytes lost in data", [3], "does not match its checksum"),
        ("bytes put in", [3], "does not match its checksum"),
        ("huge length", [2], f"claims {1 << 60} bytes"),
        ("longer than the file", [2], "cut short (expected 1015 bytes"),
        ("text", range(6), "is this a TFRecord file?"),
    ],
)
def test_damage_costs_only_what_it_hits(name: str, lost: list[int], reason: str) -> None:
    units = read(FAULTS[name])
    assert records(units) == [p for i, p in enumerate(PAYLOADS) if i not in lost]
    assert reason in damages(units)[0].reason


def test_accidental_damage_in_every_record_is_read_to_the_end() -> None:
    random = np.random.default_rng(0)
    payloads = [random.bytes(int(n)) for n in random.integers(1000, 60_000, 200)]
    data, at = bytearray(frame_all(payloads)), 0
    for i, payload in enumerate(payloads):
        data[at + (2, 9, 13, len(payload) + 13)[i % 4]] ^= 0x40  # length, its checksum, data, its checksum
        at += len(payload) + 16
    good = frame(b"good")
    for file in (io.BytesIO(data + good), zipped(data + good)):
        *units, last = read_records(file)
        assert last == Record(len(data), b"good")
        assert all(isinstance(unit, Damage) for unit in units)


def test_damage_keeps_the_bytes() -> None:
    (framed,) = damages(read(FAULTS["data"]))
    assert framed.payload == flip(PAYLOADS[3], 2)
    (unframed,) = damages(read(FAULTS["length"]))
    assert unframed.payload == FAULTS["length"][THIRD : STARTS[3]]


def test_a_record_above_the_limit_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "MAX_RECORD_BYTES", 50)
    units = read(frame_all([b"ok", b"x" * 100, b"too"]))
    assert records(units) == [b"ok", b"too"]
    assert "100 bytes, but at most 50" in damages(units)[0].reason


def test_a_wrong_length_allocates_nothing() -> None:
    data = record_header((1 << 30) - 1) + b"short"
    tracemalloc.start()
    try:
        for file in (io.BytesIO(data), zipped(data)):
            (unit,) = read_records(file)
            assert "cut short" in unit.reason  # type: ignore[union-attr]
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_records_inside_a_record_do_not_fool_a_reader() -> None:
    inner = frame_all([b"inner", b"records"])
    payloads = [inner, b"x" + inner * 2, b"plain", inner]
    data = frame_all(payloads)
    assert records(read(data)) == payloads
    damaged = flip(data, 12 + len(inner) + 4 + 12)
    assert records(read(damaged)) == [payloads[0], *payloads[2:]]
    for bytes_ in (data, damaged):
        whole = read(bytes_)
        for boundary in scan_headers(io.BytesIO(bytes_)).positions.tolist():
            assert read(bytes_, 0, boundary) + read(bytes_, boundary) == whole


@settings(max_examples=150, deadline=None)
@given(
    payloads=st.lists(st.binary(max_size=30), max_size=6),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), st.binary(max_size=12)), max_size=3),
    cuts=st.lists(st.integers(0, 300), max_size=6),
)
def test_ranges_add_up_on_anything(
    payloads: list[bytes], edits: list[tuple[float, int, bytes]], cuts: list[int]
) -> None:
    data = frame_all(payloads)
    for where, removed, added in edits:
        at = int(where * len(data))
        data = data[:at] + added + data[at + removed :]
    whole = read(data)
    bounds = [0, *sorted(cuts), None]
    parts = [read(data, a, b) for a, b in itertools.pairwise(bounds)]  # type: ignore[arg-type]
    assert list(itertools.chain(*parts)) == whole
    if not edits:
        assert records(whole) == payloads


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1 << 32), block=st.integers(64, 300))
def test_blocks_leave_no_seams(seed: int, block: int) -> None:
    """The results do not depend on the reader's block boundaries."""
    random = np.random.default_rng(seed)
    payloads = [random.bytes(int(n)) for n in random.integers(0, 400, 12)]
    data = frame_all(payloads)
    data = flip(data, *random.integers(0, len(data), int(random.integers(0, 4))).tolist())
    whole, headers = read(data), scan_headers(io.BytesIO(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfrecord, "BLOCK", block)
        patch.setattr(tfrecord, "_FAR", 100)
        assert read(data) == whole
        middle = len(data) // 2
        assert read(data, 0, middle) + read(data, middle) == whole
        assert list(read_records(zipped(data))) == whole
        for one, other in zip(headers, scan_headers(io.BytesIO(data)), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", FAULTS)
def test_headers_include_records_and_framed_damage(name: str) -> None:
    data = FAULTS[name]
    units = {unit.position: unit for unit in read(data)}
    headers = scan_headers(io.BytesIO(data))
    assert [a.dtype for a in headers] == [np.int64, np.int64, np.uint32]
    assert {unit.position for unit in units.values() if isinstance(unit, Record)} <= set(headers.positions.tolist())
    for position, length, crc in zip(*(a.tolist() for a in headers), strict=True):
        unit = units[position]
        assert length == len(unit.payload)
        if isinstance(unit, Record):
            assert crc == masked_crc(unit.payload)
        else:
            assert unit.stop == position + length + 16
    for cut in range(len(data) + 1):
        parts = [scan_headers(io.BytesIO(data), 0, cut), scan_headers(io.BytesIO(data), cut)]
        assert np.concatenate([p.positions for p in parts]).tolist() == headers.positions.tolist()


def test_find_headers_finds_every_alignment_and_length() -> None:
    lengths = [0, 1, 255, 256, 65536, (1 << 24) + 7, (1 << 32) - 1]
    data, expected = b"\x01", []
    for length in lengths:
        expected.append(len(data))
        data += record_header(length) + b"\x07"
    for shift in range(4):
        found = tfrecord.find_headers(memoryview(bytes(shift) + data))
        assert found.tolist() == [place + shift for place in expected]
    for short in range(12):
        assert tfrecord.find_headers(memoryview(bytes(short))).tolist() == []


# Compared with TensorFlow


@pytest.fixture(scope="module")
def tf() -> Any:
    return pytest.importorskip("tensorflow")


def written_by_tf(tf: Any, path: Path, payloads: list[bytes], compression: str = "") -> bytes:
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for payload in payloads:
            writer.write(payload)
    return path.read_bytes()


def test_same_bytes_as_tensorflow(tf: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    payloads = [random.bytes(n) for n in (0, 1, 7, 100, 70_000, 2_000_000)]
    expected = written_by_tf(tf, tmp_path / "a", payloads)
    assert frame_all(payloads) == expected
    assert b"".join(map(frame, payloads)) == expected
    assert records(read(expected)) == payloads


def test_open_detects_gzip_by_bytes_not_by_name(tf: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    payloads = [random.bytes(300_000), b"", b"last" * 50_000]
    zipped, plain = tmp_path / "x.tfrecord.gz-00000-of-00010", tmp_path / "plain.gz"
    written_by_tf(tf, zipped, payloads, "GZIP")
    written_by_tf(tf, plain, payloads)
    for path, splittable in ((zipped, False), (plain, True)):
        assert tfrecord.TFRecordFormat().is_splittable(str(path)) is splittable
        with tfrecord.open_tfrecord(str(path)) as file:
            assert list(read_records(file)) == read(plain.read_bytes())


def test_a_plain_file_that_begins_like_gzip(tmp_path: Path) -> None:
    payload = bytes(int.from_bytes(b"\x1f\x8b\x08", "little"))
    (tmp_path / "a").write_bytes(frame(payload))
    form = tfrecord.TFRecordFormat()
    assert form.is_splittable(str(tmp_path / "a"))
    assert records(list(form.read(str(tmp_path / "a")))) == [payload]


# gzip


def read_gzip(data: bytes) -> list[Record | Damage]:
    return list(read_records(gzip.GzipFile(fileobj=io.BytesIO(data))))


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


def test_damage_of_a_gzip_file_is_found_again_after_going_back() -> None:
    data = bytearray(gzip.compress(frame_all([b"x" * 100_000] * 300), 0))
    data[len(data) // 2 : len(data) // 2 + 8] = struct.pack("<Q", zlib.crc32(b"damage"))
    units = read_gzip(bytes(data))
    assert sum(isinstance(unit, Record) for unit in units) > 100
    assert isinstance(units[-1], Damage)


# Checksums: copies of a record reuse the one that was verified on reading


CHECKED = [b"", b"a", bytes(1000), b"x" * (3 << 20)]
"""The last one is longer than a block and takes another code path."""


def test_every_record_has_the_checksum_of_its_payload() -> None:
    records = list(read_records(io.BytesIO(frame_all(CHECKED))))
    assert [record.payload for record in records] == CHECKED
    for record in records:
        assert isinstance(record, CheckedRecord)
        assert record.crc == masked_crc(record.payload)
        assert record == Record(record.position, record.payload)
    damaged = bytearray(frame(b"abc"))
    damaged[13] ^= 1
    (unit,) = read_records(io.BytesIO(bytes(damaged)))
    assert isinstance(unit, Damage)
