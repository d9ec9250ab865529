"""Curves of an episode."""

from __future__ import annotations

import numpy as np
import pytest

from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.terminal.tables import thin
from rlds_beam.testing import make_episode
from rlds_beam.viewing.facts import MAX_DIMENSIONS, find_curves


def test_states_come_first_and_embeddings_last() -> None:
    episode = make_episode(
        5,
        observation={"z": 2, "state": 7},
        columns={
            "language_embedding": np.zeros((5, 512), np.float32),
            "gripper": np.zeros(5, bool),
            "text": np.full(5, b"x", object),
            "observation/image": np.zeros((5, 16, 16, 3), np.uint8),
            "observation/depth": np.zeros((5, 16, 16), np.float32),
            "action_matrix": np.zeros((5, 2, 2), np.float32),
        },
    )
    curves = find_curves(episode)
    assert [curve.path for curve in curves] == [
        "observation/state",
        "observation/z",
        "action",
        "reward",
        "action_matrix",
        "discount",
        "gripper",
        "language_embedding",
    ]
    by_path = {curve.path: curve for curve in curves}
    assert by_path["reward"].labels == () and by_path["reward"].values.shape == (5, 1)
    assert by_path["action_matrix"].labels == ("0,0", "0,1", "1,0", "1,1")
    assert by_path["language_embedding"].values.shape == (5, MAX_DIMENSIONS)
    assert by_path["language_embedding"].left_out == 512 - MAX_DIMENSIONS
    assert all(curve.values.dtype == np.float64 for curve in curves)
    assert [curve.path for curve in find_curves(episode, Schema({"action": Field("action", "float32", (2,))}))] == [
        "action"
    ]


def test_an_episode_without_steps() -> None:
    empty = make_episode(3, breaks={"empty_episode"})
    assert [len(curve.values) for curve in find_curves(empty)] == [0] * 4
    assert find_curves(empty.replace(steps={})) == []


def test_columns_that_are_no_curves() -> None:
    episode = make_episode(2, columns={"ragged": np.array([[1], [1, 2]], object), "none": np.zeros((2, 0))})
    assert {"ragged", "none"}.isdisjoint(curve.path for curve in find_curves(episode))


@pytest.mark.parametrize("most", [2, 3, 10, 100])
def test_thin_keeps_every_peak(most: int) -> None:
    values = np.random.default_rng(0).standard_normal((1000, 3))
    values[500] = [1e6, -1e6, np.nan]
    steps, thinned = thin(values, most)
    assert len(steps) == len(thinned) <= most
    assert (np.diff(steps) > 0).all() and steps[0] == 0 and steps[-1] == 999
    np.testing.assert_array_equal(np.nanmin(thinned, axis=0), np.nanmin(values, axis=0))
    np.testing.assert_array_equal(np.nanmax(thinned, axis=0), np.nanmax(values, axis=0))


def test_thin_keeps_the_order_within_a_stretch() -> None:
    ramp = np.arange(100.0)[:, None]
    assert (np.diff(thin(ramp, 10)[1][:, 0]) > 0).all()
    assert (np.diff(thin(-ramp, 10)[1][:, 0]) < 0).all()


def test_thin_with_stretches_of_nan_and_infinity() -> None:
    values = np.full((40, 1), np.nan)
    values[20:] = np.inf
    thinned = thin(values, 4)[1][:, 0]
    np.testing.assert_array_equal(thinned, [np.nan, np.nan, np.inf, np.inf])
