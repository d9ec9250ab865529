"""Formats are recognized in buckets and on the Hub as on disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bucket_servers import upload
from hub_server import HubServer, hub_server
from memory_store import memory_store, put
from small_datasets import DATASETS

import rlds_beam
from rlds_beam.errors import UsageError
from rlds_beam.formats.recognition import recognize

KNOWN_BY_NAMES = (
    "rlds",
    "lerobot_foreign",
    "npz",
    "hdf5_aloha",
    "zarr",
    "ros2",
)
BY_NAME = ("rlds", "lerobot_foreign", "lerobot_v21_foreign", "zarr")
"""Recognized from the names of files alone."""


def made(name: str, directory: Path) -> Path:
    DATASETS[name].make(directory)
    (directory / "plan.json").unlink(missing_ok=True)  # of rlds-beam
    if name == "rlds":
        return next(directory.glob("*/*/features.json")).parent
    return directory / "bag" if name == "ros2" else directory


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with hub_server() as server:
        for name, value in server.environment(tmp_path / "hf_home").items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.parametrize("name", KNOWN_BY_NAMES)
def test_in_a_bucket(tmp_path: Path, name: str) -> None:
    local = made(name, tmp_path / "data")
    with memory_store() as store:
        there = upload(local, f"{store}/{local.name}")
        put(f"{store}/notes/a.txt", b"nothing")
        found, wanted = recognize(there), recognize(local)
        assert (found.format, found.why) == (wanted.format, wanted.why)
        assert recognize(f"{there}/").format == wanted.format
        if name in ("rlds", "npz", "hdf5_aloha"):
            assert (
                rlds_beam.check(there, rules=True).report.records
                == rlds_beam.check(local, rules=True).report.records
                > 0
            )
        with pytest.raises(UsageError, match="not a dataset in a known format"):
            recognize(f"{store}/notes")


@pytest.mark.parametrize("name", KNOWN_BY_NAMES)
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
        assert (
            rlds_beam.check(there, rules=True).report.records == rlds_beam.check(local, rules=True).report.records > 0
        )
