"""Reading ArrayRecord files from the array_record package's writer, intact and damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlds_beam.encoding import arrayrecord
from rlds_beam.encoding.base import Damage, Record

array_record = pytest.importorskip("array_record.python.array_record_module")

PAYLOADS = [bytes([i % 256]) * (i * 7) for i in range(200)]


def write(path: Path, payloads: list[bytes], options: str = "group_size:1") -> Path:
    writer = array_record.ArrayRecordWriter(str(path), options)
    for payload in payloads:
        writer.write(payload)
    writer.close()
    return path


@pytest.mark.parametrize("options", ["group_size:1", "group_size:16,zstd"])
def test_reads_files_from_array_record(tmp_path: Path, options: str) -> None:
    path = str(write(tmp_path / "a", PAYLOADS, options))
    assert arrayrecord.num_records(path) == len(PAYLOADS)
    assert list(arrayrecord.read_records(path)) == [Record(i, p) for i, p in enumerate(PAYLOADS)]


def test_ranges_add_up(tmp_path: Path) -> None:
    path = str(write(tmp_path / "a", PAYLOADS[:10]))
    whole = list(arrayrecord.read_records(path))
    for cut in range(12):
        assert [*arrayrecord.read_records(path, 0, cut), *arrayrecord.read_records(path, cut)] == whole


@pytest.mark.parametrize(
    "break_",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: b"text" * 30_000,
    ],
)
def test_incomplete_files(tmp_path: Path, break_: Callable[[bytes], bytes]) -> None:
    path = write(tmp_path / "a", PAYLOADS)
    path.write_bytes(break_(path.read_bytes()))
    with pytest.raises(arrayrecord.DamagedFileError, match=r"is not a complete ArrayRecord file: .+"):
        arrayrecord.num_records(str(path))
    (damage,) = arrayrecord.read_records(str(path))
    assert isinstance(damage, Damage) and str(path) in damage.reason
    assert list(arrayrecord.read_records(str(path), 1)) == []


def test_a_damaged_record_costs_only_itself(tmp_path: Path) -> None:
    payloads = [b"%03d" % i * 300 for i in range(100)]
    path = write(tmp_path / "a", payloads, "group_size:1,uncompressed")
    data = bytearray(path.read_bytes())
    data[bytes(data).index(b"042" * 300) + 10] ^= 1
    path.write_bytes(data)
    units = list(arrayrecord.read_records(str(path)))
    assert [u for u in units if isinstance(u, Record)] == [Record(i, p) for i, p in enumerate(payloads) if i != 42]
    (damage,) = [u for u in units if isinstance(u, Damage)]
    assert (damage.position, damage.stop) == (42, 43) and "cannot be read" in damage.reason
