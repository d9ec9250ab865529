"""A damaged index of steps is built again, with one warning: never an error, never wrong values."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rlds_data
from cases import cases

import rlds_beam
from rlds_beam import Dataset, Episode, open_dataset
from rlds_beam.connectors import EpisodeConnector, FlipChannels
from rlds_beam.datasets import step_index
from rlds_beam.datasets.step_index import DamagedIndexError, StepIndex
from rlds_beam.datasets.steps import IndexedSteps
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.testing import make_episode, shard_paths, write_dataset

FLIPS = cases(150)
"""Flipped bytes for each kind of index."""

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [rlds_data.episode(length, seed) for seed, length in enumerate(rlds_data.LENGTHS)]
    return write_dataset(tmp_path_factory.mktemp("data"), episodes, name="toy", shards=2)


@pytest.fixture(scope="module", params=["edited images", "images in the index", "videos"])
def opened(
    request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Dataset]:
    """Opens a dataset with all kinds of columns."""
    path, options = data, dict[str, Any]()
    if request.param == "edited images":
        options = {"connectors": [FlipChannels("observation/image")]}
    else:
        path = tmp_path_factory.mktemp("converted") / "out"
        of_format = {"to": "zarr"} if request.param == "images in the index" else {}
        if request.param == "videos":
            pytest.importorskip("av")
            of_format = {"to": "lerobot", "fps": 10, "images": "video"}
        rlds_beam.convert(data, path, progress="none", workers=1, **of_format)
    return lambda: open_dataset(path, unit="steps", **options)


def values_of(dataset: Dataset) -> dict[str, Any]:
    return {path: values.tolist() for path, values in dataset[:].items()}


def index_in(cache: Path) -> Path:
    (directory,) = (path for path in (cache / "steps").iterdir() if not path.suffix)
    return directory


def actions_in(cache: Path, dataset: Dataset) -> Path:
    """The file of the actions."""
    rows = dataset.rows
    assert isinstance(rows, IndexedSteps)
    return index_in(cache) / rows.index.columns["action"].file("values")


def episode_content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def put(directory: Path, content: dict[str, bytes]) -> None:
    for path in directory.iterdir():
        path.rmdir() if path.is_dir() else path.unlink()
    for name, data in content.items():
        (directory / name).write_bytes(data)


def damages(content: dict[str, bytes]) -> Iterator[tuple[str, Callable[[Path], object]]]:
    """What happens to files, and the function that does it to a directory."""
    chance = random.Random(0)
    places = [(name, i) for name, data in content.items() for i in range(len(data))]
    for name, i in chance.sample(places, min(FLIPS, len(places))):
        bit, data = 1 << chance.randrange(8), content[name]
        changed = data[:i] + bytes([data[i] ^ bit]) + data[i + 1 :]
        yield f"{name}, byte {i}, bit {bit}", lambda d, n=name, c=changed: (d / n).write_bytes(c)
    for name, data in content.items():
        whole = len(data) & ~3
        swapped = np.frombuffer(data[:whole], "<u4").byteswap().tobytes() + data[whole:]
        changes = {
            "cut": data[: len(data) // 2],
            "empty": b"",
            "zeros": bytes(len(data)),
            "longer": data + b"\0" * 8,
            "other endianness": swapped,
        }
        for what, changed in changes.items():
            yield f"{name}: {what}", lambda d, n=name, c=changed: (d / n).write_bytes(c)
        yield f"{name}: missing", lambda d, n=name: (d / n).unlink()
        yield f"{name}: a FIFO", lambda d, n=name: ((d / n).unlink(), os.mkfifo(d / n))
        yield f"{name}: a directory", lambda d, n=name: ((d / n).unlink(), (d / n).mkdir())
        yield f"{name}: a link to nothing", lambda d, n=name: ((d / n).unlink(), (d / n).symlink_to("nothing"))


def test_damage_is_found(opened: Callable[[], Dataset], cache: Path) -> None:
    """An index that cannot be built again has the same values, or is an error."""
    dataset = opened()
    expected, rows = values_of(dataset), dataset.rows
    assert isinstance(rows, IndexedSteps)
    directory = index_in(cache)
    pristine, found = episode_content(directory), 0
    for what, damage in damages(pristine):
        damage(directory)
        try:
            read = values_of(Dataset(IndexedSteps(StepIndex(str(directory)), rows.edited), "damaged"))
        except DamagedIndexError:
            found += 1
        else:
            assert read == expected, what
        put(directory, pristine)
    assert found > FLIPS


@pytest.mark.parametrize("opened", ["edited images", "images in the index", "videos"], indirect=True)
def test_a_damaged_index_is_built_again(opened: Callable[[], Dataset], cache: Path) -> None:
    expected = values_of(opened())
    directory = index_in(cache)
    pristine = episode_content(directory)
    for what, damage in random.Random(1).sample(list(damages(pristine)), 8):
        damage(directory)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert values_of(opened()) == expected, what
        said = [str(warning.message) for warning in caught if "is built again" in str(warning.message)]
        assert len(said) <= 1 and all("\n" not in line for line in said), what
        if said:
            assert episode_content(directory) == pristine, what  # the same input gives the same bytes
        put(directory, pristine)
    assert index_in(cache) == directory and len(list((cache / "steps").iterdir())) == 1


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


@pytest.mark.parametrize("opened", ["edited images", "images in the index", "videos"], indirect=True)
def test_damage_is_found_while_an_index_is_used(
    opened: Callable[[], Dataset], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by block; by several threads, of which one builds it; and in a copy that was opened before."""
    monkeypatch.setattr(step_index, "_BLOCK", 64)
    monkeypatch.setattr(step_index, "_VERIFIED_AT_ONCE", 0)
    expected = opened()[:]
    directory = index_in(cache)
    for path in directory.glob("*.bin"):
        if not path.stat().st_size or path.name in ("checksums.bin", "starts.bin"):
            continue
        dataset, copy = opened(), pickle.loads(pickle.dumps(opened()))
        with open(path, "r+b") as file:  # in place: what is mapped changes
            file.write(bytes(byte ^ 255 for byte in path.read_bytes()))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            rows = np.random.default_rng(0).permutation(len(dataset))
            with ThreadPoolExecutor(4) as pool:
                parts = list(pool.map(dataset.__getitem__, np.split(rows, 3)))
            for name, values in copy[:].items():
                np.testing.assert_array_equal(values, expected[name])
        for name, values in expected.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values[rows], path.name)
        assert len([one for one in caught if "is built again" in str(one.message)]) == 1, path.name


