"""Frames: bit-identical to TF-Agents if requested, and correct where TF-Agents is not."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.testing import make_episode
from rlds_beam.trajectories.frames import Frames, frame_count, to_frames
from rlds_beam.trajectories.items import ItemMaker
from rlds_beam.trajectories.options import FrameOptions, ItemOptions

DROP = FrameOptions()
BOUNDARY = FrameOptions(terminal_discount="boundary")
ABSORBING = FrameOptions(last_step="absorbing")


def column(frames: Frames, path: str) -> list[Any]:
    values: list[Any] = np.asarray(frames[path]).tolist()
    return values


def images(count: int) -> EncodedImages:
    return EncodedImages(np.array([b"image %d" % i for i in range(count)] + [None], object)[:-1], (4, 4, 3))


def builder_episode(length: int, terminal: bool = True) -> Episode:
    """An episode as the rlds_dataset_builder template writes it: discount 1 throughout, reward 1 on the last step."""
    reward = np.zeros(length, np.float32)
    reward[-1] = 1
    return make_episode(length, terminal=terminal, columns={"discount": np.ones(length, np.float32), "reward": reward})


@pytest.mark.parametrize(
    ("length", "types", "following"),
    [(1, [2], [2]), (2, [0, 2], [2, 0]), (3, [0, 1, 2], [1, 2, 0]), (5, [0, 1, 1, 1, 2], [1, 1, 1, 2, 0])],
)
def test_step_types(length: int, types: list[int], following: list[int]) -> None:
    frames = to_frames(make_episode(length), DROP)
    assert (column(frames, "step_type"), column(frames, "next_step_type")) == (types, following)
    assert {np.asarray(frames[p]).dtype for p in ("step_type", "next_step_type")} == {np.dtype("int32")}


@pytest.mark.parametrize(
    ("length", "terminal", "options", "expected"),
    [
        (4, True, BOUNDARY, [1, 1, 1, 0]),
        (4, True, DROP, [1, 1, 0, 0]),
        (4, False, BOUNDARY, [1, 1, 1, 1]),
        (4, False, DROP, [1, 1, 1, 1]),
        (2, True, DROP, [0, 0]),
        (1, True, DROP, [0]),
        (1, True, BOUNDARY, [0]),
        (1, False, DROP, [1]),
        (3, True, ABSORBING, [1, 1, 0, 0]),
        (3, False, ABSORBING, [1, 1, 1, 1]),
        (3, True, FrameOptions(last_step="absorbing", terminal_discount="boundary"), [1, 1, 1, 0]),
        (1, True, ABSORBING, [0, 0]),
    ],
)
def test_discounts(length: int, terminal: bool, options: FrameOptions, expected: list[int]) -> None:
    episode = builder_episode(length, terminal)
    assert column(to_frames(episode, options), "discount") == expected
    assert np.asarray(episode.steps["discount"]).tolist() == [1] * length  # the input is not modified


def test_unchanged_data_is_not_copied() -> None:
    episode = make_episode(5, observation={"state": 3, "image": 1}, terminal=False)
    frames = to_frames(episode, DROP)
    for path in ("observation/state", "action", "reward", "discount"):
        assert np.shares_memory(np.asarray(frames[path]), np.asarray(episode.steps[path]))


def test_absorbing_step_of_a_terminal_episode_is_zero() -> None:
    episode = make_episode(3, observation={"image": 1, "state": 2}, columns={"observation/image": images(3)})
    frames = to_frames(episode, ABSORBING)
    assert len(frames) == frame_count(episode, ABSORBING) == 4
    assert column(frames, "step_type") == [0, 1, 1, 2]
    assert column(frames, "next_step_type") == [1, 1, 2, 0]
    for path in ("observation/state", "action", "reward"):
        assert np.array_equal(np.asarray(frames[path])[:3], np.asarray(episode.steps[path]))
        assert not np.asarray(frames[path])[3].any()
    added = frames["observation/image"]
    assert isinstance(added, EncodedImages)
    assert list(added) == [b"image 0", b"image 1", b"image 2", ZERO_IMAGE]


def test_nested_fields_in_the_order_of_tf_nest() -> None:
    episode = make_episode(4, observation={"b": 2, "a-c": 1, "a/z": (2, 3), "a/d": ()}, action={"grip": (), "arm": 6})
    frames = to_frames(episode, FrameOptions(policy_info_fields=("is_terminal", "reward")))
    assert list(frames.columns) == [
        "step_type",
        "observation/a/d",
        "observation/a/z",
        "observation/a-c",
        "observation/b",
        "action/arm",
        "action/grip",
        "policy_info/is_terminal",
        "policy_info/reward",
        "next_step_type",
        "reward",
        "discount",
    ]
    assert np.asarray(frames["observation/a/z"]).shape == (4, 2, 3)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "uint16", "int32", "int64", "float16", "float64", "bfloat16"]
)
@pytest.mark.parametrize("options", [DROP, ABSORBING])
def test_dtypes_are_kept_and_the_discount_is_float32(dtype: str, options: FrameOptions) -> None:
    import ml_dtypes  # noqa: F401  (makes numpy know bfloat16)

    values = np.ones((3, 2), dtype)
    discount = np.ones(3, "float64" if dtype == "bool" else dtype)
    episode = make_episode(
        3,
        terminal=False,
        columns={"observation": values, "action": values, "reward": values[:, 0], "discount": discount},
    )
    frames = to_frames(episode, options)
    for path in ("observation", "action", "reward"):
        assert np.asarray(frames[path]).dtype == np.dtype(dtype)
    assert np.asarray(frames["discount"]).dtype == np.float32
    assert column(frames, "discount")[:3] == [1, 1, 1]


# Choosing fields


def rich_episode() -> Episode:
    return make_episode(
        3,
        observation={"state": 2, "image_0": 1, "image_1": 1, "hand/left": 1, "hand/right": 1},
        columns={
            "observation/image_0": images(3),
            "observation/note": ["a", "b", "c"],
            "language_instruction": ["go"] * 3,
            "language_embedding": np.ones((3, 8), np.float32),
        },
    )


def observations(options: FrameOptions) -> list[str]:
    paths = to_frames(rich_episode(), options).columns
    return [path.removeprefix("observation/") for path in paths if path.startswith("observation")]


def test_text_is_left_out_of_the_observation() -> None:
    assert observations(DROP) == ["hand/left", "hand/right", "image_0", "image_1", "state"]


def test_required_fields_that_are_missing_or_text() -> None:
    episode = make_episode(3)
    without = episode.replace(steps={p: c for p, c in episode.steps.items() if p != "discount"})
    with pytest.raises(UsageError, match="trajectory needs discount"):
        to_frames(without, DROP)
    with pytest.raises(UsageError, match="action is text"):
        to_frames(make_episode(3, columns={"action": ["up"] * 3}), DROP)
    with pytest.raises(UsageError, match="whole observation is text"):
        to_frames(make_episode(3, columns={"observation": ["up"] * 3}), DROP)
    with pytest.raises(UsageError, match="without fields"):
        to_frames(episode, FrameOptions(observation_fields=("state",)))


# TF-Agents


@functools.cache
def tf_modules() -> tuple[Any, Any]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    pytest.importorskip("tf_agents")
    import tensorflow as tf
    from tf_agents.replay_buffers import rlds_to_reverb

    return tf, rlds_to_reverb


def rlds_dataset(episodes: list[Episode]) -> Any:
    """The episodes as the nested tf.data.Dataset that RLDS tools expect."""
    tf, _ = tf_modules()
    steps = [{path: np.asarray(c) for path, c in episode.steps.items()} for episode in episodes]
    offsets = np.cumsum([0, *map(len, episodes)])
    joined = {path: tf.constant(np.concatenate([s[path] for s in steps])) for path in steps[0]}
    spans = tf.data.Dataset.from_tensor_slices((offsets[:-1], offsets[1:]))
    return spans.map(
        lambda start, stop: {
            "steps": tf.data.Dataset.from_tensor_slices({path: c[start:stop] for path, c in joined.items()})
        }
    )


def theirs(episodes: list[Episode]) -> list[list[Any]]:
    """TF-Agents' conversion, with one list of values per leaf."""
    tf, rlds_to_reverb = tf_modules()
    converted = rlds_to_reverb.convert_rlds_to_trajectories(rlds_dataset(episodes))
    return [list(leaf) for leaf in zip(*(tf.nest.flatten(t) for t in converted.as_numpy_iterator()), strict=True)]


