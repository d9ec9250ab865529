"""A damaged index of steps is built again, with one warning: never an error, never wrong values."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rlds_data

import rlds_beam
from rlds_beam import Dataset, Episode, open_dataset
from rlds_beam.connectors import EpisodeConnector, FlipChannels
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode, shard_paths, write_dataset

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [rlds_data.episode(length, seed) for seed, length in enumerate(rlds_data.LENGTHS)]
    return write_dataset(tmp_path_factory.mktemp("data"), episodes, name="toy", shards=2)


@pytest.fixture
def opened(data: Path) -> Callable[[], Dataset]:
    """Opens a dataset whose index has numbers, text, and edited images."""
    return lambda: open_dataset(data, unit="steps", connectors=[FlipChannels("observation/image")])


def values_of(dataset: Dataset) -> dict[str, Any]:
    return {path: values.tolist() for path, values in dataset[:].items()}


def index_in(cache: Path) -> Path:
    (directory,) = (path for path in (cache / "steps").iterdir() if not path.suffix)
    return directory


def episode_content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def put(directory: Path, content: dict[str, bytes]) -> None:
    for path in directory.iterdir():
        path.rmdir() if path.is_dir() else path.unlink()
    for name, data in content.items():
        (directory / name).write_bytes(data)


def test_a_damaged_index_is_built_again(opened: Callable[[], Dataset], cache: Path) -> None:
    expected = values_of(opened())
    directory = index_in(cache)
    pristine = episode_content(directory)
    for name, data in pristine.items():
        changes = [b"", data[: len(data) // 2], bytes(byte ^ 255 for byte in data), None]
        changed = changes[len(name) % 4]
        (directory / name).unlink() if changed is None else (directory / name).write_bytes(changed)
        if not data and changed is not None:
            continue
        with pytest.warns(UserWarning, match="is built again"):
            assert values_of(opened()) == expected, name
        assert episode_content(directory) == pristine, name  # the same input gives the same bytes


def test_an_index_of_other_data_is_not_used(data: Path, cache: Path, tmp_path: Path) -> None:
    """All files of another index, and each of them."""
    other = write_dataset(
        tmp_path,
        [rlds_data.episode(length, seed + 50) for seed, length in enumerate(rlds_data.LENGTHS)],
        name="toy",
        shards=2,
    )
    open_dataset(other, unit="steps")
    foreign = episode_content(index_in(cache))
    shutil.rmtree(cache)
    expected = values_of(open_dataset(data, unit="steps"))
    directory = index_in(cache)
    pristine = episode_content(directory)
    assert foreign.keys() == pristine.keys()
    for content in (
        foreign,
        *({**pristine, name: foreign[name]} for name in foreign if foreign[name] != pristine[name]),
    ):
        put(directory, content)
        with pytest.warns(UserWarning, match=r"the index of toy/1\.0\.0 is damaged \(.*\): it is built again"):
            assert values_of(open_dataset(data, unit="steps")) == expected
        assert episode_content(directory) == pristine


def test_a_file_with_its_old_times_is_another_file(tmp_path: Path) -> None:
    copy, other = (
        write_dataset(tmp_path / str(first), [make_episode(5, seed=first + i) for i in range(3)], name="toy")
        for first in (0, 10)
    )
    before = open_dataset(copy, unit="steps")[:]["action"]
    ((old,), (new,)) = shard_paths(copy), shard_paths(other)
    status, content = os.stat(old), Path(new).read_bytes()
    assert len(content) == status.st_size
    Path(old).write_bytes(content)
    os.utime(old, ns=(status.st_atime_ns, status.st_mtime_ns))
    found = open_dataset(copy, unit="steps")[:]["action"]
    np.testing.assert_array_equal(found, open_dataset(other, unit="steps")[:]["action"])
    assert (found != before).any()


def test_a_dataset_that_changes_while_it_is_indexed(tmp_path: Path, cache: Path) -> None:
    path = write_dataset(tmp_path, [make_episode(5)], name="toy")
    (shard,) = shard_paths(path)

    class Touches(EpisodeConnector):
        def edit(self, episode: Episode, fields: Any) -> Episode:
            os.utime(shard)
            return episode

    with pytest.raises(UsageError, match=r"toy/1\.0\.0 changed while it was open: open it again"):
        open_dataset(path, unit="steps", connectors=[Touches()])
    assert not list((cache / "steps").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_an_index_of_another_user_is_not_used(data: Path, cache: Path) -> None:
    expected = values_of(open_dataset(data, unit="steps"))
    directory = index_in(cache)
    for path in directory.iterdir():
        os.chown(path, 12345, 12345)
    with pytest.warns(UserWarning, match="is built again"):
        assert values_of(open_dataset(data, unit="steps")) == expected
    assert {path.stat().st_uid for path in index_in(cache).iterdir()} == {0}
    for path in (cache, *directory.iterdir()):  # whoever owns the cache may write into it
        os.chown(path, 12345, 12345)
    with pytest.warns(UserWarning, match="user 12345 built its index, .*, and can change what is read"):
        assert values_of(open_dataset(data, unit="steps")) == expected


@pytest.mark.parametrize("kind", ["link", "directory"])
def test_what_has_the_name_of_a_lock_is_kept(kind: str, data: Path, cache: Path, tmp_path: Path) -> None:
    """The lock of an index, and that of an output directory."""
    open_dataset(data, unit="steps")
    lock = index_in(cache).with_suffix(".lock")
    shutil.rmtree(index_in(cache))
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "out").mkdir()
    locks = [lock, tmp_path / "out" / ".rlds-beam.lock"]
    for path in locks:
        {"link": lambda p: p.symlink_to(victim), "directory": Path.mkdir}[kind](path)
    before = [os.lstat(path).st_mode for path in locks]
    with pytest.raises(UsageError, match="cannot write to"):
        open_dataset(data, unit="steps")
    with pytest.raises(UsageError, match=r"cannot write to .*\.rlds-beam\.lock"):
        rlds_beam.convert(data, tmp_path / "out", to="numpy", progress="none", workers=1)
    assert [os.lstat(path).st_mode for path in locks] == before and victim.read_text() == "kept"


def test_threads_that_wait_for_a_lock_get_it(tmp_path: Path) -> None:
    from rlds_beam.platforms import locked

    path, held = str(tmp_path / "lock"), threading.Lock()

    def work(_: int) -> None:
        with locked(path, wait=True):
            assert held.acquire(blocking=False)
            held.release()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(200)))
    assert not os.path.exists(path)
