"""A flipped bit in a Parquet file that we wrote is an error or a rejected episode, never another value."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lerobot_data as data
import pyarrow.parquet as pq
import pytest

import rlds_beam
from rlds_beam.encoding.base import Damage
from rlds_beam.encoding.parquet_reading import UNREADABLE, verified_parquet
from rlds_beam.errors import RldsBeamError
from rlds_beam.formats.columns.batches import row_groups
from rlds_beam.formats.sources import open_source

FLIPS = 100
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
    """Also the numbers that are written in place, and images that are copied."""
    data.convert_here(source, tmp_path / "out", shards=3, lerobot_version=version)
    file = sorted(tmp_path.glob("out/data/*/*.parquet"))[1]
    opened = open_source(str(tmp_path / "out"), from_="lerobot")
    wanted = list(opened.files.read(str(file)))
    rejected = 0
    for _ in flipped(file):
        for one, other in zip(opened.files.read(str(file)), wanted, strict=True):
            if isinstance(one, Damage):
                rejected += 1
                assert "damaged" in one.reason or "frames, but meta/" in one.reason
            else:
                assert one == other
    assert rejected > FLIPS // 2
    judge(file, lambda: verified_parquet(file).read().to_pylist())


def test_a_flipped_bit_rejects_its_episodes_with_a_reason(source, tmp_path):
    data.convert_here(source, tmp_path / "out", shards=3)
    file = sorted(tmp_path.glob("out/data/*/*.parquet"))[0]
    column = pq.read_metadata(file).row_group(0).column(0)
    content = bytearray(file.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    file.write_bytes(content)
    report = rlds_beam.validate(str(tmp_path / "out"), from_="lerobot")
    assert report.rejected and "CRC" in str(report.to_json())


def test_metadata_of_lerobot(source, tmp_path):
    data.convert_here(source, tmp_path / "out", shards=3)
    for name in ("episodes/chunk-000/file-000", "tasks"):
        file = tmp_path / f"out/meta/{name}.parquet"
        judge(file, lambda path=file: verified_parquet(path).read().to_pylist())
        judge(file, lambda: open_source(str(tmp_path / "out"), from_="lerobot").digest, least=1)  # reads no statistics


def row_groups_as_text(file: Path) -> Iterator[dict[str, str]]:
    for group in row_groups([str(file)]):
        yield {name: str(values.tolist()) for name, values in group.items()}


def test_columns_and_rllib(source, tmp_path):
    rlds_beam.convert(source, tmp_path / "columns", to="columns", format="parquet", shards=1)
    (file, *_) = sorted(tmp_path.glob("columns/**/*.parquet"))
    judge(file, lambda: list(row_groups_as_text(file)))
    rlds_beam.convert(source, tmp_path / "rllib", to="rllib", shards=1)
    (file, *_) = sorted(tmp_path.glob("rllib/**/*.parquet"))
    judge(file, lambda: verified_parquet(file).read().to_pylist())


def test_the_table_of_signals(source, tmp_path):
    outcome = rlds_beam.check(source, output=str(tmp_path / "signals.parquet"))

    def read() -> Any:
        vars(outcome).pop("table", None)
        return outcome.table.to_pylist()

    judge(tmp_path / "signals.parquet", read)
