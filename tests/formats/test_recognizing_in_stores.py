"""Formats are recognized in buckets and on the Hub as on a disk, with few requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzzed_datasets import DATASETS
from hub_server import HubServer, hub_server
from memory_store import memory_store

import rlds_beam
from rlds_beam.errors import UsageError
from rlds_beam.formats.recognizing import recognize

NAMES = (
    "rlds", "lerobot_foreign", "lerobot_v21_foreign", "d4rl", "d3rlpy", "minari", "npz", "hdf5_aloha", "zarr", "ros2",
)  # fmt: skip
BY_NAME = ("rlds", "lerobot_foreign", "lerobot_v21_foreign", "zarr")
"""Recognized from the names of files alone."""


def made(name: str, directory: Path) -> Path:
    DATASETS[name].make(directory)
    (directory / "plan.json").unlink(missing_ok=True)  # of rlds-beam
    return directory / "bag" if name == "ros2" else directory


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_server() as server:
        for name, value in server.environment(tmp_path / "hf_home").items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.parametrize("name", NAMES)
def test_in_a_bucket(tmp_path: Path, name: str) -> None:
    local = made(name, tmp_path / "data")
    with memory_store() as store:
        there = f"{store.root}/{local.name}"
        for path in local.rglob("*"):
            if path.is_file():
                store.files[f"{there}/{path.relative_to(local).as_posix()}"] = path.read_bytes()
        store.files[f"{store.root}/notes/a.txt"] = b"nothing"
        found, wanted = recognize(there), recognize(local)
        assert (found.format, found.why) == (wanted.format, wanted.why)
        assert recognize(f"{there}/").format == wanted.format
        if name in ("rlds", "npz", "hdf5_aloha"):
            assert rlds_beam.validate(there).records == rlds_beam.validate(local).records > 0
        with pytest.raises(UsageError, match="not a dataset in a known format"):
            recognize(f"{store.root}/notes")


@pytest.mark.parametrize("name", NAMES)
def test_on_the_hub(tmp_path: Path, hub: HubServer, name: str) -> None:
    local = made(name, tmp_path / "data")
    there = hub.add(local, f"robots/{name}")
    hub.requests.clear()
    found, wanted = recognize(there), recognize(local)
    assert (found.format, found.why) == (wanted.format, wanted.why)
    read = [one for one in hub.requests if "/resolve/" in one]
    assert len(hub.requests) < 25, hub.requests
    assert not (name in BY_NAME and read), read
    if name in ("rlds", "npz", "hdf5_aloha"):
        assert rlds_beam.inspect(there, sample_bytes=10_000).format == str(found)
        assert rlds_beam.validate(there).records == rlds_beam.validate(local).records > 0


def test_a_large_repository_without_datasets(tmp_path: Path, hub: HubServer) -> None:
    for i in range(40):
        for j in range(3):
            path = tmp_path / "data" / f"{i:02}" / f"{j}" / "image.jpg"
            path.parent.mkdir(parents=True)
            path.write_bytes(b"\xff\xd8")
    there = hub.add(tmp_path / "data", "robots/pictures")
    hub.requests.clear()
    with pytest.raises(UsageError, match=r"in the 24 files and directories below"):
        recognize(there)
    assert len(hub.requests) < 150, len(hub.requests)
    assert not [one for one in hub.requests if "/resolve/" in one]
