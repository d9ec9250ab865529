"""The index of steps: the same samples as converting first, built once, kept as long as nothing changed."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rlds_data
from exchanging import export, rich_dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import DEADLINE, start, wait_until
from rlds_data import EditSome

import rlds_beam
from rlds_beam import Dataset, Episode, open_dataset
from rlds_beam.connectors import DropFields, EpisodeConnector, FlipChannels, MinimumLength, Normalize, ResizeImages
from rlds_beam.datasets import index_builder
from rlds_beam.datasets.steps import IndexedSteps
from rlds_beam.encoding.tfds.rlds_dataset import write_dataset as write_with_schema
from rlds_beam.episodes.schema import FLAGS
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.testing import make_episode, shard_paths, write_dataset

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    episodes = [rlds_data.episode(length, seed) for seed, length in enumerate(rlds_data.LENGTHS)]
    return write_dataset(tmp_path_factory.mktemp("data"), episodes, name="toy", shards=2)


def assert_same_rows(found: Dataset, expected: Dataset) -> None:
    kinds = [{path: (f.dtype, f.shape, f.encoding) for path, f in one.fields.items()} for one in (found, expected)]
    assert kinds[0] == kinds[1]
    assert len(found) == len(expected)
    for path in expected.fields:
        one, other = found.columns[path], expected.columns[path]
        assert one.dtype == other.dtype, path
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b, path)


class Halves(EpisodeConnector):
    """Splits each episode in two."""

    def edit(self, episode: rlds_beam.Episode, fields: Any) -> list[rlds_beam.Episode]:
        halves = [episode.slice(0, 2), episode.slice(2, len(episode))]
        return [
            one.with_columns({"is_first": np.arange(len(one)) == 0, "is_last": np.arange(len(one)) == len(one) - 1})
            for one in halves
        ]


CONNECTORS: dict[str, list[Any]] = {
    "none": [],
    "edited columns": [EditSome()],
    "split episodes": [Halves()],
    "dropped episodes": [MinimumLength(4)],
    "split and dropped episodes": [Halves(), MinimumLength(3)],
    "edited pixels": [FlipChannels("observation/image")],
    "edited twice": [FlipChannels("observation/image"), ResizeImages(6, 6, minimum=1)],
    "fitted to the dataset": [Normalize(["action", "observation/state"], mode="normal")],
    "fitted after others": [Halves(), EditSome(), Normalize("observation", mode="bounds")],
    "without fields": [DropFields(["observation/depth", "extra"])],
}


@pytest.mark.parametrize("unit", ["steps", "episodes"])
@pytest.mark.parametrize("case", CONNECTORS)
def test_connectors_give_the_same_online_and_offline(data: Path, tmp_path: Path, case: str, unit: Any) -> None:
    connectors = CONNECTORS[case]
    rlds_beam.convert(data, tmp_path / "out", to="rlds", connectors=connectors or None, progress="none", workers=1)
    converted = tmp_path / "out"
    online = open_dataset(data, unit=unit, connectors=connectors)
    assert_same_rows(online, open_dataset(converted, unit=unit))
    if unit == "episodes":  # read from the records, without an index
        assert isinstance(pickle.loads(pickle.dumps(online)), Dataset)
        return
    options: dict[str, Any] = {"shuffle": True, "history": 2, "chunk": 3, "image_size": (5, 7)}
    offline = open_dataset(converted, unit="steps").batches(4, **options)
    for one, other in zip(online.batches(4, **options), offline, strict=True):
        assert one.keys() == other.keys()
        for path in one:
            np.testing.assert_array_equal(one[path], other[path], path)


def test_an_index_that_exists_shows_edited_images(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connectors = [Halves(), FlipChannels("observation/image")]
    first = open_dataset(data, unit="steps", connectors=connectors).columns["observation/image"]
    monkeypatch.setattr(index_builder, "_build", lambda *_: pytest.fail("built again"))
    again = open_dataset(data, unit="steps", connectors=connectors)
    np.testing.assert_array_equal(again.columns["observation/image"], first)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again)).columns["observation/image"], first)


@settings(max_examples=25)
@given(schema=rlds_data.schemas(), seed=st.integers(0, 9))
def test_any_schema(schema: rlds_beam.Schema, seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    episodes = []
    for length in (3, 1, 4):
        made = make_episode(length, seed=seed)
        free = {path: field for path, field in schema.steps.items() if path not in (*FLAGS, "discount")}
        steps = {path: rlds_data.random(field, length, rng) for path, field in free.items()}
        metadata = {path: rlds_data.random(field, 1, rng)[0] for path, field in schema.metadata.items()}
        episodes.append(made.replace(steps={**made.steps, **steps}, metadata=metadata))
    path = write_with_schema(tmp_path_factory.mktemp("data"), episodes, name="any")
    whole = open_dataset(path)
    accept = ("non_finite", "discount_out_of_range")
    found = open_dataset(path, unit="episodes", accept=accept)
    known = [name for name in whole.fields if name in found.fields]
    assert len(whole.fields) - len(known) == len(getattr(found.rows, "notes", ()))
    for name in known:
        for one, other in zip(found.columns[name], whole.columns[name], strict=True):
            np.testing.assert_array_equal(one, other, name)


@pytest.mark.parametrize("to", ["lerobot", "zarr", "rlds"])
def test_every_format_of_episodes_has_steps(tmp_path: Path, to: str) -> None:
    source, _ = rich_dataset(tmp_path / "data")
    options = {"fps": 10} if to == "lerobot" else {}
    export(source, tmp_path / "out", to, **options)
    export(tmp_path / "out", tmp_path / "back", "rlds")
    expected = open_dataset(tmp_path / "back", unit="steps")
    found = open_dataset(tmp_path / "out", unit="steps")
    assert len(found) == len(expected) > 0
    for name in found.fields:
        np.testing.assert_array_equal(found.columns[name], expected.columns[name], name)


def test_bad_episodes_are_left_out_with_a_warning(tmp_path: Path) -> None:
    good = [make_episode(5, seed=seed) for seed in range(4)]
    bad = [make_episode(6, seed=10, breaks=["non_finite"]), make_episode("F M M", seed=11), good[1]]
    path = write_dataset(tmp_path, [*good[:2], *bad, *good[2:]], name="toy")
    with pytest.warns(UserWarning, match=r"3 episodes left out, which break rules: .*duplicate_episode \(1\)"):
        found = open_dataset(path, unit="steps")
    actions = np.concatenate([np.asarray(one.steps["action"]) for one in good])
    np.testing.assert_array_equal(found.columns["action"], actions)
    with pytest.warns(UserWarning, match=r"1 episode left out"):
        more = open_dataset(path, unit="steps", accept=("non_finite", "duplicate_episode"))
    assert len(more) == len(found) + 11
    with pytest.raises(RldsBeamError, match="non_finite"):
        open_dataset(path, unit="steps", fail="non_finite")
    assert len(open_dataset(path)) == 7  # episodes, as they are


def test_an_index_is_used_until_something_changes(data: Path, tmp_path: Path, cache: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(data.parent, copy / "toy")
    path = copy / "toy" / data.name

    def indexes(**options: Any) -> int:
        open_dataset(path, unit="steps", **options)
        return len(list((cache / "steps").iterdir()))

    assert [indexes(), indexes()] == [1, 1]
    assert indexes(accept="non_finite") == 2
    assert indexes(connectors=[MinimumLength(4)]) == 3
    assert indexes(connectors=[MinimumLength(5)]) == 4
    assert indexes(split="train[:2]") == 5
    assert indexes(connectors=[MinimumLength(4)]) == 5
    (shard, _) = sorted(path.glob("*.tfrecord*"))
    os.utime(shard, ns=(0, 0))
    assert indexes() == 6
    assert all(not name.name.endswith((".lock", ".new")) for name in (cache / "steps").iterdir())


def rows_of(dataset: Dataset) -> IndexedSteps:
    assert isinstance(dataset.rows, IndexedSteps)
    return dataset.rows


def test_an_incomplete_index_is_built_again(data: Path) -> None:
    def opened() -> Dataset:
        return open_dataset(data, unit="steps", connectors=[FlipChannels("observation/image")])

    expected = {path: values.tolist() for path, values in opened()[:].items()}
    directory = Path(rows_of(opened()).index.directory)
    pristine = {path.name: path.read_bytes() for path in directory.iterdir()}
    for name, content in pristine.items():
        (directory / name).unlink()
        if content:
            (directory / name).write_bytes(content[: len(content) // 2])
        assert {path: values.tolist() for path, values in opened()[:].items()} == expected
        # The same input gives the same bytes.
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == pristine


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


_OPEN = "import sys, rlds_beam; print(len(rlds_beam.open_dataset(sys.argv[1], unit='steps')))"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_build_is_begun_again(tmp_path: Path, cache: Path, number: signal.Signals) -> None:
    path = write_dataset(tmp_path, [make_episode(2000, seed=seed) for seed in range(300)], name="large", shards=4)
    with start([sys.executable, "-c", _OPEN, path]) as process:
        wait_until(lambda: list(cache.glob("steps/*.new/starts.bin")), process)
        process.send_signal(number)
        process.wait(DEADLINE)
    if number == signal.SIGINT:
        assert not [name for name in (cache / "steps").iterdir() if name.suffix]
    assert len(open_dataset(path, unit="steps")) == 600_000
    assert [name.suffix for name in (cache / "steps").iterdir()] == [""]


def test_processes_build_one_index(tmp_path: Path, cache: Path) -> None:
    path = write_dataset(tmp_path, [make_episode(500, seed=seed) for seed in range(100)], name="large", shards=4)
    command = [sys.executable, "-c", _OPEN, str(path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=120)[0] for process in processes] == ["50000\n"] * 3
    assert len([name for name in (cache / "steps").iterdir() if name.is_dir()]) == 1


def test_what_an_index_cannot_hold(data: Path) -> None:
    from rlds_beam.connectors import AddObservationsFromEpisodesToBatch, SplitEpisodes

    with pytest.raises(UsageError, match="--to=columns"):
        open_dataset(data, unit="steps", connectors=[AddObservationsFromEpisodesToBatch()])
    with pytest.raises(UsageError, match="open a split of its output"):
        open_dataset(data, unit="steps", connectors=[SplitEpisodes({"train": 0.5, "val": 0.5})])
    with pytest.raises(UsageError, match="unknown option --unitt"):
        open_dataset(data, unitt="steps")


def test_a_preset_repairs_as_in_a_conversion(tmp_path: Path) -> None:
    episodes = [make_episode(length, seed=length) for length in (4, 6)]
    endless = [{path: np.zeros(len(one), bool) for path in ("is_last", "is_terminal")} for one in episodes]
    episodes = [one.replace(steps={**one.steps, **marks}) for one, marks in zip(episodes, endless, strict=True)]
    data = write_dataset(tmp_path / "data", episodes, name="roboturk")
    export(data, tmp_path / "rlds", "rlds", preset="roboturk")
    found = open_dataset(data, unit="steps", preset="roboturk")
    assert_same_rows(found, open_dataset(tmp_path / "rlds", unit="steps"))
    assert len(found) == 10
