"""Riegeli files: checked against the bytes in Riegeli's documentation, and by round trips."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.formats.envlogger.riegeli import BLOCK, Gap, RiegeliChunk, bridge, riegeli_file, scan

SIGNATURE = bytes.fromhex(
    "83af70d10d884a3f00000000000000004000000000000000 91bac23c9287e1a9"
    "0000000000000000e19f13c0e9b1c37273000000000000000000000000000000".replace(" ", "")
)
"""The first 64 bytes of every file: a block header and a chunk header, with HighwayHash hashes."""


def chunks(content: bytes) -> list[RiegeliChunk | Gap]:
    return list(scan(io.BytesIO(content)))


def test_a_file_begins_as_documented():
    assert riegeli_file([]) == SIGNATURE
    assert chunks(SIGNATURE) == []


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2 * BLOCK), max_size=3), st.integers(0, 40))
def test_written_chunks_are_found(sizes, short):
    content = riegeli_file([bytes(size) for size in sizes] + [b"x"] * short)
    assert chunks(content) == ([RiegeliChunk(64, len(sizes) + short)] if sizes or short else [])
    assert len(content) >= 64 + len(sizes) + short  # each record has its own position


def test_more_records_than_bytes():
    assert chunks(riegeli_file([b""] * 70_000)) == [RiegeliChunk(64, 70_000)]


@pytest.mark.parametrize("size", [10, 63 * 1024, 65_400, 200_000])
def test_a_truncated_chunk_is_a_gap(size):
    content = riegeli_file([bytes(size)])
    for cut in (65, 90, len(content) - 1):
        assert chunks(content[:cut]) == [Gap(64, cut)]


@pytest.mark.parametrize("size", [40, 900, 200_000])
def test_a_damaged_header_costs_one_chunk_and_is_bridged(size):
    whole = riegeli_file([bytes(10)] * 3, [bytes(size)] * 2, [bytes(90_000)], [b"last"])
    first, damaged, third, last = chunks(whole)
    content = bytearray(whole)
    content[damaged.begin + (24 if damaged.begin % BLOCK == 0 else 0)] ^= 0xFF
    _, gap, *rest = chunks(bytes(content))
    assert gap == Gap(damaged.begin, third.begin) and rest == [third, last]
    for place, byte in bridge(gap):
        content[place : place + 1] = byte
    assert chunks(bytes(content)) == [first, third, last]
