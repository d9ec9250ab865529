"""Storage on local paths and on remote paths: those of fsspec's files in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from memory_store import memory_store, put

from rlds_beam import storage
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.testing import make_episode, write_dataset


@pytest.fixture(scope="module")
def remote() -> Iterator[str]:
    """The root of a store in memory."""
    with memory_store() as root:
        yield root


@pytest.fixture(params=["local", "remote"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "store")
    return f"{request.getfixturevalue('remote')}/{tmp_path.name}"


def write(path: str, data: bytes) -> None:
    (put if path.startswith("memory:") else storage.write_bytes)(path, data)


def test_life_of_a_directory(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    one, two = storage.join(root, "one.gz"), storage.join(root, "two")
    storage.write_bytes(one, b"first")
    storage.write_bytes(two, b"second")
    assert storage.read_small(one) == b"first"
    assert storage.size(two) == 6
    assert storage.listdir(root) == ["one.gz", "two"]
    assert list(storage.sizes(root).items()) == [("one.gz", 5), ("two", 6)]
    assert storage.glob(storage.join(root, "t*")) == {two: 6}
    assert storage.glob(storage.join(root, "x*")) == {}
    storage.rename(one, two)
    assert not storage.exists(one) and storage.read_small(two) == b"first"
    storage.remove_files(root, ["two"])
    assert not storage.exists(two)
    storage.write_bytes(two, b"again")
    storage.rmtree(root)
    storage.rmtree(root)
    assert not storage.exists(two)


def test_requests_to_a_remote_store_are_concurrent(remote: str) -> None:
    together = threading.Barrier(8)

    def ask(number: int) -> int:
        together.wait(60)  # raises an error unless all of them arrive
        return number * number

    assert storage.at_once(ask, range(8), remote) == [n * n for n in range(8)]
    assert storage.at_once(str, [], remote) == []
    with pytest.raises(ZeroDivisionError):
        storage.at_once(lambda n: 1 // n, [1, 0, 1], remote)


def test_a_dataset_in_a_store_is_found_by_one_listing(remote: str, tmp_path: Path, monkeypatch) -> None:
    made = write_dataset(tmp_path, [make_episode(5, seed=i) for i in range(12)], name="toy", shards=12)
    there = f"{remote}/{tmp_path.name}/toy/1.0.0"
    for file in made.iterdir():
        put(storage.join(there, file.name), file.read_bytes())
    monkeypatch.setattr(storage, "size", None)  # would send a request per shard
    source = open_source(there)
    assert [(shard.path.rsplit("/", 1)[1], shard.size) for shard in source.splits[0].shards] == [
        (file.name, file.stat().st_size) for file in sorted(made.glob("*.tfrecord-*"))
    ]


def test_an_unknown_scheme_is_an_error() -> None:
    for operation in (storage.open_read, storage.exists, storage.size, storage.glob):
        with pytest.raises(UsageError, match=r"fsspec does not read nosuch://"):
            operation("nosuch://bucket/a")
    with pytest.raises(UsageError, match=r"only local files, s3://, .* can be written to"):
        storage.write_bytes("memory://bucket/a", b"")


@pytest.mark.parametrize("name", ["data[12]", "a*b", "what?", "[!x]", "x*"])
def test_special_characters_of_a_directory_are_literal(root: str, name: str) -> None:
    directory = storage.join(root, name)
    others = [storage.join(root, other) for other in ("data1", "a1b", "what1", "y", "xy", "z")]
    for one in (directory, *others):
        write(storage.join(one, "x-1"), b"1")
        write(storage.join(one, "sub", "x-2"), b"2")
    assert list(storage.glob("x*", directory)) == [storage.join(directory, "x-1")]
    assert list(storage.glob("s*/x*", directory)) == [storage.join(directory, "sub", "x-2")]
    assert storage.glob("x-1", directory) == storage.glob(storage.join(directory, "x-1"))
    assert storage.glob("y*", directory) == storage.glob(storage.join(directory, "x-3")) == {}
    assert all(storage.isdir(one) for one in others)
