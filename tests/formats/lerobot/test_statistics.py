"""LeRobot's statistics, compared with NumPy's."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.formats.lerobot import statistics
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages


def wanted(values: np.ndarray) -> np.ndarray:
    quantiles = np.quantile(values, [0.01, 0.1, 0.5, 0.9, 0.99])
    return np.array([values.min(), values.max(), values.mean(), values.std(), *quantiles])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=60), min_size=1, max_size=3), st.integers(1, 3))
def test_statistics_of_histograms(images, channels):
    levels = [[np.roll(values, c) // (c + 1) for c in range(channels)] for values in images]
    histograms = np.array([[np.bincount(row, minlength=statistics.LEVELS) for row in rows] for rows in levels])
    wants = [np.stack([wanted(row / 255) for row in rows], axis=1) for rows in levels]
    np.testing.assert_allclose(statistics.histogram_statistics(histograms), wants, atol=1e-12)
    np.testing.assert_array_equal(
        statistics.histogram_statistics(histograms[0]), statistics.histogram_statistics(histograms)[0]
    )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=20).filter(any))
def test_statistics_of_counts(counts):
    found = statistics.histogram_statistics(np.array([counts]), np.arange(len(counts), dtype=float))[:, 0]
    np.testing.assert_allclose(found, wanted(np.repeat(np.arange(len(counts)), counts)), atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300))
def test_statistics_of_a_range(count):
    np.testing.assert_allclose(
        statistics.range_statistics(np.array([count, 1])), [wanted(np.arange(count)), wanted(np.zeros(1))], atol=1e-9
    )


def columns_of(length: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "a": rng.normal(size=(length, 3)),
        "b": rng.integers(0, 5, length),
        "c": rng.random((length, 2, 2)) > 0.5,
    }


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 1 << 30))
def test_statistics_of_episodes(lengths, seed):
    rng = np.random.default_rng(seed)
    episodes = [columns_of(length, rng) for length in lengths]
    found = statistics.episodes_statistics(episodes)
    for i, columns in enumerate(episodes):
        for name, values in columns.items():
            flat = values.reshape(len(values), -1).astype(float)
            np.testing.assert_allclose(found[name][i], np.stack([wanted(c) for c in flat.T], axis=1), atol=1e-9)


def test_the_batch_size_makes_no_difference(monkeypatch):
    rng = np.random.default_rng(0)
    episodes = [columns_of(length, rng) for length in (3, 70, 1, 8, 8, 40)]
    histograms = [{"image": rng.integers(0, 9, (3, statistics.LEVELS))} for _ in episodes]

    def gathered() -> dict[str, np.ndarray]:
        some = statistics.StatisticsGatherer()
        for numbers, histogram in zip(episodes, histograms, strict=True):
            some.add(numbers, histogram)
        return some.finish()

    whole = gathered()
    assert whole["a"].shape == (6, len(statistics.STATISTICS), 3)
    for name, most in (("_MAX_EPISODES", 2), ("_MAX_VALUES", 500), ("_MAX_VALUES", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(statistics, name, most)
            for feature, values in gathered().items():
                np.testing.assert_array_equal(values, whole[feature])
    assert statistics.StatisticsGatherer().finish() == {}


def test_decoded_frames():
    assert statistics.sample_places(1, 1) == [0]
    assert statistics.sample_places(10, 4) == [1, 3, 6, 8]
    assert statistics.sample_places(50, 1) == [25]
    assert statistics.sample_places(51, 2) == [12, 38]
    assert statistics.sample_places(1000, 4) == [125, 375, 625, 875]


def test_the_number_of_decoded_frames():
    start = statistics.FRAMES_OF_A_SAMPLE
    assert [statistics.sample_count(length, start) for length in (1, 49, 50, 101, 1000)] == [1, 1, 1, 2, 4]
    assert [statistics.sample_count(length, 0) for length in (1, 49, 50, 101, 1000)] == [0, 0, 1, 2, 4]
    assert [statistics.sample_count(10, before) for before in (0, 39, 40, 60)] == [0, 0, 1, 1]
    assert [statistics.sample_count(length, 0, 8) for length in (3, 100)] == [3, 8]


def test_a_small_dataset_has_all_frames_decoded():
    assert [statistics.samples_of_few(episodes) for episodes in ([4], [1, 1], [700], [1001], [], [3, None])] == [
        *(250, 500, 1, 0, 1000, 0)
    ]
    assert [statistics.sample_count(length, 0, least=250) for length in (1, 36, 250, 251)] == [1, 36, 250, 250]
    assert [statistics.sample_count(length, 0, least=1) for length in (1, 49, 200)] == [1, 1, 4]
    assert statistics.sample_count(36, 0, 8, least=250) == 8


def test_an_episode_without_decoded_frames_has_the_image_statistics_before_it(monkeypatch):
    rng = np.random.default_rng(0)
    numbers = columns_of(3, rng)
    histograms = [{"image": rng.integers(0, 9, (3, statistics.LEVELS))} for _ in range(3)]
    given = [histograms[0], {}, {}, histograms[1], histograms[2], {}]
    own = statistics.histogram_statistics(np.stack([one["image"] for one in histograms]))
    for most in (64, 2, 1):
        monkeypatch.setattr(statistics, "_MAX_EPISODES", most)
        some = statistics.StatisticsGatherer()
        for one in given:
            some.add(numbers, one)
        np.testing.assert_array_equal(some.finish()["image"], own[[0, 0, 0, 1, 2, 2]])


def test_counted_pixels():
    rng = np.random.default_rng(1)
    small, large = (rng.integers(0, 256, (2, *size, 3), np.uint8) for size in ((90, 80), (200, 150)))
    counts = statistics.count_levels(small, 3, "image")
    np.testing.assert_array_equal(counts[1], np.bincount(small[..., 1].ravel(), minlength=statistics.LEVELS))
    counts = statistics.count_levels(large, 3, "image")
    np.testing.assert_array_equal(counts[2], np.bincount(large[:, 1::2, 1::2, 2].ravel(), minlength=statistics.LEVELS))


def test_large_jpegs_are_decoded_smaller():
    smooth = np.linspace(0, 255, 240 * 320).reshape(1, 240, 320, 1).repeat(3, axis=3).astype(np.uint8)
    images = EncodedImages(objects(encode_jpeg(smooth)), (240, 320, 3))
    counts = statistics.count_levels(images, 3, "image")
    assert counts.sum(axis=1).tolist() == [60 * 80] * 3  # at half size, every second row and column
    np.testing.assert_allclose(statistics.histogram_statistics(counts)[2:4], [[0.5] * 3, [0.29] * 3], atol=0.01)