def test_each_row_verifies_its_own_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Rows smaller and larger than a block: those whose blocks are sound do not build a damaged index again."""
    monkeypatch.setattr(step_index, "_BLOCK", 64)
    monkeypatch.setattr(step_index, "_VERIFIED_AT_ONCE", 0)
    for size in (1, 3, 40):  # of float32
        path = write_dataset(tmp_path / str(size), [make_episode(30, action=size)], name="toy")
        shutil.rmtree(cache, ignore_errors=True)
        expected = open_dataset(path, unit="steps")[:]["action"]
        (file,) = (one for one in index_in(cache).glob("*.values.bin") if one.read_bytes() == expected.tobytes())
        with open(file, "r+b") as opened_file:
            opened_file.seek(20 * size * 4)
            opened_file.write(b"\xff")
        damaged = 20 * size * 4 // 64
        for row in range(30):
            touches = row * size * 4 // 64 <= damaged <= ((row + 1) * size * 4 - 1) // 64
            fresh = open_dataset(path, unit="steps")
            column = fresh.rows.index.maps("action")[0]  # type: ignore[attr-defined]
            for rows in (np.array([row]), slice(row, row + 1)):
                mapped = column._mapped
                assert column._verify(mapped, mapped.data, rows) == (not touches)
        with pytest.warns(UserWarning, match="is built again"):
            np.testing.assert_array_equal(fresh[:]["action"], expected)


def test_a_copy_that_cannot_build_it_marks_it(data: Path, cache: Path) -> None:
    """A connector of a notebook cannot be pickled."""

    class Local(EpisodeConnector):
        def edit(self, episode: Episode, fields: Any) -> Episode:
            return episode

    expected = values_of(open_dataset(data, unit="steps", connectors=[Local()]))
    copy = pickle.loads(pickle.dumps(open_dataset(data, unit="steps", connectors=[Local()])))
    with open(actions_in(cache, copy), "r+b") as file:
        file.write(b"\xff" * 100)
    with pytest.raises(UsageError, match=r"is damaged: remove .*, and open it again"):
        copy[:]
    with pytest.warns(UserWarning, match="is built again"):
        assert values_of(open_dataset(data, unit="steps", connectors=[Local()])) == expected


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


def test_a_change_after_it_was_opened_is_not_built_into_a_damaged_index(tmp_path: Path, cache: Path) -> None:
    path = write_dataset(tmp_path, [make_episode(5)], name="toy")
    dataset = open_dataset(path, unit="steps")
    with open(actions_in(cache, dataset), "r+b") as file:
        file.write(b"\xff" * 8)
    os.utime(shard_paths(path)[0])
    with pytest.raises(RldsBeamError, match="changed while it was open"):
        dataset[:]


def test_files_reach_the_disk_before_their_name(data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def record_fsync(descriptor: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def record_rename(source: Any, destination: Any) -> None:
        done.append(f"renamed to {destination}")
        rename(source, destination)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "rename", record_rename)
    open_dataset(data, unit="steps")
    directory = index_in(cache)
    renamed = done.index(f"renamed to {directory}")
    flushed = {Path(path).name for path in done[:renamed]}
    assert flushed >= {path.name for path in directory.iterdir()}
    assert done[renamed + 1 :] == [str(cache / "steps")]


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
    from rlds_beam.output.directory import release, take

    path, held = str(tmp_path / "lock"), threading.Lock()

    def work(_: int) -> None:
        descriptor = take(path, wait=True)
        assert held.acquire(blocking=False)
        held.release()
        release(path, descriptor)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(200)))
    assert not os.path.exists(path)
