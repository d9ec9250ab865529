"""A flipped bit in a Parquet file with page checksums is an error, never another value."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lerobot_data as data
import pyarrow.parquet as pq
import pytest
from cases import cases
from exchanging import export

import rlds_beam
from rlds_beam.encoding.base import Damage
from rlds_beam.encoding.parquet_files import UNREADABLE, verified_parquet
from rlds_beam.errors import RldsBeamError
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


def judge(file: Path, read: Callable[[], Any], least: int = FLIPS // 2) -> None:
    """Reads the file once for each flipped bit, and asserts that each read fails or gives the same as before.

    Args:
      least: the number of reads that must fail; bits of page headers may have no meaning.
    """
    wanted, failed = read(), 0
    for _ in flipped(file):
        try:
            assert read() == wanted
        except (*UNREADABLE, RldsBeamError):
            failed += 1
    assert failed > least
    assert read() == wanted


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


def test_metadata_of_lerobot(source, tmp_path):
    data.convert_here(source, tmp_path / "out", shards=3)
    for name in ("episodes/chunk-000/file-000", "tasks"):
        file = tmp_path / f"out/meta/{name}.parquet"
        judge(file, lambda path=file: verified_parquet(path).read().to_pylist())
        judge(file, lambda: open_source(str(tmp_path / "out"), from_="lerobot").digest, least=1)  # reads no statistics


def test_columns(source, tmp_path):
    export(source, tmp_path / "columns", "columns", format="parquet", shards=1)
    (file, *_) = sorted(tmp_path.glob("columns/**/*.parquet"))
    judge(file, lambda: verified_parquet(file).read().to_pylist())


def test_the_table_of_signals(source, tmp_path):
    outcome = rlds_beam.check(source, output=str(tmp_path / "signals.parquet"))

    def read() -> Any:
        vars(outcome).pop("table", None)
        return outcome.table.to_pylist()

    judge(tmp_path / "signals.parquet", read)
