"""The cache of bytes of remote files: what it returns is right or missing, whatever happens to its file."""

from __future__ import annotations

import contextlib
import os
import pickle
import sqlite3
import sys
import warnings
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from disks import small_filesystem
from processes import end_of, start

from rlds_beam.datasets import byte_cache
from rlds_beam.datasets.byte_cache import ByteCache
from rlds_beam.errors import UsageError

LENGTH = 20_000


def part(number: int) -> bytes:
    return np.random.default_rng(number).bytes(LENGTH)


def add(cache: ByteCache, numbers: range, path: str = "s3://b/one") -> None:
    for number in numbers:
        data = part(number)
        cache.put(path, number * LENGTH, google_crc32c.value(data), data)
    cache.flush()


def find(cache: ByteCache, numbers: range, path: str = "s3://b/one") -> set[int]:
    """The numbers of the parts that are there; they are right."""
    wanted = {i: (path, i * LENGTH, LENGTH, google_crc32c.value(part(i))) for i in numbers}
    found = cache.get_many(wanted)
    for i, data in found.items():
        assert data == part(i)
    return set(found)


def size(directory: Path) -> int:
    return (directory / "bytes.sqlite").stat().st_size


def test_what_was_added_is_found_by_all(tmp_path: Path) -> None:
    cache = ByteCache(str(tmp_path / "new"), 10 << 20)
    assert find(cache, range(5)) == set()
    add(cache, range(5))
    for other in (cache, pickle.loads(pickle.dumps(cache)), ByteCache(str(tmp_path / "new"), 10 << 20)):
        assert find(other, range(7)) == set(range(5))
    assert find(cache, range(5), "s3://b/two") == set()
    twice = ("s3://b/one", LENGTH, LENGTH, google_crc32c.value(part(1)))
    assert cache.get_many({7: twice, 3: twice}) == {7: part(1), 3: part(1)}
    wanted = {0: ("s3://b/one", 0, LENGTH, google_crc32c.value(part(0)) ^ 1)}
    assert cache.get_many(wanted) == {}  # the object was replaced


def test_a_full_cache_keeps_what_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 2 << 20
    cache = ByteCache(str(tmp_path), most)
    add(cache, range(200))
    there = find(cache, range(200))
    assert 40 < len(there) < 105
    assert size(tmp_path) <= most + (1 << 17)
    add(cache, range(200, 300), "s3://b/two")  # the first file was used just now
    assert find(cache, range(200)) == there
    monkeypatch.setattr(byte_cache, "_UNUSED_SECONDS", -1)
    add(cache, range(200, 300), "s3://b/two")
    assert find(cache, range(200)) == set()
    assert len(find(cache, range(200, 300), "s3://b/two")) > 40
    assert size(tmp_path) <= most + (1 << 17)


def test_a_forked_process_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ByteCache(str(tmp_path), 10 << 20)
    add(cache, range(5))
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert find(cache, range(5)) == set(range(5))
    add(cache, range(5, 8))
    assert find(cache, range(8)) == set(range(8))


PYTHON = (sys.executable, "-c")
PATHS = (str(Path(__file__).parent), *sys.path)
OPEN = """
import sys
sys.path[:0] = sys.argv[2:]
from test_byte_cache import ByteCache, add, find
cache = ByteCache(sys.argv[1], 10 << 20)
"""
SHARE = """
for _ in range(5):
    add(cache, range(60))
    find(cache, range(60))
"""


def test_processes_share_it(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        command = [*PYTHON, OPEN + SHARE, str(tmp_path), *PATHS]
        for process in [stack.enter_context(start(command)) for _ in range(3)]:
            code, _, errors = end_of(process)
            assert (code, errors) == (0, "")
    assert find(ByteCache(str(tmp_path), 10 << 20), range(60)) == set(range(60))


@pytest.mark.parametrize("seed", range(6))
def test_damage_never_gives_other_bytes(tmp_path: Path, seed: int) -> None:
    add(ByteCache(str(tmp_path), 10 << 20), range(60))
    database, rng = tmp_path / "bytes.sqlite", np.random.default_rng(seed)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(database.read_bytes())
    if seed == 0:
        content = content[: len(content) // 2]
    elif seed == 1:
        content[:100] = b"\0" * 100
    else:
        for at in rng.integers(100 if seed < 4 else 16384, len(content), 10 ** (seed % 3 + 1)).tolist():
            content[at] ^= 0xFF
    for file in tmp_path.iterdir():
        file.unlink()
    database.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            cache = ByteCache(str(tmp_path), 10 << 20)
            find(cache, range(60))
            add(cache, range(60, 70))
    cache = ByteCache(str(tmp_path), 10 << 20)
    find(cache, range(70))


FILL = """
for first in range(0, 100, 20):
    add(cache, range(first, first + 20))
find(cache, range(100))
"""


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    # Jobs that ran in this process have set PYTHONWARNINGS.
    warn = [sys.executable, "-W", "default::UserWarning", "-c"]
    with small_filesystem(tmp_path / "disk", "700k") as disk, start([*warn, OPEN + FILL, disk, *PATHS]) as process:
        code, _, errors = end_of(process)
    assert code == 0, errors
    assert errors.count("UserWarning: the cache") == 1 and "it is not used" in errors


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="RLDS_BEAM_CACHE") as error:
        ByteCache(str(tmp_path / "file"), 1 << 20)
    assert "\n" not in str(error.value)
    if os.geteuid() == 0:
        (tmp_path / "other").mkdir()
        os.chown(tmp_path / "other", 12345, 12345)
        with pytest.raises(UsageError, match="belongs to another user"):
            ByteCache(str(tmp_path / "other"), 1 << 20)
