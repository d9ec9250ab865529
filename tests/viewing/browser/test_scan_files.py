"""The temporary files of a scan: private, and gone however the command ends; a full disk is one line."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browsing import httpx
from disks import small_filesystem
from processes import DEADLINE, end_of, running, wait_until

from rlds_beam.testing import make_episode, write_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 30,000 small episodes: 100 copies of a shard."""
    episodes = [make_episode(1 + i % 3, seed=i, metadata={"trial": i, "name": f"n{i}"}) for i in range(300)]
    directory = write_dataset(tmp_path_factory.mktemp("rlds"), episodes)
    shard = next(directory.glob("*.tfrecord-*"))
    info = (directory / "dataset_info.json").read_text()
    (directory / "dataset_info.json").write_text(
        re.sub(r'(?<="shardLengths": )\[[^]]*\]', str(["300"] * 100), info).replace("'", '"')
    )
    for i in range(100):
        shutil.copy(shard, directory / f"testing-train.tfrecord-{i:05d}-of-00100")
    shard.unlink()
    return directory


@contextmanager
def scanning(dataset: Path, temporary: Path) -> Iterator[tuple[Any, Any]]:
    """A running command, and its `/api/datasets`."""
    options = {"env": {**os.environ, "TMPDIR": str(temporary)}}
    with running(["browse", "--no_open", dataset], **options) as process, httpx.Client(timeout=DEADLINE) as client:
        assert process.stdout is not None
        url = next(match[0] for line in process.stdout if (match := re.search(r"http://\S+", line)))
        client.get(url)
        base = url.partition("?")[0]
        yield process, lambda: client.get(f"{base}api/datasets").json()[0]


@pytest.mark.parametrize(
    ("number", "when"), [(signal.SIGTERM, "running"), (signal.SIGHUP, "running"), (signal.SIGINT, "done")]
)
def test_files_are_private_and_gone_at_the_end(dataset: Path, tmp_path: Path, number: int, when: str) -> None:
    with scanning(dataset, tmp_path) as (process, about):
        wait_until(lambda: [*tmp_path.rglob("*.rows")] and about()["scan"]["state"] == when, process)
        (directory,) = tmp_path.iterdir()
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        process.send_signal(number)
        code, _, errors = end_of(process)
        assert (code, errors) == (0, "")
    assert not [*tmp_path.iterdir()]


def test_the_next_command_removes_files_of_a_killed_one(dataset: Path, tmp_path: Path) -> None:
    with scanning(dataset, tmp_path) as (process, _):
        wait_until(lambda: [*tmp_path.rglob("*.rows")], process)
        process.kill()
        process.wait()
    (left,) = tmp_path.iterdir()
    with scanning(dataset, tmp_path):
        wait_until(lambda: not left.exists())


def test_a_full_disk_is_one_line(dataset: Path, tmp_path: Path) -> None:
    with small_filesystem(tmp_path / "disk", "600k") as disk, scanning(dataset, disk) as (process, about):
        wait_until(lambda: about()["scan"]["state"] != "running", process)
        scan = about()["scan"]
        assert scan["state"] == "failed" and scan["error"] == f"{disk} cannot be written: No space left on device"
        process.send_signal(signal.SIGTERM)
        assert end_of(process)[0] == 0
        assert not [*disk.iterdir()]
