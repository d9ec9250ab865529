"""TFRecord files: reading compared with TensorFlow, every kind of damage, splitting, and writing."""

from __future__ import annotations

import gzip
import io
import itertools
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import ALL
from framed_records import FAULTS, PAYLOADS, STARTS, THIRD, damages, flip, read, records
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.encoding.base import Damage, Record
from rlds_beam.encoding.tfrecord import file as tfrecord
from rlds_beam.encoding.tfrecord import framing as tfrecord_framing
from rlds_beam.encoding.tfrecord.file import read_records, scan_headers
from rlds_beam.encoding.tfrecord.framing import GzipStream
from rlds_beam.encoding.tfrecord.rows import FramedRows, frame, frame_all


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


def test_each_bad_record_is_a_separate_damage() -> None:
    for name in ("two data in a row", "data, then length", "length, then data"):
        assert len(damages(read(FAULTS[name]))) == 2, name


def test_damage_keeps_the_bytes() -> None:
    (framed,) = damages(read(FAULTS["data"]))
    assert framed.payload == flip(PAYLOADS[3], 2)
    (unframed,) = damages(read(FAULTS["length"]))
    assert unframed.payload == FAULTS["length"][THIRD : STARTS[3]]
    (capped,) = damages(read(FAULTS["length"], max_damage_bytes=5))
    assert (capped.payload, capped.stop) == (unframed.payload[:5], unframed.stop)


def test_a_record_above_the_limit_is_skipped() -> None:
    data = frame_all([b"ok", b"x" * 100, b"too"])
    units = read(data, max_record_bytes=50)
    assert records(units) == [b"ok", b"too"]
    assert "100 bytes, more than max_record_bytes=50" in damages(units)[0].reason
    with pytest.raises(ValueError, match="max_record_bytes"):
        read(data, max_record_bytes=1 << 32)


def test_a_wrong_length_allocates_nothing() -> None:
    data = tfrecord_framing.record_header((1 << 30) - 1) + b"short"
    tracemalloc.start()
    try:
        for file in (io.BytesIO(data), GzipStream(io.BytesIO(gzip.compress(data)))):
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
        patch.setattr(tfrecord_framing, "BLOCK", block)
        patch.setattr(tfrecord, "BLOCK", block)
        patch.setattr(tfrecord, "_FAR", 100)
        assert read(data) == whole
        middle = len(data) // 2
        assert read(data, 0, middle) + read(data, middle) == whole
        assert list(read_records(GzipStream(io.BytesIO(gzip.compress(data))))) == whole
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
            assert crc == tfrecord_framing.masked_crc(unit.payload)
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
        data += tfrecord_framing.record_header(length) + b"\x07"
    for shift in range(4):
        found = tfrecord_framing.find_headers(memoryview(bytes(shift) + data))
        assert found.tolist() == [place + shift for place in expected]
    for short in range(12):
        assert tfrecord_framing.find_headers(memoryview(bytes(short))).tolist() == []


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


@pytest.mark.parametrize(("count", "length"), [(0, 5), (3, 0), (1, 1), (2500, 33)])
def test_rows_same_bytes_as_tensorflow(tf: Any, tmp_path: Path, count: int, length: int) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (count, length), np.uint8)
    expected = written_by_tf(tf, tmp_path / "a", [row.tobytes() for row in rows])
    room = FramedRows(count, length)
    for _ in range(2):  # the buffer can be reused
        room.payload[:] = rows
        assert memoryview(room.finish()).tobytes() == expected


def test_open_detects_gzip_by_bytes_not_by_name(tf: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    payloads = [random.bytes(300_000), b"", b"last" * 50_000]
    zipped, plain = tmp_path / "x.tfrecord.gz-00000-of-00010", tmp_path / "plain.gz"
    written_by_tf(tf, zipped, payloads, "GZIP")
    written_by_tf(tf, plain, payloads)
    for path, splittable, size in ((zipped, False, None), (plain, True, plain.stat().st_size)):
        opened = tfrecord.open_tfrecord(str(path))
        with opened.file:
            assert (opened.splittable, opened.size) == (splittable, size)
            assert list(read_records(opened.file)) == read(plain.read_bytes())


def test_a_plain_file_that_begins_like_gzip(tmp_path: Path) -> None:
    payload = bytes(int.from_bytes(b"\x1f\x8b\x08", "little"))
    (tmp_path / "a").write_bytes(frame(payload))
    opened = tfrecord.open_tfrecord(str(tmp_path / "a"))
    with opened.file:
        assert opened.splittable
        assert records(list(read_records(opened.file))) == [payload]


# Memory


def test_memory_does_not_grow_with_the_file() -> None:
    def peak(count: int) -> int:
        data = io.BytesIO(frame(bytes(50_000)) * count)
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_records(data)) == count
            assert len(scan_headers(data).lengths) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(1000) < 1.1 * peak(100)
