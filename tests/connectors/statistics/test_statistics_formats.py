"""The files of `rlds-beam stats --format`, compared with what each project's loader reads."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rlds_beam.connectors import Normalize, connect
from rlds_beam.connectors.statistics.dataset_statistics import DatasetStatistics
from rlds_beam.connectors.statistics.statistics_formats import statistics_in
from rlds_beam.testing import make_episode


@pytest.fixture(scope="module")
def episodes():
    made = [make_episode(5 + i, seed=i, observation={"state": 4}, action=3) for i in range(6)]
    for episode in made:
        episode.steps["action"][:, 2] = 0.25  # an unused dimension
    return made


@pytest.fixture(scope="module")
def own(episodes) -> dict[str, Any]:
    return {"dataset": "toy/1.0.0", **DatasetStatistics.of(episodes).to_json()}


def load(format: str, own: dict[str, Any], **fields: str) -> Any:
    """The parsed content of the file."""
    return json.loads(json.dumps(statistics_in(format, own, **fields), allow_nan=False))


def vectors(content: dict[str, Any], names: set[str], length: int) -> None:
    """Reads statistics like Octo's and OpenVLA's data loaders: arrays of equal length with these names."""
    assert content.keys() == names
    for value in content.values():
        assert np.array(value).shape == (length,)
        assert np.array(value).dtype == np.float64


@pytest.mark.parametrize(("format", "low", "high"), [("openvla_dataset", "q01", "q99"), ("octo", "p01", "p99")])
def test_data_loaders_of_openvla_and_octo(own, episodes, format, low, high):
    """A flat mapping with which they normalize, as `Normalize` does."""
    content = load(format, own, proprio="observation/state")
    assert content.keys() == {"action", "proprio", "num_transitions", "num_trajectories"}
    names = {"mean", "std", "min", "max", low, high}
    vectors(content["action"], names, 3)
    vectors(content["proprio"], names, 4)
    assert (content["num_transitions"], content["num_trajectories"]) == (own["transitions"], len(episodes))

    action = {name: np.array(value) for name, value in content["action"].items()}
    x = episodes[0].steps["action"]
    bounds = np.clip(2 * (x - action[low]) / (action[high] - action[low] + 1e-8) - 1, -1, 1)
    if format == "openvla_dataset":
        bounds = np.where(action["min"] == action["max"], 0, bounds)
    normalize = Normalize(["action"], statistics=own, constant="zero" if format == "openvla_dataset" else "low")
    np.testing.assert_allclose(connect([normalize], episodes[:1]).episodes[0].steps["action"], bounds, atol=1e-6)
    normal = (x - action["mean"]) / (action["std"] + 1e-8)
    made = connect([Normalize(["action"], "normal", statistics=own)], episodes[:1]).episodes[0].steps["action"]
    np.testing.assert_allclose(made[:, :2], normal[:, :2], rtol=1e-5, atol=1e-6)


def test_models_of_openvla(own):
    """A mapping by dataset; a model unnormalizes actions with q01, q99, and a mask of the action's dimensions."""
    content = load("openvla", own, proprio="observation/state")
    assert list(content) == ["toy"]
    stats = content["toy"]["action"]
    mask = stats.pop("mask")
    assert mask == [True, True, True]
    # `predict_action` of prismatic/extern/hf/modeling_prismatic.py; training has 0 for a dimension with one value.
    low, high = np.array(stats["q01"]), np.array(stats["q99"])
    unnormalized = np.where(mask, 0.5 * (np.zeros(3) + 1) * (high - low) + low, np.zeros(3))
    assert unnormalized[2] == 0.25
    vectors(stats, {"mean", "std", "min", "max", "q01", "q99"}, 3)
    assert len(content["toy"]["proprio"]["q01"]) == 4
    without = load("openvla", own)["toy"]["proprio"]  # zeros in the shape of the action, as in their loader
    assert not any(np.any(value) for value in without.values())
    assert {len(value) for value in without.values()} == {3}


def test_openpi(own):
    """`norm_stats` of `state` and `actions`, each with exactly these four."""
    content = load("openpi", own, proprio="observation/state")
    assert content.keys() == {"norm_stats"}
    assert content["norm_stats"].keys() == {"state", "actions"}
    vectors(content["norm_stats"]["state"], {"mean", "std", "q01", "q99"}, 4)
    vectors(content["norm_stats"]["actions"], {"mean", "std", "q01", "q99"}, 3)


def test_lerobot(own):
    """A mapping by feature, whose name has no slash; every statistic has an axis, and the count is a number."""
    content = load("lerobot", own)
    assert {"observation.state", "action", "next.reward"} <= content.keys()
    for feature, stats in content.items():
        assert "/" not in feature
        assert stats.keys() == {"min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99"}
        assert np.array(stats["count"]).shape == (1,)
        assert len({np.array(value).shape for name, value in stats.items() if name != "count"}) == 1
        assert all(np.array(value).ndim >= 1 for value in stats.values())
        ordered = np.array([stats[name] for name in ("min", "q01", "q10", "q50", "q90", "q99", "max")])
        assert (np.diff(ordered, axis=0) >= 0).all()
