"""The conversion end to end: for every kind of item, the output equals what the core computes."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.cli.main import main
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.jobs.convert import prepare
from rlds_beam.pipelines.convert import ConvertConfig, define_pipeline
from rlds_beam.testing import make_episode, read_items, read_payloads, read_rejected, shard_paths, write_dataset
from rlds_beam.trajectories.frames import Frames, to_frames
from rlds_beam.trajectories.items import Items, Windows, item_count
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.transforms import ConvertToTrajectories, ReadFromRlds, ValidateEpisodes

LENGTHS = (4, 1, 6, 3, 5, 2, 7)
SHAPES: dict[str, Any] = {"observation": {"camera/state": (2, 2), "goal": 3}, "action": 2}


@pytest.fixture
def episodes() -> list[Episode]:
    return [make_episode(n, seed=i, terminal=i % 2 == 0, **SHAPES) for i, n in enumerate(LENGTHS)]


@pytest.fixture
def source(tmp_path, episodes) -> Path:
    return write_dataset(tmp_path / "data", episodes, shards=2)


def run(source: object, output: Path, *flags: str) -> list[dict[str, Any]]:
    assert main(["convert", str(source), str(output), "--accept=duplicate_episode", *flags]) == 0
    return read_items(output)


def made(frames: list[Frames], options: ItemOptions) -> list[dict[str, Any]]:
    """The items of each run of frames, computed by the core alone."""
    found = []
    for one in frames:
        items = Items(one, Windows.from_frames(len(one), options))
        columns = {path: items.gather(path) for path in one.columns}
        if options.items == "frames":
            columns = {path: column[:, 0] for path, column in columns.items()}  # type: ignore[index]
        found += [{path: column[k] for path, column in columns.items()} for k in range(len(items))]
    return found


def joined(frames: list[Frames]) -> Frames:
    stream, *others = frames
    for one in others:
        stream = stream.append(one)
    return stream


def assert_same(got: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.keys() == b.keys()
        for path, value in b.items():
            assert a[path].dtype == value.dtype
            np.testing.assert_array_equal(a[path], value, err_msg=path)


def flags_of(options: ItemOptions) -> list[str]:
    changed = [f.name for f in dataclasses.fields(options) if getattr(options, f.name) != f.default]
    return [f"--{name}" + ("" if getattr(options, name) is True else f"={getattr(options, name)}") for name in changed]


SEQUENCES: dict[str, Any] = {"items": "sequences", "sequence_length": 3}


@pytest.mark.parametrize(
    "options",
    [
        ItemOptions(),
        ItemOptions(items="frames"),
        ItemOptions(items="episodes"),
        ItemOptions(**SEQUENCES),
        ItemOptions(**SEQUENCES, stride_length=2),
        ItemOptions(**SEQUENCES, pad_end_of_episodes=True),
        ItemOptions(**SEQUENCES, stride_length=2, pad_end_of_episodes=True, tile_end_of_episodes=True),
        ItemOptions(items="episodes", max_sequence_length=5, bypass_partial_episodes=True),
    ],
    ids=lambda options: " ".join(flags_of(options)) or "pairs",
)
def test_items(tmp_path, source, episodes, options):
    got = run(source, tmp_path / "out", *flags_of(options))
    frames = [to_frames(episode, FrameOptions()) for episode in episodes]
    assert len(got) == sum(item_count(n, options) for n in LENGTHS)
    assert_same(got, made(frames, options))


@pytest.mark.parametrize("pad", [{}, {"pad_end_of_episodes": True, "tile_end_of_episodes": True}])
def test_across_episodes(tmp_path, source, episodes, pad):
    options = ItemOptions(**SEQUENCES, stride_length=2, across_episodes=True, **pad)
    got = run(source, tmp_path / "out", *flags_of(options))
    frames = [to_frames(episode, FrameOptions()) for episode in episodes]
    streams = [joined(frames[:3]), joined(frames[3:])]  # each shard is a separate stream
    assert len(got) == sum(item_count(sum(lengths), options) for lengths in (LENGTHS[:3], LENGTHS[3:]))
    assert_same(got, made(streams, options))


@pytest.mark.parametrize("options", [FrameOptions(terminal_discount="boundary"), FrameOptions(last_step="absorbing")])
def test_frame_options(tmp_path, source, episodes, options):
    got = run(
        source,
        tmp_path / "out",
        f"--terminal_discount={options.terminal_discount}",
        *([f"--last_step={options.last_step}"] if options.last_step else []),
    )
    assert_same(got, made([to_frames(episode, options) for episode in episodes], ItemOptions()))


def test_too_long_episodes_are_rejected(tmp_path, source):
    output = tmp_path / "out"
    code = main(["convert", str(source), str(output), "--items=episodes", "--max_sequence_length=5"])
    assert code == 3
    assert [line["rule"] for line, _ in read_rejected(output)] == ["too_long"] * 2
    assert len(read_items(output)) == 5


# Input


def states(items: list[dict[str, Any]]) -> list[bytes]:
    return [item["observation/goal"].tobytes() for item in items]


def goals(episodes: list[Episode]) -> list[bytes]:
    return [step.tobytes() for episode in episodes for step in np.asarray(episode.steps["observation/goal"])]


def test_splits(tmp_path, episodes):
    source = write_dataset(tmp_path / "data", episodes[:4], shards=2)
    write_dataset(tmp_path / "data", episodes[4:], split="test")
    assert sorted(states(run(source, tmp_path / "both", "--items=frames"))) == sorted(goals(episodes))
    info = json.loads((tmp_path / "both" / "dataset_info.json").read_text())
    assert {s["name"]: s["shardLengths"] for s in info["splits"]} == {"train": ["14"], "test": ["14"]}
    assert states(run(source, tmp_path / "test", "--items=frames", "--split=test")) == goals(episodes[4:])
    both = run(source, tmp_path / "named", "--items=frames", "--split=test+train")
    assert sorted(states(both)) == sorted(goals(episodes))


def test_array_record(tmp_path, source, episodes):
    module = pytest.importorskip("array_record.python.array_record_module")
    for path in shard_paths(source):
        writer = module.ArrayRecordWriter(str(path).replace(".tfrecord", ".array_record"), "group_size:1")
        for payload in read_payloads(path):
            writer.write(payload)
        writer.close()
        path.unlink()
    info = json.loads((source / "dataset_info.json").read_text())
    (source / "dataset_info.json").write_text(json.dumps({**info, "fileFormat": "array_record"}))
    assert states(run(source, tmp_path / "out", "--items=frames", "--shards=3")) == goals(episodes)


# policy_info


@pytest.fixture
def own_module(tmp_path, monkeypatch) -> str:
    """A user module next to one that would break the job if it were imported instead of our module."""
    (tmp_path / "own_policies.py").write_text(
        textwrap.dedent("""
        import numpy as np

        def value(current, following):
            goal = current["observation"]["goal"]
            return {"value": goal.sum(axis=1), "ahead": following["observation"]["goal"][:, 0].astype(np.float64)}
        """)
    )
    (tmp_path / "transforms.py").write_text("raise RuntimeError('the wrong transforms')")
    (tmp_path / "numpy.py").write_text("raise RuntimeError('the wrong numpy')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "nothing")  # so that sys.path is restored
    return "own_policies:value"


@pytest.mark.parametrize("workers", [1, 2])
def test_policy_info_fn_from_the_current_directory(tmp_path, source, episodes, own_module, workers):
    got = run(source, tmp_path / "out", "--items=frames", f"--policy_info_fn={own_module}", f"--workers={workers}")
    expected = np.concatenate([np.asarray(e.steps["observation/goal"]).sum(axis=1) for e in episodes])
    np.testing.assert_array_equal([item["policy_info/value"] for item in got], expected)
    assert got[0]["policy_info/ahead"].dtype == np.float64


# In a user's pipeline


def test_define_pipeline_in_a_users_pipeline(tmp_path, source, episodes):
    config = ConvertConfig.create(str(source), str(tmp_path / "out"), items="frames", shards=2)
    with beam.Pipeline(runner=FnApiRunner()) as root:
        report = define_pipeline(root, config)
        counts = report | beam.Map(lambda report: (report.valid, report.items_written))
        assert_that(counts, equal_to([(len(LENGTHS), sum(LENGTHS))]))
    assert states(read_items(tmp_path / "out")) == goals(episodes)


def test_transforms_in_a_users_pipeline(tmp_path, episodes):
    source = write_dataset(tmp_path / "data", [*episodes, make_episode("F M M", seed=50, **SHAPES)], shards=2)
    options = ItemOptions(**SEQUENCES, pad_end_of_episodes=True)
    frames = [to_frames(episode, FrameOptions()) for episode in episodes]
    expected = sorted(items["observation/goal"].tobytes() for items in made(frames, options))
    with beam.Pipeline(runner=FnApiRunner()) as root:
        read = ReadFromRlds(str(source))
        checked = root | read | ValidateEpisodes(CheckOptions())
        converted = checked.accepted | ConvertToTrajectories(read.schema, items=options)
        found = converted.items | beam.FlatMap(lambda items: [x.tobytes() for x in items.gather("observation/goal")])
        assert_that(found, equal_to(expected), label="items")
        assert_that(checked.rejected | beam.Map(lambda r: r.rule), equal_to(["missing_is_last"]), label="rejected")
        assert_that(checked.report | beam.Map(lambda r: (r.records, r.valid)), equal_to([(8, 7)]), label="report")
    with pytest.raises(UsageError, match="across_episodes"):
        ConvertToTrajectories(read.schema, items=ItemOptions(**SEQUENCES, across_episodes=True))


def test_cast_writes_what_the_format_cannot_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"observation/gripper_open": np.array([True, False, True]), "reward": np.arange(3, dtype=np.float64)}
    episodes = [make_episode(3, seed=i, observation={"state": 2}, columns=columns) for i in range(4)]
    path, output = str(write_dataset(tmp_path, episodes)), str(tmp_path / "out")
    assert main(["convert", path, output]) == 2
    assert "--cast=observation/gripper_open=uint8" in capsys.readouterr().err
    assert main(["convert", path, output, "--cast=observation/gripper_open=uint8,reward=float32"]) == 0
    items = read_items(output)
    assert items[0]["observation/gripper_open"].dtype == np.uint8
    assert items[0]["observation/gripper_open"].tolist() == [1, 0]
    assert items[0]["reward"].dtype == np.float32
    for wrong in ("observation/griper_open=uint8", "discount=float64", "reward=complex64", "reward"):
        assert main(["convert", path, str(tmp_path / "wrong"), f"--cast={wrong}"]) == 2
        assert f"--cast={wrong}" in capsys.readouterr().err


def test_a_finished_range_is_left_unchanged(tmp_path, source) -> None:
    """If a runner restarts a job, only incomplete parts are written again."""
    job = prepare(ConvertConfig.create(str(source), str(tmp_path / "out"), shards=3))
    work, *_ = job.open()
    commit = job.converter.convert_range(work, {})
    shard = tmp_path / "out" / commit.files[0].file
    made, content = shard.stat().st_ino, shard.read_bytes()
    assert job.converter.convert_range(work, {}) == commit
    assert shard.stat().st_ino == made
    shard.write_bytes(content[:-1])
    assert job.converter.convert_range(work, {}) == commit
    assert shard.read_bytes() == content