def assert_bit_for_bit(episodes: list[Episode], options: FrameOptions, expected: list[list[Any]]) -> None:
    ours = [to_frames(episode, options) for episode in episodes]
    leaves = [np.concatenate([np.asarray(f[path]) for f in ours]) for path in ours[0].columns]
    assert len(leaves) == len(expected)
    for leaf, values in zip(leaves, expected, strict=True):
        stacked = np.stack(values)
        assert (leaf.dtype, leaf.shape) == (stacked.dtype, stacked.shape)
        assert leaf.tobytes() == stacked.tobytes()


@pytest.mark.parametrize(
    ("observation", "action", "reward", "shape"),
    [
        ("float32", "float32", "float32", (17,)),
        ("float64", "int32", "float64", ()),
        ("uint8", "bool", "int64", (4, 4, 3)),
        ("int64", "float32", "float32", (1,)),
    ],
)
def test_flat_data_is_bit_identical_to_tf_agents(
    observation: str, action: str, reward: str, shape: tuple[int, ...]
) -> None:
    """Datasets of 60 generated episodes each, because TensorFlow builds one graph per dataset."""
    rng = np.random.default_rng(len(shape))
    episodes = [
        make_episode(
            length,
            seed=seed,
            terminal=bool(rng.random() < 0.5),
            columns={
                "observation": (rng.standard_normal((length, *shape)) * 9).astype(observation),
                "action": (rng.standard_normal((length, 2)) * 9).astype(action),
                "reward": (rng.standard_normal((length, *shape[:1])) * 9).astype(reward),
                "discount": rng.choice(np.float32([0, 0.25, 0.99, 1]), length),
            },
        )
        for seed, length in enumerate(rng.integers(1, 8, 60).tolist())
    ]
    assert_bit_for_bit(episodes, BOUNDARY, theirs(episodes))


