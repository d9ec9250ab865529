"""The statistics of LeRobot beside numpy's."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.exchange.lerobot import statistics


def wanted(values: np.ndarray) -> np.ndarray:
    quantiles = np.quantile(values, [0.01, 0.1, 0.5, 0.9, 0.99])
    return np.array([values.min(), values.max(), values.mean(), values.std(), *quantiles])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 255), min_size=1, max_size=60), st.integers(1, 3))
def test_of_histograms(values, channels):
    levels = np.stack([np.roll(values, c) // (c + 1) for c in range(channels)])
    histogram = np.stack([np.bincount(row, minlength=statistics.LEVELS) for row in levels])
    found = statistics.image_statistics(histogram)
    np.testing.assert_allclose(found, np.stack([wanted(row / 255) for row in levels], axis=1), atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=20).filter(any))
def test_of_counts(counts):
    found = statistics.counted_statistics(np.arange(len(counts)), np.array(counts))
    np.testing.assert_allclose(found, wanted(np.repeat(np.arange(len(counts)), counts)), atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300))
def test_of_a_range(count):
    np.testing.assert_allclose(statistics.range_statistics(count), wanted(np.arange(count)), atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(0, 1 << 30))
def test_of_an_episode(length, seed):
    rng = np.random.default_rng(seed)
    columns = {
        "a": rng.normal(size=(length, 3)),
        "b": rng.integers(0, 5, length),
        "c": rng.random((length, 2, 2)) > 0.5,
    }
    found = statistics.episode_statistics(columns)
    for name, values in columns.items():
        flat = values.reshape(length, -1).astype(float)
        np.testing.assert_allclose(found[name], np.stack([wanted(c) for c in flat.T], axis=1), atol=1e-9)


def test_the_frames_that_are_decoded():
    assert statistics.sample_places(1, 4) == [0]
    assert statistics.sample_places(10, 4) == [0, 3, 6, 9]
    assert statistics.sample_places(3, 8) == [0, 1, 2]
