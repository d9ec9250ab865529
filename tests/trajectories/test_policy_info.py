"""policy_info_fn: its arguments and its result."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.testing import make_episode
from rlds_beam.trajectories.frames import Frames, to_frames
from rlds_beam.trajectories.options import FrameOptions


def column(frames: Frames, path: str) -> list[Any]:
    values: list[Any] = np.asarray(frames[path]).tolist()
    return values


def images(count: int) -> EncodedImages:
    return EncodedImages(np.array([b"image %d" % i for i in range(count)] + [None], object)[:-1], (4, 4, 3))


# Choosing fields


def rich_episode() -> Episode:
    return make_episode(
        3,
        observation={"state": 2, "image_0": 1, "image_1": 1, "hand/left": 1, "hand/right": 1},
        columns={
            "observation/image_0": images(3), "observation/note": ["a", "b", "c"],
            "language_instruction": ["go"] * 3, "language_embedding": np.ones((3, 8), np.float32),
        },
    )  # fmt: skip


# policy_info_fn


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FrameOptions]:
    """Makes a function importable as `policy_info_module_<n>:function`; returns options that name it."""
    import sys
    import types

    count = iter(range(1000))

    def options(function: Any, **more: Any) -> FrameOptions:
        name = f"policy_info_module_{os.getpid()}_{id(function)}_{next(count)}"
        module = types.ModuleType(name)
        module.function = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
        return FrameOptions(policy_info_fn=f"{name}:function", **more)

    return options


Options = Callable[..., FrameOptions]


def test_policy_info_fn_sees_the_episode_and_the_padded_next_steps(functions: Options) -> None:
    seen: list[Mapping[str, Any]] = []

    def function(current: Mapping[str, Any], following: Mapping[str, Any]) -> dict[str, Any]:
        seen.extend([current, following])
        return {
            "delta": following["observation"]["state"] - current["observation"]["state"],
            "a": {"r": current["reward"]},
        }

    episode = rich_episode()
    options = functions(function, policy_info_fields=("language_embedding",))
    frames = to_frames(episode, options)
    assert [p for p in frames.columns if p.startswith("policy_info")] == [
        "policy_info/a/r", "policy_info/delta", "policy_info/language_embedding",
    ]  # fmt: skip
    current, following = seen
    assert current["is_first"].tolist() == [True, False, False]
    assert following["is_first"].tolist() == [False, False, True]
    assert following["is_last"].tolist() == [False, True, False]
    state = np.asarray(episode.steps["observation/state"])
    assert np.array_equal(
        np.asarray(frames["policy_info/delta"]), np.append(state[1:], np.zeros((1, 2), "f4"), 0) - state
    )
    assert list(following["observation"]["image_0"]) == [b"image 1", b"image 2", ZERO_IMAGE]
    assert following["language_instruction"].tolist() == [b"go", b"go", b""]
    assert len(to_frames(episode, functions(function, last_step="absorbing"))["policy_info/delta"]) == 4


def test_policy_info_may_be_one_array(functions: Options) -> None:
    frames = to_frames(make_episode(3), functions(lambda current, _: current["reward"] * 2))
    assert column(frames, "policy_info") == [2 * r for r in column(frames, "reward")]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "policy_info is a NoneType"),
        ({"x": 1.0}, r"policy_info/x has shape \(\) for an episode of 3 steps"),
        ({"x": np.zeros((2, 3))}, r"shape \(2, 3\)"),
        ({"x": ["a", "b", "c"]}, "policy_info/x is a list"),
        ({"reward": np.zeros(3)}, "policy_info/reward.*policy_info_fields"),
        (np.zeros(3), "without a name.*policy_info_fields"),
    ],
)
def test_the_result_of_policy_info_fn_is_checked(functions: Options, returned: Any, message: str) -> None:
    options = functions(lambda current, following: returned, policy_info_fields=("reward",))
    with pytest.raises(UsageError, match=message):
        to_frames(make_episode(3), options)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_colon", "expected module:function"),
        ("no_such_module:f", "No module named"),
        ("math:no_such", "no attribute"),
        ("math:pi", "not a function"),
    ],
)
def test_a_missing_policy_info_fn(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"--policy_info_fn={name}.*{message}"):
        to_frames(make_episode(3), FrameOptions(policy_info_fn=name))
