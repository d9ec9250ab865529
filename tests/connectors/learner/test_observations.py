"""Connectors that edit episodes or widen rows, compared with the pictures in their docstrings."""

from __future__ import annotations

import numpy as np
import pytest

from rlds_beam.connectors import (
    ActionChunking,
    AddColumnsFromEpisodesToTrainBatch,
    AddFieldsToBatch,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    AddTimeDimToBatchAndZeroPad,
    AddWeightsToBatch,
    FlattenObservations,
    FrameStacking,
    GoalRelabeling,
    HistoryWindow,
    MinimumLength,
    NextStateAsAction,
    PrevActionsPrevRewards,
    ShiftAlignment,
    StepFields,
    SubsampleSteps,
    TruncateEpisodes,
    connect,
)
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode

T, F = True, False


def episode(transitions: int, *, terminal: bool = True, position: int = 0, **fields: object) -> Episode:
    """Observations 1, 2, ...; actions 10, 11, ...; rewards 1, 2, 4, ...; discounts 1, and 0 into the terminal state."""
    count = transitions + 1
    flags = {name: np.zeros(count, bool) for name in ("is_first", "is_last", "is_terminal")}
    flags["is_first"][0] = flags["is_last"][-1] = True
    flags["is_terminal"][-1] = terminal
    steps = {
        "observation": np.arange(1.0, count + 1, dtype=np.float32)[:, None],
        "action": np.arange(10.0, 10 + count, dtype=np.float32)[:, None],
        "reward": 2.0 ** np.arange(count),
        "discount": np.where(np.arange(count) == transitions - 1, 1.0 - terminal, 1.0).astype(np.float32),
        **flags,
        **fields,
    }
    metadata = {"episode_metadata/task": b"push", "episode_metadata/size": np.float32(0.5), "name": "one"}
    return Episode(EpisodeKey("d/1.0.0", "train", 0, position), steps, metadata)


def columns(*connectors, of: Episode) -> dict:
    return dict(connect(connectors, [of]).columns[0])


def edited(connector, of: Episode) -> Episode:
    return connect([connector], [of]).episodes[0]


def test_frame_stacking():
    made = columns(FrameStacking(3, next_obs=True), of=episode(3))
    np.testing.assert_array_equal(made["obs"], [[0, 0, 1], [0, 1, 2], [1, 2, 3]])
    np.testing.assert_array_equal(made["new_obs"], [[0, 1, 2], [1, 2, 3], [2, 3, 4]])
    images = episode(2, observation=np.ones((3, 4, 5, 1), np.uint8))
    assert columns(FrameStacking(4), of=images)["obs"].shape == (2, 4, 5, 4)


def test_history_window():
    made = columns(HistoryWindow(3), AddObservationsFromEpisodesToBatch(), of=episode(3))
    np.testing.assert_array_equal(made["obs"][..., 0], [[1, 1, 1], [1, 1, 2], [1, 2, 3]])
    np.testing.assert_array_equal(made["obs_pad_mask"], [[F, F, T], [F, T, T], [T, T, T]])


@pytest.mark.parametrize(
    ("arguments", "last", "mask"),
    [
        ({}, [13, 13, 13], None),
        ({"preset": "openpi"}, [13, 13, 13], None),
        ({"preset": "octo"}, [13, 13, 13], ("action_pad_mask", [T, F, F])),
        ({"preset": "lerobot"}, [13, 13, 13], ("action_is_pad", [F, T, T])),
        ({"preset": "openvla"}, [13, 0, 0], None),
        ({"preset": "openvla", "absolute": [True]}, [13, 13, 13], None),
    ],
)
def test_action_chunking_at_the_end_of_an_episode(arguments, last, mask):
    made = columns(AddColumnsFromEpisodesToTrainBatch(), ActionChunking(3, **arguments), of=episode(4))
    np.testing.assert_array_equal(made["actions"][..., 0][:2], [[10, 11, 12], [11, 12, 13]])
    np.testing.assert_array_equal(made["actions"][3, :, 0], last)
    if mask:
        np.testing.assert_array_equal(made[mask[0]][3], mask[1])
    else:
        assert not any("pad" in name for name in made)


def test_action_chunking_that_drops_the_tail_drops_it_from_all_columns():
    made = columns(AddColumnsFromEpisodesToTrainBatch(), ActionChunking(3, preset="openvla_oft"), of=episode(4))
    np.testing.assert_array_equal(made["actions"][..., 0], [[10, 11, 12], [11, 12, 13]])
    assert {len(column) for column in made.values()} == {2}
    with pytest.raises(ValueError, match="before AddTimeDim"):
        columns(AddColumnsFromEpisodesToTrainBatch(), AddTimeDimToBatchAndZeroPad(2), ActionChunking(3), of=episode(4))


