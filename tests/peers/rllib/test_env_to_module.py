"""The input of a model that acts, and the conversion of its output to actions, compared with RLlib."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import rllib_peer as peer
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.rllib.connectors import common, module_to_env
from ray.rllib.core.distribution.torch.torch_distribution import (
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiCategorical,
    TorchSquashedGaussian,
)

from rlds_beam.connectors import (
    Batch,
    GetActions,
    NormalizeAndClipActions,
    env_to_module_pipeline,
    module_to_env_pipeline,
)
from rlds_beam.episodes.columns import flatten

FEW = settings(peer.QUICK, max_examples=30)
BOUNDS = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


def their_input(running: list[tuple[peer.Recorded, int]], module: Any, shared: dict, episodes: list) -> dict:
    pieces = [
        common.AddObservationsFromEpisodesToBatch(),
        common.AddTimeDimToBatchAndZeroPad(),
        common.AddStatesFromEpisodesToBatch(),
        common.BatchIndividualItems(multi_agent=False),
        common.NumpyToTensor(),
    ]
    batch: dict = {}
    for piece in pieces:
        batch = piece(rl_module=module, batch=batch, episodes=episodes, shared_data=shared, explore=False)
    return batch


def our_input(running: list[tuple[peer.Recorded, int]], recurrent: bool) -> Batch:
    pipeline = env_to_module_pipeline(recurrent=recurrent, initial_state=peer.INITIAL_STATE)
    return pipeline(Batch(tuple(r.ours().slice(0, t + 1) for r, t in running), running=True))


@st.composite
def running_episodes(draw: Any) -> list[tuple[peer.Recorded, int]]:
    nested = draw(st.booleans())
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    made = [peer.recorded(n, nested=nested, number=i) for i, n in enumerate(lengths)]
    return [(one, draw(st.integers(0, len(one) - 1))) for one in made]


@given(running_episodes(), st.booleans())
@FEW
def test_the_input_of_a_model(running, recurrent):
    module = peer.module(peer.Recurrent if recurrent else peer.Stateless)["default_policy"]
    episodes = [one.theirs(as_numpy=False, stop=t) for one, t in running]
    batch = their_input(running, module, {}, episodes)
    theirs = {path: leaf.numpy() for name, value in batch.items() for path, leaf in flatten(value, name).items()}
    made = our_input(running, recurrent).modules["default_policy"]
    # Sequence lengths (all 1) are for learners; RLlib omits them here.
    peer.assert_equal({name: column for name, column in made.items() if name in theirs}, theirs)
    assert made.keys() - theirs.keys() <= {"seq_lens", "loss_mask"}


DISTRIBUTIONS: list[tuple[GetActions, Any, int]] = [
    (GetActions("categorical"), TorchCategorical, 4),
    (GetActions("multi_categorical", sizes=(3, 2)), TorchMultiCategorical.get_partial_dist_cls(input_lens=[3, 2]), 5),
    (GetActions("diagonal_gaussian"), TorchDiagGaussian, 4),
    (GetActions("squashed_gaussian"), TorchSquashedGaussian, 4),
]


@pytest.mark.parametrize(("ours", "theirs", "width"), DISTRIBUTIONS, ids=lambda v: getattr(v, "distribution", ""))
def test_actions_and_their_probabilities(ours, theirs, width):
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((20, width)).astype(np.float32)
    running = tuple(peer.recorded(2, number=i).ours().slice(0, 1) for i in range(len(inputs)))
    batch = Batch(running, running=True, modules={"default_policy": {"action_dist_inputs": inputs}})
    made = ours(batch).modules["default_policy"]
    distribution = theirs.from_logits(torch.from_numpy(inputs))
    logp = distribution.logp(torch.from_numpy(np.array(made["actions"]))).numpy()
    # Close to the bounds, RLlib cannot invert tanh.
    told = np.abs(made["actions"]).reshape(len(inputs), -1).max(axis=1) < 0.99
    told |= ours.distribution != "squashed_gaussian"
    assert told.sum() > 10
    np.testing.assert_allclose(made["action_logp"][told], logp[told], rtol=1e-3, atol=2e-4)
    likely = GetActions(ours.distribution, sizes=ours.sizes, explore=False)(batch).modules["default_policy"]["actions"]
    best = distribution.to_deterministic().sample().numpy()
    if ours.distribution == "squashed_gaussian":  # RLlib returns the mean before tanh, which is out of bounds
        best = np.tanh(best)
    np.testing.assert_allclose(likely, best, rtol=1e-5, atol=1e-6)


class Deterministic(peer.Recurrent):
    def get_inference_action_dist_cls(self) -> Any:
        return TorchDiagGaussian


class DeterministicStateless(peer.Stateless):
    def get_inference_action_dist_cls(self) -> Any:
        return TorchDiagGaussian


@pytest.mark.parametrize(("normalize", "clip"), [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("recurrent", [False, True])
def test_the_actions_that_environments_get(normalize, clip, recurrent):
    running = [(peer.recorded(3, number=i), i) for i in range(3)]
    module = peer.module(Deterministic if recurrent else DeterministicStateless)["default_policy"]
    shared: dict = {}
    episodes = [one.theirs(as_numpy=False, stop=t) for one, t in running]
    their_input(running, module, shared, episodes)
    inputs = np.random.default_rng(0).standard_normal((3, 1, 4) if recurrent else (3, 4)).astype(np.float32) * 2
    state = {"h": np.arange(6, dtype=np.float32).reshape(3, 2)} if recurrent else {}
    for_env = module_to_env.NormalizeAndClipActions(
        peer.OBSERVATION, BOUNDS, normalize_actions=normalize, clip_actions=clip
    )
    batch: Any = {"action_dist_inputs": torch.from_numpy(inputs)}
    if recurrent:
        batch["state_out"] = {"h": torch.from_numpy(state["h"])}
    for piece in (
        module_to_env.GetActions(),
        common.TensorToNumpy(),
        module_to_env.UnBatchToIndividualItems(),
        module_to_env.RemoveSingleTsTimeRankFromBatch(),
        for_env,
        module_to_env.ListifyDataForVectorEnv(),
    ):
        batch = piece(rl_module=module, batch=batch, episodes=episodes, shared_data=shared, explore=False)
    pipeline = module_to_env_pipeline(
        GetActions("diagonal_gaussian", explore=False),
        NormalizeAndClipActions(BOUNDS.low.tolist(), BOUNDS.high.tolist(), normalize, clip),
    )
    outputs = {"action_dist_inputs": inputs, **flatten(state, "state_out")}
    vector = pipeline(our_input(running, recurrent).replace(modules={"default_policy": outputs})).vector
    for name in {"actions", "actions_for_env"} & batch.keys():
        np.testing.assert_allclose(np.stack(batch[name]), vector[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert ("actions_for_env" in batch) == ("actions_for_env" in vector) == (normalize or clip)
    if recurrent:
        np.testing.assert_array_equal(np.stack([one["h"] for one in batch["state_out"]]), vector["state_out"]["h"])
