"""Statistics, held against numpy on the whole data, however the data are divided."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.connectors import quantiles
from rlds_beam.connectors.quantiles import RELATIVE_ERROR, Distribution
from rlds_beam.connectors.statistics import QUANTILES, EpisodeStatistics, LeafBuilder, LeafStatistics
from rlds_beam.testing import make_episode

Q = list(QUANTILES.values())


def cuts(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, count - 1), unique=True, max_size=6).map(sorted)


@given(seed=st.integers(0, 1000), where=cuts(300), order=st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_merging_is_numpy_on_the_whole_however_it_is_divided(seed, where, order):
    values = np.random.default_rng(seed).normal(3.0, 2.0, (300, 2, 2)).astype(np.float32)
    parts = [LeafStatistics.of(part) for part in np.split(values, where)]
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
def test_quantiles_of_many_values_are_within_the_stated_error_and_do_not_depend_on_the_division(scale, monkeypatch):
    monkeypatch.setattr(quantiles, "EXACT", 1000)
    rng = np.random.default_rng(5)
    values = (scale * np.stack([rng.normal(size=50_000), rng.exponential(size=50_000) - 1], axis=1)).astype(np.float32)
    one = Distribution.of(values.T)
    parts = [Distribution.of(part.T) for part in np.split(values, [10, 700, 5_000, 41_234])]
    many = pickle.loads(pickle.dumps(parts[3].merge(parts[1], parts[0]))).merge(parts[4], parts[2])
    assert not one.exact
    np.testing.assert_array_equal(one.quantiles(Q), many.quantiles(Q))
    expected = np.quantile(values.astype(np.float64), Q, axis=0)
    assert (abs(one.quantiles(Q) - expected) <= 1.001 * RELATIVE_ERROR * abs(expected)).all()


def test_large_offsets_do_not_cost_the_standard_deviation_its_digits():
    values = 1e8 + np.random.default_rng(0).normal(size=(10_000, 1))
    parts = [LeafStatistics.of(part) for part in np.split(values, 100)]
    np.testing.assert_allclose(parts[0].merge(*parts[1:]).std, values.std(axis=0), rtol=1e-6)


def test_zero_and_constant_dimensions():
    values = np.array([[0.0, 7.0, 1.0], [0.0, 7.0, 2.0]])
    found = LeafStatistics.of(values).to_json()
    assert (found["zero"], found["constant"]) == ([0], [0, 1])


def test_void_values_of_the_last_step_do_not_count_and_its_observation_does():
    episodes = [make_episode(steps, seed=steps) for steps in (4, 9)]
    for episode in episodes:
        episode.steps["action"][-1] = np.nan
        episode.steps["reward"][-1] = np.nan
    parts = [EpisodeStatistics.of(episode) for episode in episodes]
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
def test_rows_one_after_another_are_the_rows_at_once(bound, monkeypatch):
    monkeypatch.setattr(quantiles, "EXACT", bound)
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
    np.testing.assert_array_equal(found_quantiles, Distribution.of(values.T).quantiles(Q))
