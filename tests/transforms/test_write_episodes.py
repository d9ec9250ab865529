"""WriteEpisodes writes what convert writes, with any number of workers and in any order."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.testing.util import assert_that, equal_to
from beam_runners import RUNS, new_pipeline
from exchanging import export

import rlds_beam
from rlds_beam import Field
from rlds_beam.connectors import Normalize, SubsampleSteps
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.output.commits import read_manifest
from rlds_beam.output.files import INPUTS
from rlds_beam.processing.report import Report
from rlds_beam.testing import make_episode, read_rejected, write_dataset
from rlds_beam.transforms import ConnectEpisodes, ReadFromRlds, ValidateEpisodes, WriteEpisodes, WriteRejected

FORMATS: dict[str, dict[str, Any]] = {
    "lerobot": {"lerobot_version": "2.1"},
    "columns": {"format": "parquet"},
    "zarr": {},
    "rlds": {},
    "trajectories": {"items": "sequences", "sequence_length": 3},
    "numpy": {},
}
OF_THE_RUN = {"plan.json", "manifest.json", "report.json", "checksums.xxh128", "README.md", "provenance.json"}
"""Files that say how the output was written."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards, with a rate, a robot, names, and a broken episode."""
    episodes = [make_episode(n, seed=n, observation={"state": 2}, action=3) for n in (4, 2, 7, 3, 12, 5)]
    broken = make_episode(4, seed=50, observation={"state": 2}, action=3, breaks=["missing_is_last"])
    path = write_dataset(tmp_path_factory.mktemp("data"), [*episodes, broken], shards=3)
    meaning = {"fps": 30, "robot": "arm", "names": {"action": ["x", "y", "z"]}}
    (path / "meaning.json").write_text(json.dumps(meaning))
    return path


def files(output: Path) -> dict[str, bytes]:
    """The files that hold the data and its metadata, by path."""
    paths = [path for path in sorted(output.rglob("*")) if path.is_file() and path.name not in OF_THE_RUN]
    paths = [path for path in paths if INPUTS.fullmatch(path.name) is None]
    names = [str(path.relative_to(output)) for path in paths]
    return {
        name: path.read_bytes()
        for name, path in zip(names, paths, strict=True)
        if not name.startswith(("_commits/", "rejected/"))
    }


def write(root: Any, data: Path, output: Path, to: str, edit: Any = None, **options: Any) -> Any:
    """Writes the accepted episodes, shuffled into bundles, and all rejected ones."""
    read = ReadFromRlds(str(data))
    checked = root | read | beam.Reshuffle() | ValidateEpisodes()
    episodes = checked.accepted if edit is None else checked.accepted | "Edit" >> beam.Map(edit)
    written = episodes | WriteEpisodes(str(output), read.source, to=to, **options)
    (checked.rejected, written.rejected) | beam.Flatten() | WriteRejected(str(output))
    return written


def counts(report: Report) -> tuple[int, int, int, bool]:
    return report.records, report.valid, report.rejected, report.items_written == report.items_predicted > 0


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_is_written_as_by_convert(tmp_path: Path, data: Path, to: str) -> None:
    with new_pipeline() as root:
        report = write(root, data, tmp_path / "out", to, **FORMATS[to]).written
        assert_that(report | beam.Map(counts), equal_to([(6, 6, 0, True)]))
    export(data, tmp_path / "expected", to, **FORMATS[to])
    assert files(tmp_path / "out") == files(tmp_path / "expected")
    manifest, expected = (read_manifest(str(tmp_path / name)) for name in ("out", "expected"))
    assert {**manifest, "plan_sha256": 0, "rejected": 0} == {**expected, "plan_sha256": 0, "rejected": 0}
    assert [line["rule"] for line, _ in read_rejected(tmp_path / "out")] == ["missing_is_last"]


@pytest.mark.parametrize("runner", RUNS)
def test_shards_hold_the_episodes_in_the_order_of_their_keys(tmp_path: Path, data: Path, runner: str) -> None:
    with new_pipeline(runner) as root:
        report = write(root, data, tmp_path / "out", "rlds", shards=3).written
        assert_that(report | beam.Map(counts), equal_to([(6, 6, 0, True)]))
    source = rlds_beam.open_source(str(tmp_path / "out"))
    assert [len(split.shards) for split in source.splits] == [3]
    assert lengths(tmp_path / "out") == lengths(data)[:-1] and len(lengths(data)) == 7
    assert not (tmp_path / "out" / "_parts").exists()


def lengths(path: Path) -> list[int]:
    """The lengths of the episodes in order; the last one of `data` is broken."""
    return [len(episode["steps/is_last"]) for episode in rlds_beam.open_dataset(path, unit="episodes")]


def double_reward(episode: Episode) -> Episode:
    return episode.with_columns({"reward": 2 * np.asarray(episode.steps["reward"])})


def add_speed(episode: Episode) -> Episode:
    return episode.with_columns({"speed": np.full(len(episode), len(episode), np.float32)})


def test_edited_episodes_are_written_not_their_records(tmp_path: Path, data: Path) -> None:
    with new_pipeline() as root:
        write(root, data, tmp_path / "out", "rlds", double_reward)
    before, after = (rewards(path) for path in (data, tmp_path / "out"))
    assert after == [2 * reward for reward in before[:-4]]


def rewards(path: Path) -> list[float]:
    episodes = rlds_beam.open_dataset(path, unit="episodes")
    return [float(reward) for episode in episodes for reward in episode["steps/reward"]]


