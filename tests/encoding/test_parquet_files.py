"""Parquet files of buckets are read without threads of Arrow."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import DEADLINE

from rlds_beam.encoding.parquet_files import verified_parquet

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
