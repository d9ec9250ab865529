"""Full and read-only disks, and other file systems: a partly written file never counts, at any byte."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from directories import bytes_of
from jobs import complaints, dataset
from processes import DEADLINE

from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.output.commits import read_manifest
from rlds_beam.testing import make_episode, read_rejected


@contextlib.contextmanager
def small_filesystem(path: Path, size: str) -> Iterator[Path]:
    """Mounts a file system of `size` bytes (`700k`) at `path` during the block."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]
    mounted = subprocess.run(command, capture_output=True, timeout=DEADLINE)
    if mounted.returncode:
        pytest.skip(f"cannot mount a file system: {mounted.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True, timeout=DEADLINE)


def remount(disk: Path, options: str) -> None:
    """Changes a file system: `size=16m`, `ro`."""
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True, timeout=DEADLINE)


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")

FLAGS = ("--shards=3", "--max_rejected=1", "--accept=duplicate_episode")
PAGE = 4096


@pytest.fixture
def source(tmp_path):
    """About 0.3 MB of output, and a rejected record."""
    episodes = [make_episode(60, seed=i, observation=50) for i in range(11)]
    return dataset(tmp_path, [*episodes, make_episode(60, seed=11, observation=50, breaks=["non_finite"])])


def test_full_at_any_byte(tmp_path, convert, source, monkeypatch):
    """From a disk too small for the plan, to one with room for a shard and a half, to one that lacks a page."""
    whole = convert(source, *FLAGS, output=tmp_path / "whole")
    assert whole.code == 0
    expected = bytes_of(whole.output)
    pages = sum(-(-len(content) // PAGE) for content in expected.values())
    failed = 0
    # Nothing else fills this disk after the check for space, so make the check pass.
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40))
    for room in (1, 2, pages // 4, pages // 2, pages - 8, pages - 4, pages - 2, pages - 1):
        with small_filesystem(tmp_path / f"disk{room}", f"{room * PAGE}") as disk:
            output = disk / "out"
            ran = convert(source, *FLAGS, output=output)
            if ran.code:
                failed += 1
                assert ran.code in (1, 2)
                assert f"{output} cannot be written: No space left on device" in ran.err, ran.err
                if ran.code == 1:
                    assert re.search(
                        r"left on device; \d of 3 ranges are finished and kept. When that is solved, .* again.",
                        ran.err,
                    )
                assert len(complaints(ran.err)) == 1
                assert not (output / "manifest.json").exists()
                with pytest.raises(UsageError):
                    read_manifest(str(output))
            remount(disk, "size=16m")
            assert convert(source, *FLAGS, output=output).code == 0
            assert bytes_of(output) == expected
    assert failed >= 6


@pytest.fixture
def push(source, table, capsys):
    """Pushes into a new table; returns the exit code, the message, and the number of items in the table."""
    import reverb

    selectors = reverb.selectors
    address = table(reverb.Table("t", selectors.Fifo(), selectors.Fifo(), 10_000, reverb.rate_limiters.MinSize(1)))

    def run(*flags: str) -> tuple[int, str, int]:
        code = main(["push", str(source), f"--reverb={address}", "--table=t", "--max_rejected=1", *flags])
        return code, capsys.readouterr().err, reverb.Client(address).server_info(timeout=60)["t"].current_size

    return run


def test_push_keeps_rejected_records_on_a_full_disk(tmp_path, push):
    with small_filesystem(tmp_path / "disk", f"{4 * PAGE}") as disk:
        code, said, _ = push(f"--rejected={disk}")
        assert code == 1
        assert f"{disk / 'rejected'}" in said and "No space left on device" in said
        assert len(said.splitlines()) == 1
        assert list((disk / "rejected").iterdir()) == []
        remount(disk, "size=1m")
        code, said, items = push(f"--rejected={disk}")
        assert (code, said, items) == (0, "", 11 * 59)
        assert [line["rule"] for line, _ in read_rejected(disk)] == ["non_finite"]
