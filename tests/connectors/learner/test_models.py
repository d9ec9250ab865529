"""States, values, and log-probabilities that a model computes for recorded episodes."""

from __future__ import annotations

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.ml.inference.base import RunInference
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.connectors import (
    AddModelOutputs,
    AddObservationsFromEpisodesToBatch,
    AddOneTsToEpisodesAndTruncate,
    AddStatesFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    GeneralAdvantageEstimation,
    StepFields,
    connect,
)
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.transforms.connecting import EpisodeModelHandler


def episode(length: int, position: int = 0, **fields: object) -> Episode:
    rng = np.random.default_rng(position)
    steps = {
        "observation": rng.normal(size=(length, 2)).astype(np.float32),
        "action": rng.normal(size=(length, 1)).astype(np.float32),
        "reward": rng.normal(size=length).astype(np.float32),
        "is_first": np.arange(length) == 0,
        "is_last": np.arange(length) == length - 1,
        "is_terminal": np.zeros(length, bool),
        **fields,
    }
    return Episode(EpisodeKey("d/1.0.0", "train", 0, position), steps)


RECURRENT = AddModelOutputs("own_models:recurrent", initial_state={"h": [1.0, -1.0]})


def states(of: Episode) -> np.ndarray:
    """The recurrent model's states from a plain loop: before the first step, and after each step."""
    made = [np.array([1, -1], np.float32)]
    for observation in of.steps["observation"]:
        made.append(np.tanh(made[-1] / 2 + observation))
    return np.stack(made)


@pytest.mark.parametrize("batch_size", [1, 3, 1000])
def test_values_and_log_probabilities(batch_size):
    episodes = [episode(7, 0), episode(4, 1, vf_preds=np.full(4, 9.0))]
    made = connect([AddModelOutputs("own_models:values", batch_size=batch_size)], episodes).episodes
    for before, after in zip(episodes, made, strict=True):
        expected = before.steps["observation"].sum(axis=1)
        np.testing.assert_array_equal(after.steps["vf_preds"], expected)  # also for the last observation
        np.testing.assert_array_equal(after.steps["action_logp"], -(before.steps["action"][:, 0] ** 2))
        recorded = before.with_columns({"vf_preds": expected})
        pieces = [AddOneTsToEpisodesAndTruncate(), GeneralAdvantageEstimation(0.9, 0.5)]
        np.testing.assert_array_equal(
            connect(pieces, [after]).columns[0]["advantages"], connect(pieces, [recorded]).columns[0]["advantages"]
        )


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_the_state_is_carried_from_step_to_step_in_each_episode(lengths):
    episodes = [episode(length, i) for i, length in enumerate(lengths)]
    for before, after in zip(episodes, connect([RECURRENT], episodes).episodes, strict=True):
        expected = states(before)
        np.testing.assert_allclose(after.steps["state_in/h"], expected[:-1], rtol=1e-6)
        np.testing.assert_allclose(after.steps["state_out/h"], expected[1:], rtol=1e-6)
        np.testing.assert_allclose(after.steps["vf_preds"], expected[1:].sum(axis=1), rtol=1e-5, atol=1e-6)
        assert after.steps["state_in/h"].dtype == np.float32
        alone = connect([RECURRENT], [before]).episodes[0]
        for path, column in after.steps.items():
            np.testing.assert_array_equal(column, alone.steps[path])


def test_sequences_start_with_computed_states_not_recorded_ones():
    stale = {"state_in/h": np.full((8, 2), 7.0), "state_out/h": np.full((8, 2), 7.0)}
    pieces = [
        RECURRENT,
        AddObservationsFromEpisodesToBatch(),
        AddTimeDimToBatchAndZeroPad(3),
        AddStatesFromEpisodesToBatch(),
    ]
    columns = connect(pieces, [episode(8, **stale)]).columns[0]
    np.testing.assert_allclose(columns["state_in/h"], states(episode(8))[[0, 3, 6]], rtol=1e-6)
    renamed = connect([RECURRENT], [episode(8)], StepFields(state_out="memory/after", state_in="memory/before"))
    assert {"memory/after/h", "memory/before/h"} <= renamed.episodes[0].steps.keys()


def test_episodes_of_other_modules_do_not_change():
    episodes = [episode(3, i).replace(metadata={"module_id": name}) for i, name in enumerate("pq")]
    made = connect([AddModelOutputs("own_models:values", modules=["q"])], episodes).episodes
    assert made[0] is episodes[0]
    assert "vf_preds" in made[1].steps


def test_run_inference_returns_the_same_episodes():
    episodes = [episode(3 + i, i) for i in range(6)]
    expected = {e.key: connect([RECURRENT], [e]).episodes[0] for e in episodes}

    def same(found):
        assert len(found) == len(expected)
        for one in found:
            for path, column in expected[one.key].steps.items():
                np.testing.assert_array_equal(one.steps[path], column)

    with TestPipeline("FnApiRunner") as pipeline:
        made = pipeline | beam.Create(episodes) | RunInference(EpisodeModelHandler(RECURRENT, episodes=(4, 4)))
        assert_that(made, same)
