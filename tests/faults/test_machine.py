"""Fault case 28, through the real command: disks that are full, renames that fail, workers that die."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from directories import bytes_of
from disks import remount, small_filesystem
from jobs import complaints, dataset
from processes import DEADLINE, members, running, wait_until

from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.testing import make_episode, read_items, read_payloads, shard_paths, write_dataset

WORKER = "rlds_beam.runners.worker"


@pytest.fixture
def big(tmp_path):
    """About 1 MB of output."""
    return dataset(tmp_path, [make_episode(200, seed=i, observation=100) for i in range(6)])


def assert_failed_cleanly(output: Path, code: int, err: str, mentioned: str) -> None:
    assert code in (1, 2, 4), err
    assert mentioned in err
    assert len(complaints(err)) == 1
    assert not (output / "manifest.json").exists()
    assert not (output / "dataset_info.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_28_disk_full(tmp_path, convert, big):
    whole = convert(big, "--shards=3", output=tmp_path / "whole")
    assert whole.code == 0
    with small_filesystem(tmp_path / "disk", "700k") as disk:
        ran = convert(big, "--shards=3", output=disk / "out")
        assert_failed_cleanly(ran.output, ran.code, ran.err, "No space left on device; ")
        remount(disk, "size=16m")
        again = convert(big, "--shards=3", output=disk / "out")
        assert again.code == 0
        assert bytes_of(again.output) == bytes_of(whole.output)


@pytest.mark.parametrize("moment", ["starting", "working"])
def test_28_worker_killed_by_a_fault(tmp_path, convert, big, moment):
    output = tmp_path / "out"
    with running(["convert", big, output, "--shards=6", "--workers=2"]) as process:
        wait_until(lambda: members(process.pid, WORKER), process)
        workers = members(process.pid, WORKER)
        if moment == "working":
            wait_until(lambda: list(output.glob("*.tfrecord-*")), process)
        with contextlib.suppress(ProcessLookupError):
            os.kill(workers[0], signal.SIGSEGV)
        _, err = process.communicate(timeout=DEADLINE)
        if process.returncode == 0:
            assert moment == "working"  # it finished before the signal
        else:
            assert_failed_cleanly(output, process.returncode, err, "a worker process died")
            assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert convert(big, "--shards=6").code == 0
    assert bytes_of(output) == bytes_of(convert(big, "--shards=6", output=tmp_path / "whole").output)
    assert Counter(len(item["reward"]) for item in read_items(output)) == {2: 6 * 199}


def test_rejected_records_are_the_originals(tmp_path, convert):
    """The content of `rejected/` is enough to build a dataset from."""
    source = dataset(tmp_path, [make_episode("F M M", seed=i) for i in range(4)])
    ran = convert(source)
    assert ran.code == 3
    originals = [payload for shard in shard_paths(source) for payload in read_payloads(shard)]
    assert [payload for _, payload in ran.rejected] == originals
    again = write_dataset(tmp_path / "again", [p for _, p in ran.rejected], schema=default_schema(make_episode(3)))
    repaired = convert(again, "--repair=missing_is_last", output=tmp_path / "repaired")
    assert repaired.code == 0
    assert len(repaired.items) == 4 * 2
