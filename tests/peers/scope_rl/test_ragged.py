"""SCOPE-RL's estimators on episodes of unequal lengths equal direct computations over the recorded steps."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export
from recorded_environments import q_function, walk
from scope_rl.ope import CumulativeDistributionOPE, OffPolicyEvaluation, continuous, discrete

from rlds_beam.drop_in.scope_rl import SyntheticDataset
from rlds_beam.recording import EpsilonGreedyHead, mask_padding
from rlds_beam.testing import make_episode, write_dataset

pytestmark = pytest.mark.filterwarnings("ignore")

ACTIONS, GAMMA = 3, 0.9
BANDWIDTH = 0.7
LENGTHS = (1, 4, 7, 3, 7, 2, 5)


def episodes(*, of_vectors: bool) -> list[Any]:
    made = []
    for seed, length in enumerate(LENGTHS):
        rng = np.random.default_rng(seed)
        steps = length + 1
        actions = rng.normal(size=(steps, 2)) if of_vectors else rng.integers(0, ACTIONS, steps)
        columns = {"action": actions, "propensity": rng.uniform(0.2, 1, steps), "reward": rng.normal(size=steps) + 1}
        made.append(make_episode(steps, seed=seed, columns=columns, terminal=seed % 2 == 0))
    return made


def exported(directory: Path, *, of_vectors: bool) -> dict[str, Any]:
    data = write_dataset(directory / "data", episodes(of_vectors=of_vectors))
    assert export(data, directory / "out", "scope_rl").items_written == len(LENGTHS)
    (path,) = (directory / "out").glob("*.pickle")
    logged: dict[str, Any] = pickle.loads(path.read_bytes())
    assert (logged["mask"] == 0).sum() == len(LENGTHS) * max(LENGTHS) - sum(LENGTHS)
    return logged


def discrete_inputs(logged: dict[str, Any], dist: np.ndarray | None = None) -> dict[str, Any]:
    """Inputs for a random policy with random predictions, also in padded rows."""
    rng, rows = np.random.default_rng(99), logged["size"]
    dist = rng.dirichlet(np.ones(ACTIONS), rows) if dist is None else dist
    q = rng.normal(size=(rows, ACTIONS))
    return {
        "evaluation_policy_action": None,
        "evaluation_policy_action_dist": dist,
        "state_action_value_prediction": q,
        "initial_state_value_prediction": (q * dist).sum(axis=1)[:: logged["step_per_trajectory"]],
        "state_action_marginal_importance_weight": rng.uniform(0.5, 2, rows),
        "state_marginal_importance_weight": rng.uniform(0.5, 2, rows),
        "on_policy_policy_value": None,
        "gamma": GAMMA,
    }


def recorded(logged: dict[str, Any], values: np.ndarray) -> list[np.ndarray]:
    """The recorded rows of each episode, without padding."""
    rows = logged["mask"].reshape(-1, logged["step_per_trajectory"]) == 1
    by_episode = np.asarray(values).reshape(*rows.shape, *np.shape(values)[1:])
    return [one[mask] for one, mask in zip(by_episode, rows, strict=True)]


def direct(rewards: list[np.ndarray], ratios: list[np.ndarray], q: list[np.ndarray], v: list[np.ndarray]) -> dict:
    """Computes the estimators by definition over lists of episodes; the weight of an ended episode stays constant."""
    longest = max(map(len, rewards))
    products = [np.cumprod(one) for one in ratios]
    steps = np.mean([np.pad(one, (0, longest - len(one)), mode="edge") for one in products], axis=0)
    whole = np.mean([one[-1] for one in products])

    def mean(value: Any) -> float:
        return float(np.mean([np.sum(GAMMA ** np.arange(len(r)) * value(i)) for i, r in enumerate(rewards)]))

    def doubly_robust(weights: list[np.ndarray]) -> float:
        before = [np.append(1, one[:-1]) for one in weights]
        return mean(lambda i: weights[i] * (rewards[i] - q[i]) + before[i] * v[i])

    normalized = [one / steps[: len(one)] for one in products]
    return {
        "dm": float(np.mean([one[0] for one in v])),
        "tis": mean(lambda i: products[i][-1] * rewards[i]),
        "pdis": mean(lambda i: products[i] * rewards[i]),
        "dr": doubly_robust(products),
        "sntis": mean(lambda i: products[i][-1] / whole * rewards[i]),
        "snpdis": mean(lambda i: normalized[i] * rewards[i]),
        "sndr": doubly_robust(normalized),
    }


BASIC = (
    "DirectMethod",
    "TrajectoryWiseImportanceSampling",
    "PerDecisionImportanceSampling",
    "DoublyRobust",
    "SelfNormalizedTIS",
    "SelfNormalizedPDIS",
    "SelfNormalizedDR",
)


def estimators(module: Any, names: tuple[str, ...]) -> list[Any]:
    return [getattr(module, name)() for name in names]


def test_estimates_of_discrete_actions(tmp_path):
    logged = exported(tmp_path, of_vectors=False)
    inputs = discrete_inputs(logged)
    marginal = ("StateMarginalIS", "StateActionMarginalIS", "DoubleReinforcementLearning")
    every = estimators(discrete, (*BASIC, *marginal))

    def estimate(dataset: dict[str, Any], given: dict[str, Any]) -> dict[str, float]:
        ope = OffPolicyEvaluation(logged_dataset=dataset, ope_estimators=every, n_step_pdis=1)
        found: dict[str, float] = ope.estimate_policy_value({"p": given})["p"]
        return found

    masked, of_masked = mask_padding(logged, {"p": inputs})
    found, unmasked = estimate(masked, of_masked["p"]), estimate(logged, inputs)
    chosen = inputs["evaluation_policy_action_dist"][np.arange(logged["size"]), logged["action"]]
    q = inputs["state_action_value_prediction"]
    rewards = recorded(logged, logged["reward"])
    values = (
        chosen / logged["pscore"],
        q[np.arange(logged["size"]), logged["action"]],
        (q * inputs["evaluation_policy_action_dist"]).sum(axis=1),
    )
    ratios, q_taken, v = (recorded(logged, one) for one in values)
    expected = direct(rewards, ratios, q_taken, v)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
    assert abs(unmasked["tis"] - expected["tis"]) > 1e-2

    of_state, of_action = (
        recorded(logged, inputs[f"{name}_marginal_importance_weight"]) for name in ("state", "state_action")
    )
    discounts = [GAMMA ** np.arange(len(one)) for one in rewards]

    def marginal_is(
        weights: list[np.ndarray],
    ) -> float:  # `n_step_pdis=1`: the weight of the step before, and one ratio
        every = zip(discounts, weights, ratios, rewards, strict=True)
        return float(np.mean([np.sum(d * np.append(1, w[:-1]) * x * r) for d, w, x, r in every]))

    parts = zip(rewards, of_action, q_taken, v, strict=True)
    drl = np.mean([np.sum(w * (r - a) + np.append(1, w[:-1]) * s) for r, w, a, s in parts])  # SCOPE-RL: no discount
    assert found["sm_is"] == pytest.approx(marginal_is(of_state))
    assert found["sam_is"] == pytest.approx(marginal_is(of_action))
    assert found["drl"] == pytest.approx(drl)


def test_the_behavior_policy_has_the_value_that_was_recorded(tmp_path):
    """Every estimator returns the mean return, for an export and for `SyntheticDataset`."""
    recording = SyntheticDataset(walk(), action_meaning=np.array([-1.0, 0.0, 1.0]))
    policy = EpsilonGreedyHead(q_function, n_actions=3, epsilon=0.9, name="greedy", random_state=12345)
    padded = recording.obtain_episodes(policy, n_trajectories=30, random_state=12345).padded()
    for logged in (exported(tmp_path, of_vectors=False), padded):
        assert (logged["mask"] == 0).any()
        rows, actions = np.arange(logged["size"]), logged["action"]
        taken = np.where(logged["mask"] == 1, logged["pscore"], 0.4)
        dist = np.repeat((1 - taken)[:, None] / (ACTIONS - 1), ACTIONS, axis=1)
        dist[rows, actions] = taken
        masked, inputs = mask_padding(logged, {"p": {**discrete_inputs(logged, dist), "gamma": 1.0}})
        every = estimators(discrete, tuple(name for name in BASIC if "I" in name or "PDIS" in name))
        ope = OffPolicyEvaluation(logged_dataset=masked, ope_estimators=every)
        found = ope.estimate_policy_value(inputs)["p"]
        expected = np.mean([one.sum() for one in recorded(logged, logged["reward"])])
        assert {name: found[name] for name in ("tis", "pdis", "sntis", "snpdis")} == pytest.approx(
            dict.fromkeys(("tis", "pdis", "sntis", "snpdis"), expected)
        )

        def total_weight(dataset: Any, given: Any) -> float:
            estimator = discrete.CumulativeDistributionTIS()
            ope = CumulativeDistributionOPE(logged_dataset=dataset, ope_estimators=[estimator])
            return float(ope.estimate_cumulative_distribution_function(given)["p"]["cdf_tis"][-1])

        assert total_weight(masked, inputs) == pytest.approx(1)
        assert total_weight(logged, {"p": discrete_inputs(logged, dist)}) < 0.9


def test_estimates_of_continuous_actions(tmp_path):
    logged = exported(tmp_path, of_vectors=True)
    rng, rows = np.random.default_rng(99), logged["size"]
    inputs = {
        "evaluation_policy_action": logged["action"] + 0.3 * rng.normal(size=logged["action"].shape),
        "evaluation_policy_action_dist": None,
        "state_action_value_prediction": rng.normal(size=(rows, 2)),
        "initial_state_value_prediction": None,
        "on_policy_policy_value": None,
        "gamma": GAMMA,
    }
    masked, of_masked = mask_padding(logged, {"p": inputs}, bandwidth=BANDWIDTH)
    distance = np.square(inputs["evaluation_policy_action"] - logged["action"]).sum(axis=1)
    kernel = np.exp(-distance / (2 * BANDWIDTH**2)) / np.sqrt(2 * np.pi * BANDWIDTH**2)
    q = inputs["state_action_value_prediction"]
    values = (logged["reward"], kernel / logged["pscore"][:, 0], q[:, 0], q[:, 1])
    expected = direct(*(recorded(logged, one) for one in values))
    for one in estimators(continuous, BASIC):
        found = one.estimate_policy_value(
            step_per_trajectory=logged["step_per_trajectory"],
            bandwidth=BANDWIDTH,
            **{name: masked[name] for name in ("action", "reward", "pscore", "done")},
            **of_masked["p"],
        )
        assert found == pytest.approx(expected[one.estimator_name], rel=1e-6), one.estimator_name
    ope = OffPolicyEvaluation(logged_dataset=masked, ope_estimators=estimators(continuous, BASIC), bandwidth=BANDWIDTH)
    whole = ope.estimate_policy_value(of_masked)["p"]
    assert whole["dm"] == pytest.approx(expected["dm"])
    assert np.isfinite(whole["tis"])
