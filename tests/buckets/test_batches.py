"""Batches of training data from a bucket: equal to local ones, in torch's workers too, and nothing lost on the way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lerobot_data
import numpy as np
import pytest
from bucket_servers import Server, serving, upload
from exchanging import export
from processes import DEADLINE

import rlds_beam
from rlds_beam import storage
from rlds_beam.errors import RldsBeamError
from rlds_beam.remote import request_ranges

pytestmark = pytest.mark.usefixtures("cache")

CONTENT = np.random.default_rng(0).bytes(300_000)
RANGES = [(i * 900, i * 900 + 50) for i in range(300)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("s3") as server:
        yield server


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.new_bucket()


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset with a camera, by format."""
    home = tmp_path_factory.mktemp("moving")
    source, _ = lerobot_data.write_moving_data(home)
    found = {"rlds": Path(source)}
    for name, to, options in (
        ("lerobot", "lerobot", {"fps": 10}),
        *([("video", "lerobot", {"fps": 10, "images": "video"})] if find_spec("av") else []),
        ("parquet", "columns", {"format": "parquet"}),
        ("tfrecord", "columns", {"format": "tfrecord"}),
    ):
        found[name] = home / "out" / name
        export(source, found[name], to, **options)
    return found


def unit(name: str) -> Any:
    return {} if name in ("parquet", "tfrecord") else {"unit": "steps"}


def test_ranges(bucket: str) -> None:
    path = f"{bucket}/deep/a file, 1%.bin"
    storage.write_bytes(path, CONTENT)
    for (start, stop), content in zip(RANGES, request_ranges(path, RANGES), strict=True):
        assert content() == CONTENT[start:stop]


@pytest.mark.parametrize("name", ["rlds", "lerobot", "video", "parquet", "tfrecord"])
def test_batches_equal_local_ones(name: str, moving: dict[str, Path], bucket: str, cache: Path) -> None:
    if name not in moving:
        pytest.skip("PyAV is not installed")
    there = upload(moving[name], f"{bucket}/{name}")
    history = {"history": 2} if unit(name) else {}
    far, near = (
        rlds_beam.open_dataset(str(path), **unit(name)).batches(4, shuffle=True, epochs=2, **history)
        for path in (there, moving[name])
    )
    for found, wanted in zip(far, near, strict=True):
        assert found.keys() == wanted.keys()
        for path in wanted:
            np.testing.assert_array_equal(found[path], wanted[path], path)
    for blob in cache.glob("steps/*/blob.bin"):
        assert blob.stat().st_size == 0  # no image was copied


def test_a_replaced_dataset_is_an_error(moving: dict[str, Path], bucket: str) -> None:
    there = upload(moving["rlds"], f"{bucket}/rlds")
    dataset = rlds_beam.open_dataset(there, unit="steps")
    name = next(name for name, field in dataset.fields.items() if field.holds_image_files)
    for path in storage.glob(f"{there}/*.tfrecord*"):
        with storage.open_read(path) as file:
            content = file.read()
        storage.write_bytes(path, content[::-1])
    with pytest.raises(RldsBeamError, match="do not match their checksum"):
        next(dataset.batches(4, columns=[name]))


WORKERS = """
import multiprocessing, sys
import rlds_beam

def first_state(dataset):
    return next(dataset.batches(4))["observation/state"].tolist()

if __name__ == "__main__":
    dataset = rlds_beam.open_dataset(sys.argv[1], unit="steps")
    here = first_state(dataset)
    with multiprocessing.get_context(sys.argv[2]).Pool(2) as pool:
        for there in pool.map(first_state, [dataset] * 4):
            assert there == here
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_worker_processes(method: str, moving: dict[str, Path], bucket: str, tmp_path: Path) -> None:
    """As torch starts those of a `DataLoader`."""
    there = upload(moving["rlds"], f"{bucket}/rlds")
    (tmp_path / "train.py").write_text(WORKERS)
    command = [sys.executable, str(tmp_path / "train.py"), there, method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    if method == "fork":
        assert done.returncode == 1 and 'multiprocessing_context="forkserver"' in done.stderr
    else:
        assert done.returncode == 0, done.stderr
