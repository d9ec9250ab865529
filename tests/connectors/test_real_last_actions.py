"""Connectors on episodes whose last action is real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds_beam
from rlds_beam import connectors
from rlds_beam.connectors.base import connect
from rlds_beam.episodes.columns import transitions, with_final_observation
from rlds_beam.episodes.episode import Episode
from rlds_beam.testing import make_episode

COLUMNS = (connectors.AddObservationsFromEpisodesToBatch(), connectors.AddColumnsFromEpisodesToTrainBatch())


def make_real(steps: int = 5, *, terminal: bool = True) -> Episode:
    columns = {"vf_preds": np.arange(steps, dtype=np.float32), "reward": np.arange(1, steps + 1, dtype=np.float32)}
    episode = make_episode(steps, terminal=terminal, columns=columns)
    discount = np.ones(steps, np.float32)
    discount[-1] = not terminal
    return episode.with_columns({"discount": discount}).replace(last_action_is_real=True)


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    "added",
    [
        COLUMNS,
        (connectors.AddNextObservationsFromEpisodesToTrainBatch(), *COLUMNS),
        (connectors.FlattenObservations(next_obs=True), *COLUMNS),
        (connectors.FrameStacking(num_frames=3, next_obs=True), *COLUMNS),
        (connectors.HistoryWindow(length=3), *COLUMNS),
        (connectors.PrevActionsPrevRewards(), *COLUMNS),
        (connectors.NStepReturns(n=2), *COLUMNS),
        (connectors.ComputeReturnsToGo(gamma=0.5), *COLUMNS),
        (*COLUMNS, connectors.GeneralAdvantageEstimation()),
        (connectors.AddOneTsToEpisodesAndTruncate(), *COLUMNS, connectors.GeneralAdvantageEstimation()),
        (*COLUMNS, connectors.ActionChunking(horizon=3)),
        (*COLUMNS, connectors.AddIdsToBatch(), connectors.AddWeightsToBatch()),
        (*COLUMNS, connectors.AddFieldsToBatch(["discount"])),
        (*COLUMNS, connectors.AddTimeDimToBatchAndZeroPad(max_seq_len=4)),
    ],
    ids=lambda added: "-".join(type(connector).__name__ for connector in added),
)
def test_columns_are_those_of_the_episode_with_a_void_step(added: tuple[Any, ...], terminal: bool) -> None:
    real = make_real(terminal=terminal)
    (found,), (expected,) = (connect(added, [e]).columns for e in (real, with_final_observation(real)))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, name)
    if not isinstance(added[0], connectors.AddOneTsToEpisodesAndTruncate):
        assert int(np.sum(found.get("loss_mask", found["rewards"] > 0))) == 5


def test_the_last_reward_counts_in_each_return() -> None:
    batch = connect([connectors.ComputeReturnsToGo(), connectors.NStepReturns(n=2, gamma=1.0)], [make_real()])
    (columns,) = batch.columns
    assert np.asarray(columns["returns_to_go"]).tolist() == [15, 14, 12, 9, 5]
    assert np.asarray(columns["rewards"]).tolist() == [3, 5, 7, 9, 5]
    assert np.asarray(columns["terminateds"]).tolist() == [False, False, False, True, True]


@pytest.mark.parametrize("every", [1, 2, 3, 7])
@pytest.mark.parametrize("steps", [1, 2, 5, 8])
def test_fewer_steps_have_the_same_return(every: int, steps: int) -> None:
    real = make_real(steps)
    (fewer,) = connect([connectors.SubsampleSteps(every=every)], [real]).episodes
    assert fewer.last_action_is_real
    assert np.sum(fewer.steps["reward"]) == np.sum(real.steps["reward"])
    assert np.prod(fewer.steps["discount"]) == 0 and np.asarray(fewer.steps["is_terminal"])[-1]


def test_lengths_count_the_last_transition() -> None:
    (cut,) = connect([connectors.TruncateEpisodes(transitions=3)], [make_real(5)]).episodes
    assert transitions(cut) == 3 and np.sum(cut.steps["reward"]) == 1 + 2 + 3
    assert connect([connectors.TruncateEpisodes(transitions=5)], [make_real(5)]).episodes[0].steps["is_terminal"][-1]
    assert connect([connectors.MinimumLength(transitions=5)], [make_real(5)]).episodes
    assert not connect([connectors.MinimumLength(transitions=6)], [make_real(5)]).episodes


def test_actions_that_are_moved_leave_a_void_last_step() -> None:
    for recorded, real in (("sar", True), ("ars", False), ("rsa", False)):
        (shifted,) = connect([connectors.ShiftAlignment(recorded)], [make_real()]).episodes
        assert shifted.last_action_is_real == real


def test_a_real_last_action_is_a_transition_of_what_a_program_writes(tmp_path: Path) -> None:
    rlds_beam.write_rlds(tmp_path / "out" / "1.0.0", [make_real(3, terminal=False), make_real(2)])
    rows = rlds_beam.open_dataset(tmp_path / "out" / "1.0.0")
    assert [rows[i]["steps/reward"].tolist() for i in range(2)] == [[1, 2, 3, 0], [1, 2, 0]]
    assert [rows[i]["steps/is_terminal"].tolist() for i in range(2)] == [[False] * 4, [False, False, True]]
    last = [rows[i]["steps/observation"][-2:] for i in range(2)]
    assert all((pair[0] == pair[1]).all() for pair in last)
