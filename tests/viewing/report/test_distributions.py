"""The numbers of a report: histograms, drift, and the choice of episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.connectors.statistics.distributions import ValueDistribution
from rlds_beam.connectors.statistics.episode_statistics import LeafStatistics
from rlds_beam.typing import Array
from rlds_beam.viewing.episode_view import Json, sample_keys
from rlds_beam.viewing.report.signals import BINS, count_bins, make_distribution, worst_rows

NUMBERS = st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=60)


def weighted(values: Any) -> tuple[Array, Array]:
    return ValueDistribution.from_parts(np.asarray(values, np.float64)[None]).weighted(0)


def described(values: Any) -> Json:
    return make_distribution(LeafStatistics.from_values(np.asarray(values)), 0, "")


@given(NUMBERS)
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    histogram = count_bins(weighted(values), len(values))
    assert sum(histogram["counts"]) + histogram["outside"] == len(values)
    assert histogram["outside"] == np.count_nonzero(~np.isfinite(values))
    assert len(histogram["counts"]) <= BINS + 1
    assert list(histogram["edges"]) == sorted(histogram["edges"])


def test_few_whole_numbers_get_a_bin_each() -> None:
    histogram = described([0, 3, 3, 1])["histogram"]
    assert histogram["edges"] == [-0.5, 0.5, 1.5, 2.5, 3.5]
    assert histogram["counts"] == [1, 1, 0, 2]


def test_a_constant_has_one_bin() -> None:
    histogram = described(np.full(5, 2.5))["histogram"]
    assert (histogram["edges"], histogram["counts"]) == ([2.5, 2.5], [5])


def test_far_tails_share_the_outermost_bins() -> None:
    values = np.append(np.linspace(0, 1, 1000), [1e9, -1e9])
    found = described(values)
    assert found["histogram"]["edges"][0] > -3 and found["histogram"]["edges"][-1] < 4
    assert sum(found["histogram"]["counts"]) == 1002
    assert (found["least"], found["most"]) == (-1e9, 1e9)


def test_quantiles_are_those_of_numpy() -> None:
    values = np.random.default_rng(0).normal(size=999)
    quantiles = dict(described(values)["quantiles"])
    assert quantiles["q10"] == pytest.approx(np.quantile(values, 0.1), rel=1e-5)
    assert quantiles["q50"] == pytest.approx(np.median(values), rel=1e-5)


def test_a_nan_is_outside_and_has_no_quantiles() -> None:
    found = described([1.0, np.nan, 2.0])
    assert found["histogram"]["outside"] == 1
    assert dict(found["quantiles"])["q50"] is None


@pytest.mark.parametrize("size", [1000, 1 << 19])
def test_buckets_give_nearly_the_histogram_of_all_values(size: int) -> None:
    values = np.random.default_rng(1).normal(size=size)
    counted = ValueDistribution.counted(values[None]).weighted(0)
    exact, about = (count_bins(one, size) for one in (weighted(values), counted))
    np.testing.assert_allclose(about["edges"], exact["edges"], atol=0.03)
    assert np.abs(np.subtract(about["counts"], exact["counts"])).sum() < 0.03 * size


def test_the_sample_does_not_depend_on_the_order() -> None:
    keys = [f"a/1.0.0:train:00000@{i}" for i in range(1000)]
    assert sample_keys(keys, 5) == sample_keys(reversed(keys), 5)
    assert len(set(sample_keys(keys, 5))) == 5
    assert sample_keys(keys, 5) == sample_keys(keys, 9)[:5]


def test_the_worst_rows_come_first_and_equal_ones_by_key() -> None:
    keys = [f"a/1.0.0:train:00000@{i}" for i in range(6)]
    values = np.array([1.0, 5.0, np.nan, 5.0, 0.0, 5.0])
    assert worst_rows(values, keys, 3) == [1, 3, 5]
    assert worst_rows(values, keys, 99) == [1, 3, 5, 0, 4]
    assert worst_rows(values, keys, 0) == []
