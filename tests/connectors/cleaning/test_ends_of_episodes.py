"""The ends, returns, and discounts of episodes after connectors drop, merge, cut, or move steps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlds_beam import connectors as c
from rlds_beam.connectors import connect
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode

AGENTS = {name: {"observation": "observation", "action": "action"} for name in ("left", "right")}
AGENTS["right"]["present"] = "present"


def without_last(trajectory: Any) -> Any:
    return {name: values[:-1] for name, values in trajectory.items() if name != "traj_metadata"}


WHOLE = {
    "SubsampleSteps(2)": c.SubsampleSteps(2),
    "SubsampleSteps(4)": c.SubsampleSteps(4),
    "DropNoOpSteps": c.DropNoOpSteps(threshold=1.0),
    "DropNoOpSteps(keep_last)": c.DropNoOpSteps(threshold=1.0, keep_last=True),
    "AddOneTsToEpisodesAndTruncate": c.AddOneTsToEpisodesAndTruncate(),
    "Resample(up)": c.Resample(fps=30, recorded_fps=10, relative=["vector"], rotation="axis_angle", at="vector"),
    "Resample(down)": c.Resample(fps=7, recorded_fps=10, relative=["action"]),
}
"""Connectors that merge steps, and preserve an episode's return and the product of its discounts."""

CUT = {
    "TruncateEpisodes": c.TruncateEpisodes(4),
    "DropIdleSteps": c.DropIdleSteps("observation", 1.0, min_idle=1, min_moving=2, trim=1),
    "KeepRanges": "ranges.json",
    "SplitAgents": c.SplitAgents(AGENTS),
    "SplitAgents(truncated)": c.SplitAgents(AGENTS, left_early="truncated"),
    "TransformTrajectory": c.TransformTrajectory(without_last),
}
"""Connectors that remove transitions."""


def episode(length: int, seed: int, *, terminal: bool) -> Episode:
    """Rewards are integers and discounts powers of 2, so sums and products are exact; void values differ."""
    rng = np.random.default_rng(seed)
    discount = rng.choice([0.5, 1.0], length).astype(np.float32)
    discount[-2:-1] = 0 if terminal else 1
    discount[-1] = 0.25
    columns = {
        "reward": np.append(rng.integers(-5, 6, length - 1), 1000).astype(np.float32),
        "discount": discount,
        "propensity": np.full(length, 0.5),
        "present": np.arange(length) < rng.integers(1, length + 1),
        "text": np.array([b"go"] * length, object),
        "vector": rng.normal(size=(length, 3)).astype(np.float32),
    }
    return make_episode(length, seed=seed, columns=columns, terminal=terminal)


def valid_end(made: Episode) -> None:
    """Asserts one end, and a discount of 0 only where the episode terminates."""
    steps = np.arange(len(made))
    last = int(np.flatnonzero(made.steps["is_last"])[0])
    assert last in (len(made) - 1, int(made.steps.get("loss_mask", np.ones(len(made) - 1)).sum()))
    np.testing.assert_array_equal(made.steps["is_first"], steps == 0)
    np.testing.assert_array_equal(made.steps["is_last"], steps == last)
    terminated = bool(made.steps["is_terminal"][last])
    np.testing.assert_array_equal(made.steps["is_terminal"], (steps == last) & terminated)
    zeros = np.flatnonzero(made.steps["discount"] == 0)
    if terminated:
        assert last == 0 or last - 1 in zeros
    assert {*zeros} <= ({last - 1, last} if terminated else set())


EVERY = settings(deadline=None, max_examples=25)
GENERATED = given(length=st.integers(4, 14), seed=st.integers(0, 10_000), terminal=st.booleans())


@pytest.mark.parametrize("name", WHOLE)
@EVERY
@GENERATED
def test_a_whole_episode_keeps_its_end_its_return_and_its_discount(name, length, seed, terminal):
    before = episode(length, seed, terminal=terminal)
    for made in connect([WHOLE[name]], [before]).episodes:
        assert bool(np.asarray(made.steps["is_terminal"]).any()) == terminal
        valid_end(made)
        if len(made) > 1:
            assert np.sum(made.steps["reward"][:-1]) == np.sum(before.steps["reward"][:-1])
            if terminal or name != "AddOneTsToEpisodesAndTruncate":  # its added step is void
                assert np.prod(made.steps["discount"][:-1]) == np.prod(before.steps["discount"][:-1])


@pytest.mark.parametrize("name", CUT)
@example(length=6, seed=0, terminal=True)  # TruncateEpisodes(4) cuts off only the last transition
@EVERY
@GENERATED
def test_cut_episodes_end_truncated_and_others_do_not_change(name, length, seed, terminal, tmp_path_factory):
    before = episode(length, seed, terminal=terminal)
    piece = CUT[name]
    if piece == "ranges.json":
        path = tmp_path_factory.mktemp("ranges") / piece
        path.write_text(json.dumps({str(before.key): [[0, 3], [3, length - 1], [length - 2, length]]}))
        piece = c.KeepRanges(str(path), key="{key}")
    for made in connect([piece], [before]).episodes:
        valid_end(made)
        left = name == "SplitAgents" and len(made) < length
        reaches = np.array_equal(made.steps["observation"][-1], before.steps["observation"][-1])
        assert bool(np.asarray(made.steps["is_terminal"]).any()) == (left or (terminal and reaches))


@pytest.mark.parametrize("recorded", ["ars", "rsa"])
@EVERY
@GENERATED
def test_rewards_that_led_to_a_step_move_with_their_discounts(recorded, length, seed, terminal):
    right = episode(length, seed, terminal=terminal)
    led_to = {name: np.append([9], right.steps[name][:-1]).astype(np.float32) for name in ("reward", "discount")}
    (made,) = connect([c.ShiftAlignment(recorded)], [right.with_columns(led_to)]).episodes
    valid_end(made)
    for name in led_to:
        np.testing.assert_array_equal(made.steps[name][:-1], right.steps[name][:-1])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint8", "bool"])
def test_a_sum_of_rewards_is_exact_or_refused(dtype):
    rewards = np.array([1, 0, 0, 1, 0], dtype)
    (made,) = connect([c.SubsampleSteps(3)], [make_episode(5, columns={"reward": rewards})]).episodes
    assert made.steps["reward"].tolist() == [1, 1, 0]
    assert made.steps["reward"].dtype == dtype
    if rewards.dtype.kind != "f":
        rewards = np.full(5, True if dtype == "bool" else np.iinfo(dtype).max, dtype)
        with pytest.raises(UsageError, match=f"reward: the sum of the skipped steps overflows {dtype}"):
            connect([c.SubsampleSteps(3)], [make_episode(5, columns={"reward": rewards})])
