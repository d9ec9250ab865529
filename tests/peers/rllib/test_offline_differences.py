"""Differences between RLlib's offline data path and training from columns: the table of docs/how_to/rllib.md."""

from __future__ import annotations

from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pytest
import rllib_peer as peer
import rllib_training as training
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.marwil import MARWILConfig
from ray.rllib.offline.offline_prelearner import OfflinePreLearner

from rlds_beam import connectors as ours


def prelearned(config: Any, batch: dict[str, Any], modules: tuple[str, ...] = ("default_policy",)) -> dict[str, Any]:
    """Runs RLlib's OfflinePreLearner on a batch of its data."""
    spaces = dict.fromkeys(modules, (peer.OBSERVATION, peer.ACTION))
    spec = config.get_multi_rl_module_spec(spaces=spaces)
    prelearner = OfflinePreLearner(config=config, spaces=(peer.OBSERVATION, peer.ACTION), module_spec=spec)
    return {name: np.asarray(value) for name, value in prelearner(batch).items()}


def table(lesson: peer.Recorded) -> dict[str, np.ndarray]:
    """An episode as RLlib records it by default, one row per transition."""
    count = len(lesson)
    last = np.arange(count) == count - 1
    return {
        "eps_id": np.full(count, "one"),
        "obs": lesson.observations[:-1],
        "new_obs": lesson.observations[1:],
        "actions": lesson.actions,
        "rewards": lesson.rewards,
        "terminateds": last & (lesson.end == "terminated"),
        "truncateds": last & (lesson.end == "truncated"),
    }


def recorded_episodes(lessons: list[peer.Recorded]) -> dict[str, list[bytes]]:
    """Episodes as RLlib records them with whole episodes enabled."""
    return {"item": [msgpack.packb(one.theirs().get_state(), default=msgpack_numpy.encode) for one in lessons]}


def test_lambda_has_no_effect_on_tables():
    (lesson,) = training.lessons(1)

    def targets(lambda_: float) -> np.ndarray:
        config = training.configured(MARWILConfig(), gamma=0.9, vf_coeff=1.0)
        config.lambda_ = lambda_
        np.random.seed(0)
        import torch

        torch.manual_seed(0)
        made = prelearned(config, table(lesson))
        return made["default_policy/value_targets"][made["default_policy/loss_mask"]]

    assert len(targets(0.0)) == len(lesson)
    np.testing.assert_allclose(targets(0.0), targets(1.0), rtol=1e-5)
    episode = lesson.ours().with_columns({"vf_preds": lesson.values()})
    made = [
        ours.connect([ours.GeneralAdvantageEstimation(0.9, lambda_)], [episode]).columns[0]["value_targets"]
        for lambda_ in (0.0, 1.0)
    ]
    assert not np.allclose(made[0][:-1], made[1][:-1])


def test_each_row_of_a_table_is_a_separate_sequence():
    (lesson,) = training.lessons(1)
    made = prelearned(training.configured(BCConfig(), lstm=True), table(lesson))
    np.testing.assert_array_equal(made["default_policy/seq_lens"], np.ones(len(lesson)))
    assert made["default_policy/obs"].shape[:2] == (len(lesson), training.MAX_SEQ_LEN)
    assert not made["default_policy/state_in/h"].any()
    sequences = [ours.AddObservationsFromEpisodesToBatch(), ours.AddTimeDimToBatchAndZeroPad(training.MAX_SEQ_LEN)]
    (columns,) = ours.connect(sequences, [lesson.ours()]).columns
    assert len(columns["seq_lens"]) == -(-len(lesson) // training.MAX_SEQ_LEN)


def test_several_modules_cannot_be_read():
    config = training.configured(BCConfig()).multi_agent(policies={"a", "b"}, policy_mapping_fn=lambda agent, *_: "a")
    with pytest.raises(NotImplementedError, match="multi-agent"):
        OfflinePreLearner._map_to_episodes(type("", (), {"config": config})(), table(training.lessons(1)[0]))


def test_rows_of_episodes_are_drawn_with_replacement_and_lose_model_outputs():
    lessons = training.lessons(4)
    for number, lesson in enumerate(lessons):
        lesson.observations[:, 0] = np.arange(len(lesson) + 1) + 100 * number  # identifies transitions
    rows = sum(map(len, lessons))
    config = training.configured(BCConfig(), batch=rows).offline_data(input_read_episodes=True)
    made = prelearned(config, recorded_episodes(lessons))
    assert "default_policy/action_logp" not in made
    assert len(np.unique(made["default_policy/obs"][:, 0])) < rows <= len(made["default_policy/obs"])