@pytest.mark.parametrize("to", ["rlds", "zarr"])
def test_added_columns_are_declared(tmp_path: Path, data: Path, to: str) -> None:
    schema = rlds_beam.open_source(str(data)).schema.with_columns(Field("speed", "float32"))
    with new_pipeline() as root:
        write(root, data, tmp_path / "out", to, add_speed, schema=schema)
    (first, *_) = rlds_beam.open_dataset(tmp_path / "out", unit="episodes")
    assert first["steps/speed"].tolist() == [len(first["steps/speed"])] * len(first["steps/speed"])
    root = new_pipeline()
    write(root, data, tmp_path / "undeclared", to, add_speed)
    with pytest.raises(Exception, match="speed is not in the schema"):
        root.run()
    assert not (tmp_path / "undeclared" / "manifest.json").exists()


def break_long(episode: Episode) -> Episode:
    """A step that spoils two episodes."""
    if len(episode) == 12:
        return episode.with_columns({"action": np.full((12, 3), np.nan, np.float32)})
    if len(episode) == 7:
        return episode.with_columns({"action": np.zeros((7, 3))})
    return episode


def test_episodes_that_a_step_spoils_are_rejected_with_their_records(tmp_path: Path, data: Path) -> None:
    with new_pipeline() as root:
        report = write(root, data, tmp_path / "out", "numpy", break_long).written
        assert_that(report | beam.Map(counts), equal_to([(6, 4, 2, True)]))
    rejected = {line["rule"]: len(payload) for line, payload in read_rejected(tmp_path / "out")}
    assert rejected.keys() == {"missing_is_last", "non_finite", "wrong_dtype_or_shape"} and all(rejected.values())


def test_connectors_and_their_rate(tmp_path: Path, data: Path) -> None:
    """After ConnectEpisodes, or as options: one step of two is kept, so the rate is halved."""
    read = ReadFromRlds(str(data))
    connect = ConnectEpisodes([SubsampleSteps(2)], read.source)
    with new_pipeline() as root:
        connected = (root | read | ValidateEpisodes()).accepted | connect
        connected.episodes | WriteEpisodes(str(tmp_path / "a"), connect.source, connect.schema, to="rlds")
    with new_pipeline() as root:
        write(root, data, tmp_path / "b", "rlds", connectors=[SubsampleSteps(2)], robot_type="arm")
    sources = [rlds_beam.open_source(str(tmp_path / name)) for name in "ab"]
    assert [(source.fps, source.robot) for source in sources] == [(15, "arm"), (15, "arm")]
    assert lengths(tmp_path / "a") == lengths(tmp_path / "b")


def test_a_used_directory_is_refused_and_building_the_graph_writes_nothing(tmp_path: Path, data: Path) -> None:
    root = new_pipeline()
    write(root, data, tmp_path / "out", "zarr")
    assert not (tmp_path / "out").exists()
    root.run().wait_until_finish()
    with pytest.raises(UsageError, match="overwrite=True"):
        write(new_pipeline(), data, tmp_path / "out", "columns")
    with new_pipeline() as root:
        write(root, data, tmp_path / "out", "columns", overwrite=True)
    assert not list((tmp_path / "out").glob("data.zarr")) and len(read_rejected(tmp_path / "out")) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "lerobt"}, "lerobot"),
        ({"to": "zarr", "vcodec": "h264"}, "vcodec"),
        ({"to": "trajectories", "items": "sequences", "sequence_length": 3, "across_episodes": True}, "unordered"),
        ({"to": "zarr", "connectors": [Normalize(["action"])]}, "needs the whole dataset"),
    ],
)
def test_what_cannot_be_used_is_refused_on_construction(
    tmp_path: Path, data: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        WriteEpisodes(str(tmp_path / "out"), rlds_beam.open_source(str(data)), **options)


def other_split(episode: Episode) -> Episode:
    """Moves the longer episodes."""
    return episode.replace(key=dataclasses.replace(episode.key, split="other" if len(episode) > 4 else "train"))


def same_key(episode: Episode) -> Episode:
    return episode.replace(key=dataclasses.replace(episode.key, shard=0, position=0))


def test_equal_keys_are_an_error(tmp_path: Path, data: Path) -> None:
    root = new_pipeline()
    write(root, data, tmp_path / "out", "zarr", same_key)
    with pytest.raises(
        Exception, match=r"two episodes of split train have the key testing/1.0.0:train:00000@0: keys must be unique"
    ):
        root.run()
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_episodes_may_move_to_another_split(tmp_path: Path, data: Path) -> None:
    with new_pipeline() as root:
        write(root, data, tmp_path / "out", "rlds", other_split)
    source = rlds_beam.open_source(str(tmp_path / "out"))
    assert [(split.name, split.episodes) for split in source.splits] == [("train", 3), ("other", 3)]


@pytest.mark.parametrize("to", ["rlds", "columns", "lerobot"])
def test_an_empty_input(tmp_path: Path, data: Path, to: str) -> None:
    source = rlds_beam.open_source(str(data))
    with new_pipeline() as root:
        report = (root | beam.Create([]) | WriteEpisodes(str(tmp_path / "out"), source, to=to)).written
        assert_that(report | beam.Map(lambda report: report.records), equal_to([0]))
    assert read_manifest(str(tmp_path / "out"))["items"] == 0
