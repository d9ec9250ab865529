"""Last steps without an action: what each source says, and which rows outputs write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hdf5_robots
import msgspec
import numpy as np
import pytest
import small_datasets
from exchanging import export
from zarr_data import open_zip

import rlds_beam
from rlds_beam.reading.last_steps import find_last_steps
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import make_episode, write_dataset

CONVENTIONS = {
    # A transition's next observation is added as a step, with an action of zeros.
    "d4rl": "void",
    "minari": "void",
    "npz_d4rl": "void",
    "hdf5_robomimic": "void",
    # A row holds the action that led to its observation.
    "npz": "void",
    "envlogger": "void",
    # A row is an observation, and the action taken there, also in the last row.
    "lerobot": "real",
    "lerobot_foreign": "real",
    "lerobot_v21": "real",
    "zarr": "real",
    "npz_ogbench": "real",
    "hdf5_aloha": "real",
    "hdf5_droid": "real",
    "hdf5_robotwin": "real",
    "hdf5_profile": "real",
    "hdf5_agibot": "real",
    "hdf5_isaaclab": "real",
    "hdf5_robomind": "real",
    "ros2": "real",
    "ros2_sqlite": "real",
    # Many datasets do not follow RLDS, and these formats hold what a source gave.
    "rlds": "unknown",
    "rlds_gzip": "unknown",
    "merged": "unknown",
}


@pytest.mark.parametrize(("name", "convention"), CONVENTIONS.items())
def test_each_source_says_what_its_last_steps_are(name: str, convention: str, tmp_path: Path) -> None:
    made = small_datasets.DATASETS[name]
    made.make(tmp_path / "data")
    path, *flags = made.argv(tmp_path / "data")
    given: Any = {flag.split("=")[0].removeprefix("--"): flag.split("=")[1] for flag in flags}
    if "from" in given:
        given["from_"] = given.pop("from")
    source = rlds_beam.inspect(path, **given).source
    assert source.last_action == convention
    work = plan_ranges(source)[0]
    episodes = [e for e in EpisodeReader(source).read(work.split, work.segments[0]) if not e.faults]
    ended = [episode for episode in episodes if episode.steps["is_last"][-1]]
    assert ended
    last = [np.asarray(c)[-1] for e in ended for p, c in e.steps.items() if p.split("/")[0] == "action"]
    assert any(np.any(action) for action in last) == (convention != "void")


def test_a_recording_says_that_its_last_steps_have_no_action(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    rlds_beam.record(tmp_path / "out", env="gymnasium:CartPole-v1", policy="random", episodes=2)
    assert json.loads((tmp_path / "out" / "meaning.json").read_text())["last_action"] == "void"


def foreign(directory: Path, last: str, lengths: tuple[int, ...] = (5, 9, 3)) -> Path:
    """An RLDS dataset whose last actions are zeros, repetitions, or new values."""
    episodes = []
    for seed, length in enumerate(lengths):
        episode = make_episode(length, seed=seed, observation={"state": 3})
        action = np.array(episode.steps["action"])
        if last != "new":
            action[-1] = 0 if last == "zeros" else np.nan if last == "nan" else action[-2 if length > 1 else -1]
        episodes.append(episode.with_columns({"action": action}))
    return write_dataset(directory, episodes, shards=2)


def frames(output: Path) -> Any:
    """The frames of a LeRobot dataset in order."""
    import pyarrow as pa
    from pyarrow import parquet

    files = sorted((output / "data").rglob("*.parquet"))
    return pa.concat_tables([parquet.read_table(file) for file in files]).to_pylist()


def actions(output: Path) -> list[list[float]]:
    return [row["action"] for row in frames(output)]


@pytest.mark.parametrize(
    ("last", "meant", "seen"),
    [
        ("zeros", "void", "zeros in 3"),
        ("repeat", "void", "a repetition in 3"),
        ("nan", "void", "not finite in 3"),
        ("new", "real", "a new value in 3"),
    ],
)
def test_foreign_rlds_is_looked_at(last: str, meant: str, seen: str, tmp_path: Path) -> None:
    data = foreign(tmp_path / "data", last)
    survey = rlds_beam.inspect(data)
    assert survey.to_json()["last_steps"] == {"action": meant, "assumed": f"{seen} of 3 episodes"}
    assert f"last step {meant}: " in str(survey)
    assert f"(assumed: {seen} of 3 episodes)" in str(survey)
    done = rlds_beam.convert(data, tmp_path / "out", to="lerobot", fps=10)
    assert len(frames(tmp_path / "out")) == done.report.items_written == (14 if meant == "void" else 17)
    assert (f"(assumed: {seen} of 3 episodes)" in str(done)) == (meant == "void")
    assert ("3 last steps without an action; --last_step=keep keeps them" in str(done)) == (meant == "void")


def test_actions_that_are_often_zero_or_the_same_are_real(tmp_path: Path) -> None:
    resting = [make_episode(8, seed=i, columns={"action": np.eye(8, 2, dtype=np.float32)}) for i in range(3)]
    assert find_last_steps(rlds_beam.open_source(str(write_dataset(tmp_path, resting)))).action == "real"


def test_a_dataset_without_an_episode_to_look_at_follows_rlds(tmp_path: Path) -> None:
    data = write_dataset(tmp_path, [make_episode(1, seed=i) for i in range(3)])
    found = find_last_steps(rlds_beam.open_source(str(data)))
    assert (found.action, found.assumed) == ("void", "RLDS defines it so, and there was no episode to look at")


def test_data_without_actions_keeps_all_steps(tmp_path: Path) -> None:
    from rlds_beam.connectors import DropFields

    data = foreign(tmp_path / "data", "zeros")
    done = rlds_beam.convert(data, tmp_path / "out", to="lerobot", fps=10, connectors=[DropFields(["action"])])
    assert done.report.items_written == 17


@pytest.mark.parametrize("version", ["3.0", "2.1"])
def test_lerobot_has_one_frame_for_each_action(version: str, tmp_path: Path) -> None:
    data, out = foreign(tmp_path / "data", "zeros", (5, 1, 9)), tmp_path / "out"
    done = rlds_beam.convert(data, out, to="lerobot", fps=10, lerobot_version=version)
    assert "3 last steps without an action (1 episode without any other step); --last_step=keep keeps them" in str(done)
    assert msgspec.to_builtins(done.report)["unused"] == {"no_action": {"episodes": 1, "steps": 3, "longest": 1}}
    info = json.loads((out / "meta" / "info.json").read_text())
    assert (info["total_episodes"], info["total_frames"]) == (2, 12)
    rows = frames(out)
    assert [row["next.done"] for row in rows] == [False] * 3 + [True] + [False] * 7 + [True]
    assert all(any(row["action"]) for row in rows)
    assert [row["frame_index"] for row in rows] == [*range(4), *range(8)]
    stats = json.loads((out / "meta" / "stats.json").read_text())
    np.testing.assert_allclose(stats["action"]["mean"], np.mean([row["action"] for row in rows], axis=0), rtol=1e-5)


@pytest.mark.parametrize("images", ["copy", "video"])
def test_videos_have_as_many_frames_as_the_table(images: str, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    small_datasets._lerobot(foreign=True, moving=True)(tmp_path / "moving")
    export(tmp_path / "moving", tmp_path / "all", "lerobot", images=images, map=("-is_last",))
    export(tmp_path / "moving", tmp_path / "fewer", "lerobot", images=images, map=("-is_last",), last_step="drop")
    counts = [len(frames(tmp_path / name)) for name in ("all", "fewer")]
    assert counts == [12, 9]
    for name, count in zip(("all", "fewer"), counts, strict=True) if images == "video" else ():
        files = list((tmp_path / name / "videos").rglob("*.mp4"))
        assert sum(av.open(str(file)).streams.video[0].frames for file in files) == count


def test_lerobot_to_rlds_to_lerobot_keeps_every_frame(tmp_path: Path) -> None:
    export(foreign(tmp_path / "data", "zeros"), tmp_path / "a", "lerobot", fps=10, last_step="keep")
    assert len(frames(tmp_path / "a")) == 17
    export(tmp_path / "a", tmp_path / "rlds", "rlds")
    export(tmp_path / "rlds", tmp_path / "copy", "rlds")
    assert json.loads((tmp_path / "copy" / "meaning.json").read_text())["last_action"] == "real"
    export(tmp_path / "copy", tmp_path / "b", "lerobot")
    assert actions(tmp_path / "b") == actions(tmp_path / "a")


def test_d4rl_to_rlds_to_lerobot_has_a_frame_for_each_transition(tmp_path: Path) -> None:
    small_datasets._d4rl(tmp_path / "d4rl")
    source = rlds_beam.open_source(str(tmp_path / "d4rl"), from_="hdf5")
    export(tmp_path / "d4rl", tmp_path / "rlds", "rlds")
    for data in ("d4rl", "rlds"):
        done = rlds_beam.convert(tmp_path / data, tmp_path / f"{data}-lerobot", to="lerobot", fps=10)
        assert done.report.items_written == done.report.steps - (source.episodes or 0)
    assert actions(tmp_path / "d4rl-lerobot") == actions(tmp_path / "rlds-lerobot")
    assert "assumed" not in str(done)


def test_robomimic_without_next_observations_keeps_its_last_action(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    for name, next_obs in (("with", True), ("without", False)):
        hdf5_robots.robomimic(tmp_path / name, [4, 3], next_obs=next_obs)
        export(tmp_path / name, tmp_path / f"{name}-out", "lerobot", fps=20, raw_images="raw")
        assert len(frames(tmp_path / f"{name}-out")) == 7


def test_zarr_has_one_row_for_each_action(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    data = foreign(tmp_path / "data", "zeros", (5, 1, 9))
    for last_step, ends in ((None, [4, 12]), ("keep", [5, 6, 15])):
        out = tmp_path / str(last_step)
        done = rlds_beam.convert(data, out, to="zarr", **({"last_step": last_step} if last_step else {}))
        assert done.report.items_written == done.report.items_predicted == len(ends)
        root = open_zip(out / "train.zarr.zip")
        assert root["meta/episode_ends"][:].tolist() == ends
        assert root["data/action"].shape[0] == ends[-1]
        assert rlds_beam.inspect(data, to="zarr", **({"last_step": last_step} if last_step else {})).items == len(ends)
    assert rlds_beam.open_source(str(tmp_path / "None" / "train.zarr.zip")).last_action == "real"


def test_merged_datasets_agree_or_are_looked_at(tmp_path: Path) -> None:
    paths = [foreign(tmp_path / name, "zeros") for name in "ab"]
    source = rlds_beam.open_source([str(path) for path in paths], from_="merged")
    assert (source.last_action, find_last_steps(source).action) == ("unknown", "void")
    for path in paths:
        (path / "meaning.json").write_text('{"last_action": "real"}')
    assert rlds_beam.open_source([str(path) for path in paths], from_="merged").last_action == "real"