def test_flatten_observations_in_the_order_of_the_paths():
    steps = dict(episode(2).steps)
    del steps["observation"]
    steps |= {"observation/b": np.array([0, 2, 1]), "observation/a": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])}
    nested = episode(2).replace(steps=steps)
    made = columns(FlattenObservations({"b": 3}, next_obs=True), of=nested)
    np.testing.assert_array_equal(made["obs"], [[1, 2, 1, 0, 0], [3, 4, 0, 0, 1]])
    np.testing.assert_array_equal(made["new_obs"], [[3, 4, 0, 0, 1], [5, 6, 0, 1, 0]])
    assert made["obs"].dtype == np.float32
    with pytest.raises(UsageError, match="holds 0 to 2, expected 0 to 1"):
        columns(FlattenObservations({"b": 2}), of=nested)


def test_previous_actions_and_rewards():
    discrete = episode(3, action=np.array([1, 0, 1, 0]))
    made = columns(PrevActionsPrevRewards(2, 1, num_actions=2), of=discrete)
    np.testing.assert_array_equal(made["obs/prev_n_actions"], [[[0, 0], [0, 0]], [[0, 0], [0, 1]], [[0, 1], [1, 0]]])
    np.testing.assert_array_equal(made["obs/prev_n_rewards"], [[0], [1], [2]])
    np.testing.assert_array_equal(made["obs/_orig_obs"], [[1], [2], [3]])
    previous = PrevActionsPrevRewards(1, 1, num_actions=2)
    made = columns(previous, FlattenObservations(), AddObservationsFromEpisodesToBatch(), of=discrete)
    np.testing.assert_array_equal(made["obs"], [[1, 0, 0, 0], [2, 0, 1, 1], [3, 1, 0, 2]])


@pytest.mark.parametrize("late", [FrameStacking(2), HistoryWindow(2), PrevActionsPrevRewards()])
def test_connectors_that_change_observations_must_come_before_they_are_added(late):
    with pytest.raises(UsageError, match=r"obs exists already; put it before AddObservations"):
        connect([AddObservationsFromEpisodesToBatch(), late], [episode(3)])


def test_short_episodes_are_dropped_and_counted():
    assert connect([MinimumLength(4)], [episode(3)]).dropped == {"MinimumLength": 1}
    assert connect([MinimumLength(3)], [episode(3)]).dropped == {}


def test_a_truncated_episode_is_not_terminal():
    short = edited(TruncateEpisodes(2), episode(5))
    assert len(short) == 3
    np.testing.assert_array_equal(short.steps["is_last"], [F, F, T])
    assert not short.steps["is_terminal"].any()
    assert edited(TruncateEpisodes(5), episode(5)).steps["is_terminal"][-1]


@pytest.mark.parametrize(("transitions", "kept", "rewards"), [(3, [1, 3, 4], [3, 4, 8]), (4, [1, 3, 5], [3, 12, 16])])
def test_subsampling_keeps_the_last_step_and_sums_rewards(transitions, kept, rewards):
    sampled = edited(SubsampleSteps(2), episode(transitions))
    np.testing.assert_array_equal(sampled.steps["observation"][:, 0], kept)
    np.testing.assert_array_equal(sampled.steps["reward"], rewards)
    np.testing.assert_array_equal(sampled.steps["is_last"], [F, F, T])


@pytest.mark.parametrize(
    ("recorded", "actions", "rewards"),
    [("sar", [10, 11, 12], [1, 2, 4]), ("ars", [11, 12, 0], [2, 4, 0]), ("rsa", [10, 11, 12], [2, 4, 0])],
)
def test_alignments(recorded, actions, rewards):
    shifted = edited(ShiftAlignment(recorded), episode(2))
    np.testing.assert_array_equal(shifted.steps["action"][:, 0], actions)
    np.testing.assert_array_equal(shifted.steps["reward"], rewards)


@pytest.mark.parametrize(
    "connector",
    [SubsampleSteps(2), ShiftAlignment("ars"), AddOneTsToEpisodesAndTruncate()],
    ids=lambda c: type(c).__name__,
)
def test_edits_apply_to_the_configured_fields(connector):
    """Other names and nested leaves give the same arrays."""
    usual = episode(5)
    renamed = {"action": "control/joints", "reward": "score"}
    other = usual.replace(steps={renamed.get(path, path): column for path, column in usual.steps.items()})
    expected = edited(connector, usual)
    (found,) = connect([connector], [other], StepFields(actions="control", rewards="score")).episodes
    assert len(found) == len(expected)
    for path, column in expected.steps.items():
        np.testing.assert_array_equal(found.steps[renamed.get(path, path)], column)


