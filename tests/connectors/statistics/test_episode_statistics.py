"""Statistics, compared with numpy on the whole data, however the data are divided."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.connectors import Normalize, connect
from rlds_beam.connectors.statistics import distributions
from rlds_beam.connectors.statistics.distributions import RELATIVE_ERROR, ValueDistribution
from rlds_beam.connectors.statistics.episode_statistics import (
    QUANTILES,
    DatasetStatistics,
    EpisodeStatistics,
    LeafBuilder,
    LeafStatistics,
)
from rlds_beam.connectors.statistics.statistics_formats import statistics_in
from rlds_beam.testing import make_episode

Q = list(QUANTILES.values())


def cuts(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, count - 1), unique=True, max_size=6).map(sorted)


@given(seed=st.integers(0, 1000), where=cuts(300), order=st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_merged_statistics_equal_numpy_on_the_whole_data(seed, where, order):
    values = np.random.default_rng(seed).normal(3.0, 2.0, (300, 2, 2)).astype(np.float32)
    parts = [LeafStatistics.from_values(part) for part in np.split(values, where)]
    order.shuffle(parts)
    merged = parts[0].merge(*parts[1:])
    found, wide = merged.to_json(), values.astype(np.float64)
    np.testing.assert_allclose(found["mean"], wide.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found["std"], wide.std(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(found["min"], wide.min(axis=0))
    np.testing.assert_array_equal(found["max"], wide.max(axis=0))
    for name, q in QUANTILES.items():
        np.testing.assert_allclose(found[name], np.quantile(wide, q, axis=0), rtol=1e-12)
    assert (found["count"], found["quantile_error"]) == (300, 0.0)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_quantiles_of_many_values_are_within_the_stated_error_however_the_data_are_divided(scale, monkeypatch):
    monkeypatch.setattr(distributions, "EXACT", 1000)
    rng = np.random.default_rng(5)
    values = (scale * np.stack([rng.normal(size=50_000), rng.exponential(size=50_000) - 1], axis=1)).astype(np.float32)
    one = ValueDistribution.from_parts(values.T)
    parts = [ValueDistribution.from_parts(part.T) for part in np.split(values, [10, 700, 5_000, 41_234])]
    many = pickle.loads(pickle.dumps(parts[3].merge(parts[1], parts[0]))).merge(parts[4], parts[2])
    assert not one.exact
    np.testing.assert_array_equal(one.quantiles(Q), many.quantiles(Q))
    expected = np.quantile(values.astype(np.float64), Q, axis=0)
    assert (abs(one.quantiles(Q) - expected) <= 1.001 * RELATIVE_ERROR * abs(expected)).all()


def test_the_last_step_counts_its_observation_but_not_its_void_values():
    episodes = [make_episode(steps, seed=steps) for steps in (4, 9)]
    for episode in episodes:
        episode.steps["action"][-1] = np.nan
        episode.steps["reward"][-1] = np.nan
    parts = [EpisodeStatistics.from_episodes(episode) for episode in episodes]
    found = EpisodeStatistics().merge(*parts).to_json()
    assert (found["episodes"], found["transitions"]) == (2, 11)
    assert found["fields"]["observation"]["count"] == 13
    assert found["fields"]["action"]["count"] == 11
    actions = np.concatenate([episode.steps["action"][:-1] for episode in episodes]).astype(np.float64)
    np.testing.assert_allclose(found["fields"]["action"]["mean"], actions.mean(axis=0))
    returns = [episode.steps["reward"][:-1].astype(np.float64).sum() for episode in episodes]
    np.testing.assert_allclose(found["episode_return"]["mean"], np.mean(returns))
    assert found["episode_length"]["max"] == 8
    assert not any(path.startswith("is_") for path in found["fields"])


@pytest.mark.parametrize("bound", [1, 7, 1000])
def test_adding_rows_one_by_one_equals_adding_them_at_once(bound, monkeypatch):
    monkeypatch.setattr(distributions, "EXACT", bound)
    rng = np.random.default_rng(bound)
    values = rng.normal(size=(200, 3)).astype(np.float32)
    builder = LeafBuilder()
    for part in np.split(values, np.sort(rng.integers(1, 200, 20))):
        if len(part):
            builder.add(part)
    found, wide = builder.finish(), values.astype(np.float64)
    assert (found.count, found.distribution.exact) == (200, bound >= 200)
    np.testing.assert_allclose([found.mean, found.std], [wide.mean(0), wide.std(0)], rtol=1e-10)
    np.testing.assert_array_equal([found.low, found.high], [wide.min(0), wide.max(0)])
    found_quantiles = found.distribution.quantiles(Q)
    np.testing.assert_array_equal(found_quantiles, ValueDistribution.from_parts(values.T).quantiles(Q))


FINITE = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
ODD = [0.0, -0.0, 1e-45, 1e-40, -1e-300, 1e-20, 1.0, -1.0, 3e38, 1e39, -1e300, 1.7e308]


@given(
    values=st.lists(
        st.one_of(st.sampled_from(ODD), st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)),
        min_size=2,
    ),
    infinite=st.sampled_from([[], [np.inf], [-np.inf, np.inf], [np.nan]]),
    dtype=st.sampled_from([np.float64, np.float32]),
)
@settings(max_examples=300, deadline=None)
def test_approximate_quantiles_of_any_floats_are_within_the_stated_error(values, infinite, dtype):
    """The bound applies to both values between which `np.quantile` interpolates; zeros are exact."""
    with np.errstate(over="ignore"):
        column = np.array([*values, *infinite], dtype).astype(np.float64)
    with np.errstate(all="ignore"):
        found = ValueDistribution.counted(column[None]).quantiles(Q)[:, 0]
    if np.isnan(column).any():
        assert np.isnan(found).all()
        return
    ordered, places = np.sort(column), np.array(Q) * (len(column) - 1)
    for value, place in zip(found, places, strict=True):
        low, high = ordered[int(np.floor(place))], ordered[int(np.ceil(place))]
        share = place - np.floor(place)
        with np.errstate(invalid="ignore"):
            expected = low * (1 - share) + high * share if share else low
        if not np.isfinite(expected):
            np.testing.assert_equal(value, expected)
            continue
        allowed = max(abs(low), abs(high)) * RELATIVE_ERROR * 1.001
        assert abs(value / 2 - expected / 2) <= allowed / 2 + 5e-324
        assert not np.signbit(value) or value < 0


def odd_column(rng: np.random.Generator) -> np.ndarray:
    """Numbers whose float sums depend on their order."""
    column = np.concatenate([rng.normal(size=300) * 10.0 ** rng.integers(-8, 9, 300), [1e300, -1e300, 1e-310, -0.0, 0]])
    return rng.permutation(column)


@given(
    seed=st.integers(0, 1000), where=cuts(305), order=st.randoms(use_true_random=False), bound=st.sampled_from([9, 999])
)
@settings(max_examples=40, deadline=None)
def test_parts_give_the_same_bits_in_whatever_order_they_are_merged(seed, where, order, bound):
    values = np.stack([odd_column(np.random.default_rng([seed, i])) for i in range(2)], axis=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributions, "EXACT", bound)
        parts = [LeafStatistics.from_values(part, f"{i:03}") for i, part in enumerate(np.split(values, where))]
        expected = parts[0].merge(*parts[1:]).to_json()
        while len(parts) > 1:
            order.shuffle(parts)
            parts = [pickle.loads(pickle.dumps(parts[0].merge(parts[1]))), *parts[2:]]
        assert repr(parts[0].to_json()) == repr(expected)


NARROW = ("float32", "float16", "int8", "uint16")
MADE = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "of very different sizes": lambda rng, shape: np.exp(8 * rng.normal(size=shape)),
    "each dimension of another size": lambda rng, shape: (
        rng.normal(size=shape) * 10.0 ** rng.integers(-30, 30, shape[:1])[:, None]
    ),
    "many zeros": lambda rng, shape: rng.normal(size=shape) * rng.integers(0, 2, shape) * rng.choice([-1, 1], shape),
    "zeros": lambda rng, shape: np.where(rng.random(shape) < 0.5, 0.0, -0.0),
    "denormal": lambda rng, shape: rng.normal(size=shape) * 1e-40,
    "a few denormal": lambda rng, shape: np.where(rng.random(shape) < 0.001, 1e-42, rng.normal(size=shape)),
    "powers of two": lambda rng, shape: 2.0 ** rng.integers(-3, 15, shape),
    "the largest": lambda rng, shape: rng.choice([-1, 1], shape) * float(np.finfo(np.float32).max),
    "some infinite": lambda rng, shape: np.where(rng.random(shape) < 0.1, np.inf, rng.normal(size=shape)),
    "some NaN": lambda rng, shape: np.where(rng.random(shape) < 0.1, np.nan, -1.5),
}


def made(kind: str, seed: int, dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape = int(rng.integers(1, 12)), int(rng.choice([1, 2, 9, 1000, 17_000]))
    with np.errstate(all="ignore"):
        return MADE[kind](rng, shape).astype(dtype)


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_exact_quantiles_are_those_of_numpy(kind, seed):
    values = made(kind, seed, NARROW[max(0, seed - 2)])
    expected = np.quantile(values.astype(np.float64), Q, axis=1) + 0.0
    found = ValueDistribution(tuple(np.split(values, [values.shape[1] // 3], axis=1))).quantiles(Q)
    assert found.tobytes() == expected.tobytes() or np.isnan(expected).any()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", [kind for kind in MADE if "some" not in kind])
@pytest.mark.parametrize("seed", range(4))
def test_histograms_count_each_value_in_its_bin(kind, seed):
    values = made(kind, seed)
    wide = values.astype(np.float64)
    low, high = wide.min(axis=1), wide.max(axis=1)
    found = ValueDistribution((values,)).histogram(low, high, 16)
    for d, column in enumerate(wide):
        shares = (column / 2 - low[d] / 2) / (high[d] / 2 - low[d] / 2 or 1.0)
        expected = np.bincount(np.minimum((shares * 16).astype(int), 15), minlength=16)
        np.testing.assert_array_equal(found[d], expected)


@pytest.fixture(scope="module")
def episodes():
    made = [make_episode(5 + i, seed=i, observation={"state": 4}, action=3) for i in range(6)]
    for episode in made:
        episode.steps["action"][:, 2] = 0.25  # an unused dimension
    return made


@pytest.fixture(scope="module")
def own(episodes) -> dict[str, Any]:
    return {"dataset": "toy/1.0.0", **DatasetStatistics.from_episodes(episodes).to_json()}


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
