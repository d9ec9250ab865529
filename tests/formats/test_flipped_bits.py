"""A flipped bit in a Parquet file with page checksums is an error, never another value."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import lerobot_data as data
import pyarrow.parquet as pq
import pytest
from cases import cases
from exchanging import export

from rlds_beam.encoding.base import Damage
from rlds_beam.encoding.parquet_files import UNREADABLE, verified_parquet
from rlds_beam.formats.inputs import open_source
from rlds_beam.output.files import compute_checksum

FLIPS = cases(100)
"""Bits to flip in each file."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return data.write_robot_data(tmp_path_factory.mktemp("data"))[0]


def flipped(file: Path, flips: int = FLIPS) -> Iterator[None]:
    """Flips a bit of the file's pages at a time, of every column of each row group in turn."""
    whole, rng = file.read_bytes(), random.Random(file.name)
    metadata = pq.read_metadata(file)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    for i in range(max(flips, len(columns))):
        column = columns[i % len(columns)]
        start = column.dictionary_page_offset or column.data_page_offset
        at = start + rng.randrange(column.total_compressed_size)
        content = bytearray(whole)
        content[at] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
        yield
    file.write_bytes(whole)


@pytest.mark.parametrize("version", ["3.0", "2.1"])
def test_frames_of_lerobot(source, tmp_path, version):
    """Their pages have no checksums: a read gives a record or says what is damaged; the manifest has the checksum."""
    data.convert_here(source, tmp_path / "out", shards=3, lerobot_version=version)
    file = sorted(tmp_path.glob("out/data/*/*.parquet"))[1]
    opened = open_source(str(tmp_path / "out"), from_="lerobot")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    checksums = {shard["file"]: shard["checksum"] for shard in manifest["shards"]}
    wanted = checksums[str(file.relative_to(tmp_path / "out"))]
    count, rejected = len(list(opened.files.read(str(file)))), 0
    assert compute_checksum(str(file)) == wanted
    for _ in flipped(file):
        assert compute_checksum(str(file)) != wanted
        read = list(opened.files.read(str(file)))
        damaged = [one.reason for one in read if isinstance(one, Damage)]
        assert len(read) == count
        assert all("damaged" in reason or "frames, but meta/" in reason or "has a task" in reason for reason in damaged)
        rejected += len(damaged)
    assert rejected


def test_columns(source, tmp_path):
    export(source, tmp_path / "columns", "columns", format="parquet", shards=1)
    (file, *_) = sorted(tmp_path.glob("columns/**/*.parquet"))
    wanted, failed = verified_parquet(file).read().to_pylist(), 0
    for _ in flipped(file):
        try:
            assert verified_parquet(file).read().to_pylist() == wanted  # bits of page headers may have no meaning
        except UNREADABLE:
            failed += 1
    assert failed > FLIPS // 2
