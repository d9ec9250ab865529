"""Parquet files of buckets are read without threads of Arrow; those without a footer, as far as they are complete."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import DEADLINE

from rlds_beam.encoding.parquet_files import restore_footer, verified_parquet

READ = """
import io, os, sys
from rlds_beam.encoding.parquet_files import verified_parquet

class File(io.FileIO):
    name = None  # as a file in a bucket

def threads():
    return len(os.listdir("/proc/self/task"))

file = verified_parquet(io.BufferedReader(File(sys.argv[1])))
before = threads()
file.read(use_threads=False)
file.read_row_group(1, columns=["a"], use_threads=False)
list(file.iter_batches(1000, use_threads=False))
assert threads() == before
file.read(use_threads=True)
assert threads() > before
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    columns: Any = {name: range(100_000) for name in "abcd"}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=20_000, write_page_checksum=True)
    return tmp_path / "a.parquet"


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads in /proc")
def test_no_thread_of_arrow_reads_a_file_of_python(file: Path) -> None:
    """One that still holds a buffer of Python when the interpreter ends would abort the process."""
    command = [sys.executable, "-c", READ, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr


def test_pages_are_compared_with_their_checksums(file: Path) -> None:
    content = bytearray(file.read_bytes())
    column = pq.read_metadata(file).row_group(0).column(0)
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        verified_parquet(io.BytesIO(content)).read()


SCHEMA = pa.schema(
    {
        "flag": pa.bool_(),
        "vector": pa.list_(pa.float32(), 3),
        "matrix": pa.list_(pa.list_(pa.float64())),
        "image": pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        "text": pa.string(),
        "index": pa.int64(),
    }.items()
)
SIZES = [1, 3, 4, 1, 1, 1, 1]


def table(rows: int, image_bytes: int) -> pa.Table:
    rng = np.random.default_rng(rows)
    columns = {
        "flag": [bool(i % 2) for i in range(rows)],
        "vector": rng.normal(size=(rows, 3)).astype(np.float32).tolist(),
        "matrix": rng.normal(size=(rows, 2, 2)).tolist(),
        "image": [{"bytes": rng.bytes(image_bytes), "path": None} for _ in range(rows)],
        "text": ["push" if i < rows // 2 else "pull" for i in range(rows)],
        "index": range(rows),
    }
    return pa.table(columns, SCHEMA)


@pytest.mark.parametrize("image_bytes", [20, 60_000], ids=["a page for each column", "several pages"])
def test_complete_row_groups_are_read_wherever_the_file_ends(image_bytes):
    tables = [table(rows, image_bytes) for rows in (5, 1, 120, 40)]
    whole, ends = io.BytesIO(), []
    writer = pq.ParquetWriter(whole, SCHEMA, compression="snappy", use_dictionary=True)
    for one in tables:
        writer.write_table(one)
        ends.append(whole.tell())
    content = whole.getvalue()  # the footer is written by close()
    for stop in (ends[0], ends[0] + 1, ends[1] - 1, ends[2], ends[2] + (ends[3] - ends[2]) // 2, ends[3] - 1, ends[3]):
        found = pq.read_table(io.BytesIO(restore_footer(content[:stop], SCHEMA, SIZES)))
        assert found.equals(pa.concat_tables(tables[: sum(end <= stop for end in ends)]))
    for stop in (0, 4, ends[0] - 1):
        assert pq.read_table(io.BytesIO(restore_footer(content[:stop], SCHEMA, SIZES))).equals(SCHEMA.empty_table())


@pytest.mark.parametrize("pages", [b"\x1c" * 100_000, bytes(100), b"\x15\x00\x15\x02\x15\xfe\xff\xff\xff\x0f\x00"])
def test_bytes_that_are_no_pages_have_no_row_group(pages: bytes) -> None:
    restored = restore_footer(b"PAR1" + pages, SCHEMA, SIZES)
    assert pq.read_table(io.BytesIO(restored)).num_rows == 0
