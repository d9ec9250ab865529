"""The checksums of an output: checked with xxh128sum, and when reading."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import xxhash
from jobs import STEPS, episodes

from rlds_beam.output.files import Checksum
from rlds_beam.testing import flip_byte, make_episode, shard_paths, write_dataset

FLAGS = ("--shards=3", "--max_rejected=1")


@pytest.fixture
def dataset(tmp_path):
    """A dataset with one rejected episode."""
    return write_dataset(tmp_path / "data", [*episodes(), make_episode(STEPS, breaks=["missing_is_last"])])


@pytest.fixture
def output(dataset, convert_only):
    assert convert_only(dataset, *FLAGS).code == 0
    return convert_only(dataset, *FLAGS).output


def make_shards(output: Path) -> list[Path]:
    return [path for path in shard_paths(output) if path.suffix != ".spec"]


def check(output: Path) -> subprocess.CompletedProcess[str]:
    """`xxh128sum --check checksums.xxh128` in the output directory."""
    command = ["xxh128sum", "--check", "checksums.xxh128"]
    if shutil.which(command[0]) is None:
        pytest.skip("xxh128sum is not installed (Debian: apt-get install xxhash)")
    return subprocess.run(command, cwd=output, capture_output=True, text=True, timeout=60)


def test_a_checksum_names_its_algorithm():
    checksum = Checksum()
    checksum.update(b"ab")
    checksum.update(memoryview(b"c"))
    assert str(checksum) == f"xxh3-128:{xxhash.xxh3_128_hexdigest(b'abc')}"


def test_the_usual_command_checks_an_output(output):
    checked = check(output)
    assert checked.returncode == 0, checked.stderr
    files = [*(path.name for path in make_shards(output)), "rejected/train-00002-of-00003.tfrecord"]
    assert sorted(line for line in checked.stdout.splitlines() if line) == sorted(f"{name}: OK" for name in files)
    flip_byte(make_shards(output)[1], 0, "payload", at=3)
    checked = check(output)
    assert checked.returncode == 1
    assert f"{make_shards(output)[1].name}: FAILED" in checked.stdout