def test_absorbing_equals_tf_agents_conversion_of_the_longer_episode() -> None:
    episodes = [make_episode(n, seed=n, terminal=n % 2 == 1) for n in (1, 2, 3, 4)]
    longer = []
    for episode in episodes:
        terminal = bool(np.asarray(episode.steps["is_terminal"])[-1])
        steps = {p: np.asarray(c) for p, c in episode.steps.items()}
        added = {p: np.zeros_like(c[:1]) for p, c in steps.items()}
        if not terminal:
            added |= {p: steps[p][-1:] for p in ("observation", "discount")}
        steps["is_last"], steps["is_terminal"] = np.zeros((2, len(episode)), bool)
        added["is_last"], added["is_terminal"] = np.array([True]), np.array([terminal])
        longer.append(episode.replace(steps={p: np.concatenate([c, added[p]]) for p, c in steps.items()}))
    options = FrameOptions(last_step="absorbing", terminal_discount="boundary")
    assert_bit_for_bit(episodes, options, theirs(longer))


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("options", [DROP, BOUNDARY, ABSORBING])
def test_what_an_agent_learns_from_pairs_of_builder_data(terminal: bool, options: FrameOptions) -> None:
    """TF-Agents' transitions of the pairs: no bootstrapping at the end, and the reward is included."""
    tf, _ = tf_modules()
    from tf_agents.trajectories import trajectory

    frames = to_frames(builder_episode(4, terminal), options)
    items = ItemMaker(ItemOptions()).push(frames)
    leaves = {path: tf.constant(np.asarray(items.gather(path))) for path in frames.columns}
    pairs = trajectory.Trajectory(
        leaves["step_type"],
        leaves["observation"],
        leaves["action"],
        (),
        leaves["next_step_type"],
        leaves["reward"],
        leaves["discount"],
    )
    following = trajectory.to_transition(pairs).next_time_step
    discounts, rewards = following.discount.numpy()[:, 0], following.reward.numpy()[:, 0]
    into_the_end = following.is_last().numpy()[:, 0]
    assert into_the_end.tolist() == [False] * (len(items) - 1) + [True]
    stops = terminal and options.terminal_discount == "transition"
    assert discounts.tolist() == [1] * (len(items) - 1) + [0 if stops else 1]
    assert rewards.sum() == (1 if options.last_step == "absorbing" else 0)


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
        "policy_info/a/r",
        "policy_info/delta",
        "policy_info/language_embedding",
    ]
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


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"x": 1.0}, r"policy_info/x has shape \(\) for an episode of 3 steps"),
        ({"reward": np.zeros(3)}, "policy_info/reward.*policy_info_fields"),
        (np.zeros(3), "without a name.*policy_info_fields"),
    ],
)
def test_the_result_of_policy_info_fn_is_checked(functions: Options, returned: Any, message: str) -> None:
    options = functions(lambda current, following: returned, policy_info_fields=("reward",))
    with pytest.raises(UsageError, match=message):
        to_frames(make_episode(3), options)
