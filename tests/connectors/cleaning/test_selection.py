"""Cleaning connectors, compared step by step with the scripts they are named after, on generated data."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from edits import FEW, edited, images, with_actions
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam import connectors as c
from rlds_beam.connectors import connect
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.testing import make_episode

# No-ops, as dropped by OpenVLA-OFT's regenerate_libero_dataset.py


def libero(actions: Any) -> list[int]:
    """Its loop: `prev_action` is the last kept action."""
    kept: list[int] = []
    for i, action in enumerate(actions):
        small = np.linalg.norm(action[:-1]) < 1e-4
        if not (small if not kept else small and action[-1] == actions[kept[-1]][-1]):
            kept.append(i)
    return kept


@FEW
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5]), st.sampled_from([-1.0, 0.0, 1.0])), min_size=1, max_size=12))
def test_no_ops_equal_liberos(actions):
    found = edited(c.DropNoOpSteps(), with_actions(actions, mark=np.arange(len(actions))))
    kept = found[0].steps["mark"].tolist() if found else []
    assert kept == libero(np.asarray(actions, np.float32))
    if found:
        steps = found[0].steps
        np.testing.assert_array_equal(steps["is_first"], np.arange(len(kept)) == 0)
        np.testing.assert_array_equal(steps["is_last"], np.arange(len(kept)) == len(kept) - 1)
        assert bool(steps["is_terminal"][-1])
        before = make_episode(len(actions)).steps["reward"]
        np.testing.assert_allclose(steps["reward"].sum(), before.sum(), rtol=1e-5)


def test_a_void_last_step_can_be_kept():
    assert edited(c.DropNoOpSteps(), with_actions([[1, 0], [0, 0], [0, 0]]))[0].steps["is_last"].tolist() == [True]
    assert len(edited(c.DropNoOpSteps(keep_last=True), with_actions([[1, 0], [0, 0], [0, 0]]))[0]) == 2
    assert edited(c.DropNoOpSteps(keep_last=True), with_actions([[0, 0], [0, 0]])) == []


# Success, labels, selection


def test_successes_are_kept_as_openpi_and_rlds_dataset_mod_do():
    paths = {"/success/1.h5": 1, "/failure/1.h5": 0, "a\nsuccess": 1}
    for path, count in paths.items():
        episode = make_episode(3, metadata={"file_path": path.encode(), "success": np.bool_(count)})
        assert len(edited(c.KeepSuccessful("file_path", pattern=".*success.*"), episode)) == count
        assert len(edited(c.KeepSuccessful(), episode)) == count
    ended = make_episode(3).with_columns({"reward": np.array([0, 0, 1], np.float32)})
    assert edited(c.KeepSuccessful("reward"), ended) == [ended]
    assert edited(c.KeepSuccessful("reward"), ended.with_columns({"reward": np.zeros(3, np.float32)})) == []
    with pytest.raises(UsageError, match="there is no field succes"):
        edited(c.KeepSuccessful("succes"), ended)
    with pytest.raises(UsageError, match="holds text: give a pattern"):
        edited(c.KeepSuccessful("file_path"), episode)


def test_unlabeled_episodes_have_empty_text_at_every_step():
    for texts, count in ((["", "", ""], 0), (["", "go", ""], 1)):
        episode = make_episode(3, columns={"language_instruction": texts})
        assert len(edited(c.DropUnlabeled(), episode)) == count
    assert connect([c.DropUnlabeled()], [make_episode(2, columns={"language_instruction": ["", ""]})]).dropped == {
        "DropUnlabeled": 1
    }


EPISODE = make_episode(
    5,
    key=EpisodeKey("toy/1.0.0", "train", 3, 99),
    columns={"language": ["open it"] * 5},
    metadata={
        "success": np.bool_(True),
        "episode_metadata/task": b"Open",
        "episode_metadata/id": np.int32(7),
        "a-b": 2,
    },
)


def test_language_is_relabeled_by_table_or_function(tmp_path):
    (tmp_path / "table.json").write_text('{"open it": "open the drawer"}')
    (made,) = edited(c.RelabelLanguage(str(tmp_path / "table.json"), field="language"), EPISODE)
    assert made.steps["language"].tolist() == [b"open the drawer"] * 5
    (made,) = edited(c.RelabelLanguage(function=louder, field="language", to="loud"), EPISODE)
    assert made.steps["loud"].tolist() == [b"OPEN IT 7"] * 5
    assert made.steps["language"] is EPISODE.steps["language"]
    (made,) = edited(c.RelabelLanguage({"Open": "close"}, field="episode_metadata/task"), EPISODE)
    assert made.metadata["episode_metadata/task"] == b"close"
    assert edited(c.RelabelLanguage({}, field="language", missing="drop"), EPISODE) == []
    with pytest.raises(UsageError, match="'open it' is not in the table"):
        edited(c.RelabelLanguage({}, field="language", missing="fail"), EPISODE)


def louder(text, metadata):
    return f"{text.upper()} {metadata['episode_metadata/id']}"


def test_float64_becomes_float32_and_other_fields_stay():
    episode = make_episode(4).with_columns({"action": np.full((4, 2), 0.1), "info": np.arange(4)})
    (cast,) = c.connect([c.CastFields()], [episode]).episodes
    assert cast.steps["action"].dtype == np.float32 and (cast.steps["action"] == np.float32(0.1)).all()
    assert cast.steps["info"] is episode.steps["info"]
    (cast,) = c.connect([c.CastFields("info", dtype="int8")], [episode]).episodes
    assert cast.steps["info"].dtype == np.int8 and cast.steps["action"].dtype == np.float64


@pytest.mark.parametrize(
    ("values", "dtype"), [([1e39, 0.0], "float32"), ([0.5, 0.0], "int8"), ([300, 0], "uint8"), ([-1, 0], "uint64")]
)
def test_a_cast_that_changes_a_value_rejects_the_episode(values, dtype):
    episode = make_episode(2).with_columns({"info": np.array(values)})
    with pytest.raises(BadEpisode, match="info"):
        c.connect([c.CastFields(["info"], dtype)], [episode])


def openpi(velocities: Any, min_idle: int, min_moving: int) -> list[tuple[int, int]]:
    """Finds runs of idle steps, and long enough runs between them, step by step."""
    idle = [
        i > 0 and all(abs(a - b) < 1e-3 for a, b in zip(v, velocities[i - 1], strict=True))
        for i, v in enumerate(velocities)
    ]
    keep = [True] * len(idle)
    for start, stop in runs(idle):
        if stop - start >= min_idle:
            keep[start:stop] = [False] * (stop - start)
    return [(start, stop) for start, stop in runs(keep) if stop - start >= min_moving]


def runs(flags: list[bool]) -> list[tuple[int, int]]:
    found, start = [], None
    for i, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = i
        elif not flag and start is not None:
            found.append((start, i))
            start = None
    return found


@FEW
@given(st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.0]), min_size=1, max_size=60), st.integers(1, 4), st.integers(1, 6))
def test_idle_ranges_equal_openpis(moves, min_idle, min_moving):
    velocities = np.cumsum(moves)[:, None] * np.ones(2)
    episode = with_actions(np.zeros((len(moves), 2)), velocity=velocities, mark=np.arange(len(moves)))
    expected = openpi(velocities.tolist(), min_idle, min_moving)
    piece = c.DropIdleSteps("velocity", min_idle=min_idle, min_moving=min_moving, trim=1)
    parts = [part.steps["mark"].tolist() for part in edited(piece, episode)]
    assert parts == [list(range(start, stop - 1)) for start, stop in expected if stop - 1 > start]
    (marked,) = edited(c.DropIdleSteps("velocity", 1e-3, min_idle, min_moving, trim=1, mode="mark"), episode)
    assert np.flatnonzero(marked.steps["keep"]).tolist() == [i for part in parts for i in part]


def test_ranges_of_a_file_are_kept_as_in_openpi(tmp_path):
    metadata = {"episode_metadata/recording_folderpath": b"gs://a", "episode_metadata/file_path": b"b.h5"}
    episode = make_episode(20, metadata=metadata, columns={"mark": np.arange(20)})
    content = {"keep_ranges": {"gs://a--b.h5": [[2, 9], [12, 40]]}, "metadata": {"filter_last_n_in_ranges": 3}}
    (tmp_path / "new.json").write_text(json.dumps(content))
    (tmp_path / "old.json").write_text(json.dumps({"gs://a--b.h5": [[2, 9], [12, 40]]}))
    marks = {
        name: [part.steps["mark"].tolist() for part in edited(c.KeepRanges(str(tmp_path / name)), episode)]
        for name in ("new.json", "old.json")
    }
    assert marks["new.json"] == [list(range(2, 6)), list(range(12, 17))]
    assert marks["old.json"] == [list(range(2, 9)), list(range(12, 20))]
    first, second = edited(c.KeepRanges(str(tmp_path / "old.json")), episode)
    assert first.steps["is_first"][0] and first.steps["is_last"][-1] and not first.steps["is_terminal"][-1]
    assert second.steps["is_first"][0] and second.steps["is_terminal"][-1]
    other = episode.replace(metadata={**metadata, "episode_metadata/file_path": b"c.h5"})
    assert edited(c.KeepRanges(str(tmp_path / "new.json")), other) == []
    assert edited(c.KeepRanges(str(tmp_path / "new.json"), missing="keep"), other) == [other]
    with pytest.raises(UsageError, match=r"has no episode 'gs://a--c.h5'"):
        edited(c.KeepRanges(str(tmp_path / "new.json"), missing="fail"), other)
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(UsageError, match="expected openpi's JSON format"):
        c.KeepRanges(str(tmp_path / "bad.json"))


def binarized(actions: Any) -> list[float]:
    """The loop in its docstring."""
    made, carry = [0.0] * len(actions), actions[-1]
    for i in reversed(range(len(actions))):
        if actions[i] > 0.95 or actions[i] < 0.05:
            carry = float(actions[i] > 0.95)
        made[i] = carry
    return made


def absolute(actions: Any) -> list[float]:
    """1 opens (below -0.1), -1 closes (above 0.1); the first command is a change."""
    commands = [1 if a < -0.1 else -1 if a > 0.1 else 0 for a in actions]
    state = -next((command for command in commands if command), -1)
    made = []
    for command in commands:
        state = command or state
        made.append(state / 2 + 0.5)
    return made


@FEW
@given(st.lists(st.sampled_from([-1.0, -0.05, 0.0, 0.03, 0.5, 0.97, 1.0]), min_size=1, max_size=15))
def test_grippers_equal_openvlas(gripper):
    actions = np.stack([np.full(len(gripper), 9.0), gripper], axis=1).astype(np.float32)
    episode = with_actions(actions)
    for piece, reference in (
        (c.BinarizeGripper(), binarized),
        (c.RelativeToAbsoluteGripper(), absolute),
        (c.InvertGripper(), lambda values: [1 - v for v in values]),
    ):
        (made,) = edited(piece, episode)
        np.testing.assert_array_equal(made.steps["action"][:, 0], 9)
        np.testing.assert_array_equal(made.steps["action"][:, 1], np.asarray(reference(actions[:, 1]), np.float32))
    (other,) = edited(c.InvertGripper(index=0), episode)
    np.testing.assert_array_equal(other.steps["action"][:, 0], -8)


def test_a_function_of_openvla_runs_unchanged():
    """A function in OpenVLA's and Octo's style: edits in place, uses tensors, drops steps, moves fields."""
    tf = pytest.importorskip("tensorflow")

    def bridge_like(trajectory):
        for key in trajectory:
            if key == "traj_metadata":
                continue
            if key == "observation":
                for inner in trajectory[key]:
                    trajectory[key][inner] = trajectory[key][inner][1:]
            else:
                trajectory[key] = trajectory[key][1:]
        state = trajectory["observation"]["state"]
        moved = state[1:, :2] - state[:-1, :2]
        truncated = tf.nest.map_structure(lambda x: x[:-1], trajectory)
        truncated["action"] = tf.concat([moved, trajectory["action"][:-1, -1:]], axis=1)
        truncated["observation"]["wrist"] = truncated["observation"].pop("image")
        truncated["language_instruction"] = tf.fill(tf.shape(truncated["action"])[:1], "go")
        return truncated

    png, _ = images("png")
    six = png.with_data(np.array([*png.data, *png.data], object))
    episode = make_episode(6, observation={"state": 3}, metadata={"task": b"x"}).with_columns(
        {"observation/image": six}
    )
    (made,) = edited(c.TransformTrajectory(bridge_like), episode)
    state = episode.steps["observation/state"]
    np.testing.assert_allclose(made.steps["action"][:, :2], state[2:, :2] - state[1:-1, :2])
    assert made.steps["observation/wrist"].data.tolist() == six.data[1:-1].tolist()
    assert made.steps["observation/wrist"].encoding == "png" and "observation/image" not in made.steps
    assert made.steps["language_instruction"].tolist() == [b"go"] * 4
    assert made.steps["is_first"].tolist() == [True, False, False, False]
    assert made.steps["is_last"].tolist() == [False, False, False, True]
    assert made.metadata == episode.metadata
    assert len(episode.steps["observation/state"]) == 6