@pytest.mark.parametrize("strategy", ["uniform", "future", "final"])
def test_goals_are_reached_later_and_are_equal_in_every_run(strategy):
    relabel = GoalRelabeling(strategy, goal="goal", gamma=0.9)
    goals = [edited(relabel, episode(200, position=1)).steps["goal"][:, 0] - 1 for _ in range(2)]
    np.testing.assert_array_equal(*goals)
    steps = np.arange(201)
    assert (goals[0][:-1] > steps[:-1]).all()
    assert goals[0].max() <= 200
    if strategy == "final":
        assert (goals[0] == 200).all()
    else:
        other = edited(relabel, episode(200, position=2)).steps["goal"][:, 0] - 1
        assert (other != goals[0]).any()


def test_the_goal_is_next_to_the_observation():
    assert edited(GoalRelabeling("final"), episode(3)).steps["goal"].shape == (4, 1)
    steps = dict(episode(3).steps)
    steps["sensors/state"] = steps.pop("observation")
    fields = StepFields(obs="sensors")
    with pytest.raises(UsageError, match="achieved=sensors is none of"):
        connect([GoalRelabeling()], [episode(3).replace(steps=steps)], fields)
    relabel = GoalRelabeling("final", achieved="sensors/state")
    (made,) = connect([relabel], [episode(3).replace(steps=steps)], fields).episodes
    np.testing.assert_array_equal(made.steps["sensors/goal"], np.full((4, 1), 4))


def test_fields_of_the_steps_and_of_the_episode():
    language = np.array([b"pick", b"place", b"", b""], object)
    of = episode(3, language_instruction=language, **{"state_out/h": np.arange(8.0).reshape(4, 2)})
    names = {"text": "language_instruction", "task": "episode_metadata/task", "state_out": "state_out", "who": "name"}
    made = connect([AddFieldsToBatch(names)], [of]).columns[0]
    assert made["text"].tolist() == [b"pick", b"place", b""]
    assert made["task"].tolist() == [b"push"] * 3
    assert made["who"].tolist() == [b"one"] * 3
    np.testing.assert_array_equal(made["state_out/h"], of.steps["state_out/h"][:3])
    both = connect([AddFieldsToBatch(["episode_metadata"]), AddTimeDimToBatchAndZeroPad(2)], [of]).columns[0]
    assert both["episode_metadata/task"].tolist() == [[b"push", b"push"], [b"push", b""]]
    np.testing.assert_array_equal(both["episode_metadata/size"], np.array([[0.5, 0.5], [0.5, 0]], np.float32))
    with pytest.raises(UsageError, match=r"no field language_instructions; did you mean language_instruction\?"):
        connect([AddFieldsToBatch(["language_instructions"])], [of])


def test_weights():
    of = episode(3, quality=np.array([0.5, 1, 2, 9]))
    for piece, expected in (
        (AddWeightsToBatch(), [1, 1, 1]),
        (AddWeightsToBatch(2, "quality"), [1, 2, 4]),
        (AddWeightsToBatch(field="episode_metadata/size"), [0.5, 0.5, 0.5]),
    ):
        (weights,) = connect([piece], [of]).columns[0].values()
        np.testing.assert_array_equal(weights, np.array(expected, np.float32))
        assert weights.dtype == np.float32
    with pytest.raises(UsageError, match="is not a number per step"):
        connect([AddWeightsToBatch(field="name")], [of])
    recorded = connect([AddWeightsToBatch(), AddColumnsFromEpisodesToTrainBatch()], [episode(2, weights=np.zeros(3))])
    np.testing.assert_array_equal(
        recorded.columns[0]["weights"], [1, 1]
    )  # the first connector that adds the column wins


POSE = ["observation/pos", "observation/width"]


def umi(steps: int):
    """An episode without actions."""
    columns = {
        "observation/pos": np.arange(steps * 3, dtype=np.float32).reshape(steps, 3),
        "observation/width": np.arange(steps, dtype=np.float32),
        "observation/count": np.arange(steps),
        "observation/text": np.array([b"x"] * steps, object),
    }
    made = make_episode(steps, columns=columns)
    return made.replace(steps={path: column for path, column in made.steps.items() if path != "action"})


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_action_is_the_next_pose(steps):
    made = edited(NextStateAsAction(POSE), umi(steps))
    pose = np.concatenate([made.steps["observation/pos"], made.steps["observation/width"][:, None]], axis=1)
    assert made.steps["action"].dtype == np.float32
    assert made.steps["action"].tolist() == [*pose[1:].tolist(), pose[-1].tolist()]
