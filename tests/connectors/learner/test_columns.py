"""Connectors that compute learner columns, compared with arrays that RLlib 2.60 computes for the same episodes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from rlds_beam.connectors import (
    AddColumnsFromEpisodesToTrainBatch,
    AddIdsToBatch,
    AddNextObservationsFromEpisodesToTrainBatch,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    AgentToModuleMapping,
    Batch,
    BatchIndividualItems,
    ComputeReturnsToGo,
    ConnectorPipeline,
    GeneralAdvantageEstimation,
    NStepReturns,
    SplitAgents,
    connect,
)
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError

T, F = True, False


def episode(first: int, transitions: int, end: str = "terminated", *, position: int = 0, **fields: object) -> Episode:
    """Observations first, first + 1, ...; actions 0, 1, ...; reward and V are the observation."""
    count = transitions + 1
    observation = np.arange(first, first + count, dtype=np.float32)[:, None]
    flags = {name: np.zeros(count, bool) for name in ("is_first", "is_last", "is_terminal")}
    flags["is_first"][0] = True
    flags["is_last"][-1] = end != "unfinished"
    flags["is_terminal"][-1] = end == "terminated"
    steps = {
        "observation": observation,
        "action": np.arange(count),
        "reward": observation[:, 0].copy(),
        "vf_preds": observation[:, 0],
        "state_out/h": observation + np.float32(0.5),
        **flags,
        **fields,
    }
    return Episode(EpisodeKey("d/1.0.0", "train", 0, position), steps)


A, B = episode(0, 5), episode(10, 3, "truncated", position=1)
DEFAULT = [AddObservationsFromEpisodesToBatch(), AddColumnsFromEpisodesToTrainBatch()]


def columns(connectors, episodes):
    """The columns of the default module; images without their feature axis."""
    batch = connect([*connectors, BatchIndividualItems()], episodes)
    return {
        name: column[..., 0] if name in ("obs", "new_obs") or name.startswith(("state", "next")) else column
        for name, column in batch.modules["default_policy"].items()
    }


def test_stateless():
    made = columns(DEFAULT, [A, B])
    np.testing.assert_array_equal(made["obs"], [0, 1, 2, 3, 4, 10, 11, 12])
    np.testing.assert_array_equal(np.flatnonzero(made["terminateds"]), [4])
    np.testing.assert_array_equal(np.flatnonzero(made["truncateds"]), [7])
    assert made.keys() == {"obs", "actions", "rewards", "terminateds", "truncateds", "vf_preds"}


def test_stateful():
    states = AddStatesFromEpisodesToBatch(initial_state={"h": [-1.0]})
    sequences = AddTimeDimToBatchAndZeroPad(max_seq_len=4)
    made = columns([*DEFAULT, AddNextObservationsFromEpisodesToTrainBatch(), sequences, states], [A, B])
    np.testing.assert_array_equal(made["obs"], [[0, 1, 2, 3], [4, 0, 0, 0], [10, 11, 12, 0]])
    np.testing.assert_array_equal(made["actions"], [[0, 1, 2, 3], [4, 0, 0, 0], [0, 1, 2, 0]])
    np.testing.assert_array_equal(np.argwhere(made["terminateds"]), [[1, 0]])
    np.testing.assert_array_equal(np.argwhere(made["truncateds"]), [[2, 2]])
    np.testing.assert_array_equal(made["seq_lens"], [4, 1, 3])
    np.testing.assert_array_equal(made["loss_mask"], [[T, T, T, T], [T, F, F, F], [T, T, T, F]])
    np.testing.assert_array_equal(made["state_in/h"], [-1, 3.5, -1])
    np.testing.assert_array_equal(made["new_obs"], [[1, 2, 3, 4], [5, 0, 0, 0], [11, 12, 13, 0]])
    np.testing.assert_array_equal(made["next_state_in/h"], [0.5, 4.5, 10.5])


def test_without_recorded_states_each_sequence_starts_with_the_initial_state():
    without = [e.replace(steps={k: v for k, v in e.steps.items() if k != "state_out/h"}) for e in (A, B)]
    made = columns(
        [
            *DEFAULT,
            AddNextObservationsFromEpisodesToTrainBatch(),
            AddTimeDimToBatchAndZeroPad(max_seq_len=4),
            AddStatesFromEpisodesToBatch({"h": [-1]}),
        ],
        without,
    )
    assert made["state_in/h"].dtype == np.float32  # also for integers in the configuration
    np.testing.assert_array_equal(made["state_in/h"], [-1, -1, -1])
    np.testing.assert_array_equal(made["next_state_in/h"], [-1, -1, -1])
    with pytest.raises(UsageError, match="so give initial_state"):
        columns([AddStatesFromEpisodesToBatch()], without)


def test_added_timestep_and_advantages():
    unfinished = episode(20, 2, "unfinished", position=2)
    gae = GeneralAdvantageEstimation(gamma=0.9, lambda_=0.5)
    made = columns([AddOneTsToEpisodesAndTruncate(), *DEFAULT, gae], [A, B, unfinished])
    np.testing.assert_array_equal(made["obs"], [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 20, 21, 22])
    np.testing.assert_array_equal(np.flatnonzero(~made["loss_mask"]), [5, 9, 12])
    np.testing.assert_array_equal(np.flatnonzero(made["terminateds"]), [4])
    np.testing.assert_array_equal(np.flatnonzero(made["truncateds"]), [8, 11])
    targets = [2.5848, 4.744, 6.32, 6.6, 4, 27.12925, 27.065, 23.7, 47.81, 40.8]
    np.testing.assert_allclose(made["value_targets"][made["loss_mask"]], targets, rtol=1e-6)
    np.testing.assert_array_equal(made["value_targets"][~made["loss_mask"]], 0)
    sequences = columns([AddOneTsToEpisodesAndTruncate(), *DEFAULT, AddTimeDimToBatchAndZeroPad(4)], [A, B, unfinished])
    np.testing.assert_array_equal(sequences["loss_mask"], [[T, T, T, T], [T, F, F, F], [T, T, T, F], [T, T, F, F]])
    np.testing.assert_array_equal(sequences["seq_lens"], [4, 1, 3, 2])


def test_advantages_are_the_recursion_over_the_whole_episode():
    rng = np.random.default_rng(3)
    long = episode(0, 57, "truncated", reward=rng.normal(size=58), vf_preds=rng.normal(size=58))
    gamma, lambda_ = 0.97, 0.9
    made = columns([GeneralAdvantageEstimation(gamma, lambda_)], [long])
    reward, value = long.steps["reward"], long.steps["vf_preds"]
    expected, following = np.zeros(57), 0.0
    for t in reversed(range(57)):
        following = reward[t] + gamma * value[t + 1] - value[t] + gamma * lambda_ * following
        expected[t] = following
    np.testing.assert_allclose(made["advantages"], expected, rtol=1e-5)
    np.testing.assert_allclose(made["value_targets"], expected + value[:-1], rtol=1e-5, atol=1e-6)


def test_returns_to_go():
    np.testing.assert_allclose(columns([ComputeReturnsToGo(0.5)], [A])["returns_to_go"], [1.625, 3.25, 4.5, 5, 4])


def test_n_step_returns_stop_at_the_end():
    made = columns([NStepReturns(n=2, gamma=0.5), *DEFAULT], [A, B])
    np.testing.assert_array_equal(made["rewards"], [0.5, 2, 3.5, 5, 4, 15.5, 17, 12])
    np.testing.assert_array_equal(made["new_obs"], [2, 3, 4, 5, 5, 12, 13, 13])
    np.testing.assert_array_equal(made["n_step"], [2, 2, 2, 2, 1, 2, 2, 1])
    np.testing.assert_array_equal(np.flatnonzero(made["terminateds"]), [3, 4])
    np.testing.assert_array_equal(np.flatnonzero(made["truncateds"]), [6, 7])


def test_burn_in_overlap_and_padding_on_the_left():
    made = columns([AddObservationsFromEpisodesToBatch(), AddTimeDimToBatchAndZeroPad(4, burn_in=2)], [A])
    np.testing.assert_array_equal(made["obs"], [[0, 1, 2, 3], [2, 3, 4, 0]])
    np.testing.assert_array_equal(made["loss_mask"], [[T, T, T, T], [F, F, T, F]])
    np.testing.assert_array_equal(made["seq_lens"], [4, 3])
    made = columns([AddObservationsFromEpisodesToBatch(), AddTimeDimToBatchAndZeroPad(4, burn_in=2, pad="left")], [A])
    np.testing.assert_array_equal(made["obs"], [[0, 1, 2, 3], [0, 2, 3, 4]])
    np.testing.assert_array_equal(made["loss_mask"], [[T, T, T, T], [F, F, F, T]])
    made = columns(
        [AddObservationsFromEpisodesToBatch(), AddTimeDimToBatchAndZeroPad(3, stride=1, tail="drop")], [A, B]
    )
    np.testing.assert_array_equal(made["obs"], [[0, 1, 2], [1, 2, 3], [2, 3, 4], [10, 11, 12]])
    assert made["loss_mask"].all()


def test_too_short_episodes_have_no_rows():
    short = episode(0, 2)
    pieces = [*DEFAULT, AddTimeDimToBatchAndZeroPad(3, tail="drop"), AddStatesFromEpisodesToBatch()]
    assert columns(pieces, [short])["obs"].shape == (0, 3)
    nothing = episode(0, 0)
    made = columns([*DEFAULT, AddTimeDimToBatchAndZeroPad(3), AddStatesFromEpisodesToBatch()], [nothing, short])
    np.testing.assert_array_equal(made["obs"], [[0, 1, 0]])
    np.testing.assert_array_equal(made["seq_lens"], [2])


def test_agents_enter_late_leave_early_and_learn_as_modules_in_a_fixed_order():
    count = 6
    present = np.array([F, T, T, T, F, F])
    record = episode(0, 5)
    steps = {name: record.steps[name] for name in ("is_first", "is_last", "is_terminal")}
    for i, agent in enumerate(("left", "right")):
        steps |= {
            f"observation/{agent}": np.arange(count)[:, None] + 100 * i,
            f"action/{agent}": np.arange(count),
            f"reward/{agent}": np.ones(count),
        }
    record = record.replace(steps={**steps, "present/right": present})
    mapping = {
        agent: {"observation": f"observation/{agent}", "action": f"action/{agent}", "reward": f"reward/{agent}"}
        for agent in ("right", "left")
    }
    mapping["right"]["present"] = "present/right"
    split = SplitAgents(mapping)
    modules = AgentToModuleMapping({"left": "p1", "right": "p0"})
    batch = connect([split, modules, *DEFAULT, AddIdsToBatch(), BatchIndividualItems()], [record])
    assert list(batch.modules) == ["p0", "p1"]
    right, left = batch.modules["p0"], batch.modules["p1"]
    np.testing.assert_array_equal(right["obs"][:, 0], [101, 102])
    np.testing.assert_array_equal(right["terminateds"], [F, T])
    np.testing.assert_array_equal(left["obs"][:, 0], [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(left["terminateds"], [F, F, F, F, T])
    assert set(right["agent_id"]) == {b"right"}
    assert set(left["module_id"]) == {b"p1"}


def test_only_recurrent_modules_learn_from_sequences():
    episodes = [A.replace(metadata={"module_id": "lstm"}), B.replace(metadata={"module_id": "mlp"})]
    sequences = [AddTimeDimToBatchAndZeroPad(4, modules=["lstm"]), AddStatesFromEpisodesToBatch()]
    returns = ComputeReturnsToGo()
    modules = connect([*DEFAULT, *sequences, returns, BatchIndividualItems()], episodes).modules
    assert modules["lstm"]["obs"].shape == (2, 4, 1) and modules["lstm"]["returns_to_go"].shape == (2, 4)
    assert modules["mlp"]["obs"].shape == (3, 1) and modules["mlp"]["returns_to_go"].shape == (3,)
    assert modules["lstm"].keys() - modules["mlp"].keys() == {"seq_lens", "loss_mask", "state_in/h"}


def test_pipelines_are_edited_by_name_and_class_and_can_be_nested():
    inner = ConnectorPipeline([AddColumnsFromEpisodesToTrainBatch()])
    pipeline = ConnectorPipeline([inner, BatchIndividualItems()])
    pipeline.prepend(AddObservationsFromEpisodesToBatch())
    pipeline.insert_before(BatchIndividualItems, AddTimeDimToBatchAndZeroPad(4))
    pipeline.insert_after("AddTimeDimToBatchAndZeroPad", AddStatesFromEpisodesToBatch({"h": [0.0]}))
    made = pickle.loads(pickle.dumps(pipeline))(Batch((A, B))).modules["default_policy"]
    assert made["obs"].shape == (3, 4, 1)
    assert {"actions", "state_in/h"} <= made.keys()
    pipeline.remove(AddStatesFromEpisodesToBatch)
    assert len(pipeline) == 4
    with pytest.raises(UsageError, match=r"did you mean BatchIndividualItems\?"):
        pipeline.remove("BatchIndividualItem")
