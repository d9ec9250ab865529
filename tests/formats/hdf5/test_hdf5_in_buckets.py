"""HDF5 files in a bucket are read by ranges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from exchanging import export, read_back
from hdf5_robots import BUILDERS
from memory_store import MemoryStore, memory_store

from rlds_beam import storage
from rlds_beam.formats.hdf5.source import Hdf5Source
from rlds_beam.formats.sources import open_source
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.testing import make_episode, write_dataset


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with memory_store() as made:
        yield made


def uploaded(directory: Path, store: MemoryStore) -> str:
    for file in directory.rglob("*"):
        if file.is_file():
            store.files[f"{store.root}/in/{file.relative_to(directory)}"] = file.read_bytes()
    return f"{store.root}/in"


@pytest.mark.parametrize("profile", ["aloha", "robomimic", "robotwin", "robomind", "droid"])
def test_episodes_are_those_of_the_local_files(tmp_path: Path, store: MemoryStore, profile: str) -> None:
    BUILDERS[profile](tmp_path, [4, 5, 3])
    path = uploaded(tmp_path, store)
    assert (Hdf5Source.recognize(path) or "").startswith(f"profile {profile}")
    for near, far in zip(read_back(tmp_path, "hdf5"), read_back(path, "hdf5"), strict=True):
        assert not far.faults and near.payload == far.payload


@pytest.mark.parametrize("given", ["", "/*.hdf5"])
def test_many_files_are_planned_without_a_request_for_each(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    BUILDERS["aloha"](tmp_path, [4])
    content = (tmp_path / "episode_0.hdf5").read_bytes()
    store.files.update({f"{store.root}/in/episode_{i}.hdf5": content for i in range(2000)})
    found: list[str] = []
    find = storage.store_of(store.root).find
    monkeypatch.setattr(type(storage.store_of(store.root)), "find", lambda _, path: found.append(path) or find(path))
    source = open_source(f"{store.root}/in{given}", from_="hdf5")
    works = plan_ranges(source)
    assert sum(len(work.segments) for work in works) == source.splits[0].episodes == 2000
    assert sum(shard.size for shard in source.splits[0].shards) == 2000 * len(content)
    assert len(found) < 20


def test_a_damaged_file_in_a_bucket(tmp_path: Path, store: MemoryStore) -> None:
    BUILDERS["aloha"](tmp_path, [4, 5])
    path = uploaded(tmp_path, store)
    store.files[f"{path}/episode_1.hdf5"] = store.files[f"{path}/episode_1.hdf5"][:3000]
    good, bad = read_back(path, "hdf5")
    assert not good.faults and "episode_1.hdf5" in str(bad.faults)


def test_d4rl(tmp_path: Path, store: MemoryStore) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["observations"], file["actions"] = np.ones((9, 4), np.float32), np.ones((9, 2), np.float32)
        file["rewards"], file["terminals"] = np.ones(9, np.float32), np.arange(9) % 3 == 2
    path = uploaded(tmp_path, store)
    for near, far in zip(read_back(tmp_path, "d4rl"), read_back(path, "d4rl"), strict=True):
        assert near.payload == far.payload


@pytest.mark.parametrize("kind", ["minari", "d3rlpy"])
def test_other_hdf5(tmp_path: Path, store: MemoryStore, kind: str) -> None:
    data = write_dataset(tmp_path / "data", [make_episode(5, seed=i, observation=4) for i in range(3)])
    export(data, tmp_path / "out", kind)
    path = uploaded(tmp_path / "out", store)
    for near, far in zip(read_back(tmp_path / "out", kind), read_back(path, kind), strict=True):
        assert not far.faults and near.payload == far.payload


def test_it_converts(tmp_path: Path, store: MemoryStore) -> None:
    BUILDERS["libero"](tmp_path / "in", [4, 5])
    report = export(uploaded(tmp_path / "in", store), tmp_path / "out", "rlds", from_="hdf5")
    assert (report.items_written, report.rejected) == (2, 0)
