"""Cleaning connectors, compared step by step with the scripts they are named after, on generated data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from edits import FEW, edited, with_actions
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


def test_casts_to_other_kinds_are_refused():
    with pytest.raises(UsageError, match="dtype=bool, expected one of float16, float32"):
        c.CastFields(dtype="bool")
