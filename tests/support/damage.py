"""Damage in TFRecord files."""

from __future__ import annotations

from pathlib import Path

from rlds_beam.encoding.tfrecord.framing import record_header
from rlds_beam.testing import record_offsets


def set_length(shard: Path | str, record: int, length: int) -> None:
    """Changes a record's length field, with a matching checksum."""
    data, start = bytearray(Path(shard).read_bytes()), record_offsets(shard)[record]
    data[start : start + 12] = record_header(length)
    Path(shard).write_bytes(data)


def insert_bytes(shard: Path | str, record: int, data: bytes) -> None:
    """Inserts bytes that belong to no record before `record`."""
    whole, start = Path(shard).read_bytes(), record_offsets(shard)[record]
    Path(shard).write_bytes(whole[:start] + data + whole[start:])
