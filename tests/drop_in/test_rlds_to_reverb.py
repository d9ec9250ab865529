"""The drop-in for TF-Agents' rlds_to_reverb, compared with TF-Agents' own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import ALL
from checkout import SUPPORT
from rlds_streams import Columns, columns, dataset, frozen, info

pytest.importorskip("tf_agents")

import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tf_agents.replay_buffers import rlds_to_reverb as theirs

from rlds_beam.drop_in import rlds_to_reverb as ours
from rlds_beam.testing import make_episode, write_dataset

Flags = list[tuple[bool, bool, bool]]
"""(is_first, is_last, is_terminal) of each step of an episode."""
UPSTREAM = SUPPORT / "upstream_rlds_to_reverb.py"
F, M, L, T = (True, False, False), (False, False, False), (False, True, False), (False, True, True)


def frames(data: tf.data.Dataset) -> list[tuple[Any, ...]]:
    """Each frame as bytes, which are equal only if dtype, shape, and value are."""
    return [frozen(frame) for frame in data.as_numpy_iterator()]


def frames_and_fault(data: tf.data.Dataset) -> tuple[list[Any], str | None]:
    """The frames, and the message of the error that ends them."""
    found: list[Any] = []
    try:
        found.extend(map(frozen, data.as_numpy_iterator()))
    except tf.errors.InvalidArgumentError as error:
        return found, re.findall(r"assertion failed: \[(.*)\]", error.message)[0]
    return found, None


@pytest.mark.timeout(900)
@pytest.mark.skipif(not ALL, reason="the other tests compare with TF-Agents; make test-all runs its own too")
def test_tf_agents_own_tests_pass() -> None:
    done = subprocess.run([sys.executable, UPSTREAM], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    ran = re.search(r"Ran (\d+) tests", done.stderr)
    assert ran and int(ran[1]) >= 40


# Frames


class Streams:
    """Both conversions of a dataset whose content can be replaced, because building them is slow."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.episodes: list[Flags] = []
        patch.setattr(ours, "_BLOCK_LENGTH", 2)
        spec = {"flags": tf.TensorSpec([None, 3], tf.bool), "start": tf.TensorSpec([], tf.int64)}
        data = tf.data.Dataset.from_generator(self._generate, output_signature=spec).map(self._episode)
        self.ours, self.theirs = ours.convert_rlds_to_trajectories(data), theirs.convert_rlds_to_trajectories(data)
        self.ours_sound, self.theirs_sound = self.ours.ignore_errors(), self.theirs.ignore_errors()

    def _generate(self) -> Iterator[dict[str, Any]]:
        start = 0
        for flags in self.episodes:
            yield {"flags": np.array(flags, bool).reshape(-1, 3), "start": start}
            start += len(flags)

    @staticmethod
    def _episode(episode: Any) -> Any:
        flags = episode["flags"]
        step = episode["start"] + tf.range(tf.shape(flags, tf.int64)[0])
        return {
            "steps": tf.data.Dataset.from_tensor_slices(
                {
                    "observation": tf.stack([step, -step], 1),
                    "action": tf.cast(step, tf.float64)[:, None],
                    "reward": tf.where(step % 3 == 0, np.nan, tf.cast(step, tf.float32)),
                    "discount": tf.cast(step % 9, tf.float32),
                    "is_first": flags[:, 0],
                    "is_last": flags[:, 1],
                    "is_terminal": flags[:, 2],
                }
            )
        }


@pytest.fixture(scope="module")
def streams() -> Iterator[Streams]:
    """In blocks of 2; the tests after these use blocks of 1024."""
    with pytest.MonkeyPatch.context() as patch:
        yield Streams(patch)


def _valid(length: int, terminal: bool) -> Flags:
    last = (length == 1, True, terminal)
    return [F, *[M] * (length - 2), last] if length > 1 else [last]


VALID = st.builds(_valid, st.integers(1, 7), st.booleans())
ANY = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=5)


# An iterator takes a tenth of a second to start, so streams are few and long: those of `ignore_errors` never end.
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(episodes=st.lists(st.one_of(*[VALID] * 8, ANY), max_size=30))
def test_frames_and_errors_equal_tf_agents(streams: Streams, episodes: list[Flags]) -> None:
    streams.episodes = episodes
    assert frames_and_fault(streams.ours) == frames_and_fault(streams.theirs)
    assert frames(streams.ours_sound) == frames(streams.theirs_sound)


@pytest.mark.parametrize(
    ("episodes", "fault"),
    [
        ([], None),
        ([[], [F, M, T], []], None),
        ([[F, M, L], [F, T], [(True, True, True)]], None),
        ([[F], [F, M, L]], None),
        ([[M, L], [F, M], [M, L]], None),
        ([[F, L, F, L]], None),
        ([[F, M], [F, L]], "Mid step should not be followed by a first step."),
        ([[F, M]], "Mid step should not be followed by a first step."),
        ([[F, L, L]], "Last step of an episode must be followed by a first step."),
        ([[F, (False, False, True), L]], "Terminal step must be the last step of an episode."),
    ],
)
def test_known_streams(streams: Streams, episodes: list[Flags], fault: str | None) -> None:
    streams.episodes = episodes
    found, said = frames_and_fault(streams.ours)
    assert (found, said) == frames_and_fault(streams.theirs)
    assert said == fault
    assert len(found) == sum(map(len, episodes)) or fault


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"observation": lambda e: e["observation"].astype(np.uint8), "reward": lambda e: e["reward"].astype(np.int64)},
        {"observation": lambda e: np.full((len(e["reward"]), 2, 3), b"text"), "reward": lambda e: e["reward"][:, None]},
        {"action": lambda e: e["reward"] > 1, "extra": lambda e: np.full(len(e["reward"]), b"more")},
    ],
    ids=["float32", "ints", "text", "flags"],
)
def test_any_dtype_and_spec(changes: dict[str, Callable[[Columns], Any]]) -> None:
    data = dataset(columns(3, 1, 4, **changes))
    converted, expected = ours.convert_rlds_to_trajectories(data), theirs.convert_rlds_to_trajectories(data)
    assert converted.element_spec == expected.element_spec
    assert frames(converted) == frames(expected)
    assert ours.create_trajectory_data_spec(data) == theirs.create_trajectory_data_spec(data)


def test_unknown_dimensions_of_the_dataset() -> None:
    data = dataset(columns(3, 4)).map(lambda e: {"steps": e["steps"].map(_forget_shape)})
    converted = ours.convert_rlds_to_trajectories(data)
    assert converted.element_spec == theirs.convert_rlds_to_trajectories(data).element_spec
    assert frames(converted) == frames(ours.convert_rlds_to_trajectories(dataset(columns(3, 4))))


def _forget_shape(step: Any) -> Any:
    return step | {"observation": tf.ensure_shape(tf.reshape(step["observation"], tf.range(2, 3)), [None])}


def test_nested_leaves_equal_flat_data() -> None:
    def nested(step: Any) -> Any:
        view = step["observation"]
        return step | {"observation": {"a": view, "b": (view[0], {"c": view[1:]})}, "action": (step["action"], view)}

    episodes = columns(3, 1, 2)
    data = dataset(episodes).map(lambda episode: {"steps": episode["steps"].map(nested)})
    converted = ours.convert_rlds_to_trajectories(data)
    flat = list(theirs.convert_rlds_to_trajectories(dataset(episodes)).as_numpy_iterator())
    for frame, plain in zip(converted.as_numpy_iterator(), flat, strict=True):
        view = plain.observation
        expected = plain._replace(observation={"a": view, "b": (view[0], {"c": view[1:]})}, action=(plain.action, view))
        tf.nest.assert_same_structure(frame, expected)
        assert frozen(frame) == frozen(expected)
    spec = ours.create_trajectory_data_spec(data)
    assert [(leaf.dtype, leaf.shape) for leaf in tf.nest.flatten(spec)] == [
        (leaf.dtype, leaf.shape) for leaf in tf.nest.flatten(converted.element_spec)
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"discount": lambda e: e["discount"].astype(np.float64)},
        {"discount": lambda e: e["discount"][:, None]},
        {name: lambda e, name=name: e[name].astype(np.int8) for name in ("is_first", "is_last", "is_terminal")},
    ],
    ids=["float64 discount", "discount of shape (1,)", "int8 flags"],
)
def test_discounts_and_flags_of_any_number_type(change: dict[str, Callable[[Columns], Any]]) -> None:
    plain = dataset(columns(3, 1, 4))
    data = dataset(columns(3, 1, 4, **change))
    assert frames(ours.convert_rlds_to_trajectories(data)) == frames(theirs.convert_rlds_to_trajectories(plain))
    assert ours.create_trajectory_data_spec(data) == theirs.create_trajectory_data_spec(plain)


def test_policy_info() -> None:
    data = dataset(columns(3, 1, 4))
    converted = ours.convert_rlds_to_trajectories(data, info)
    expected = theirs.convert_rlds_to_trajectories(data, info)
    assert converted.element_spec == expected.element_spec
    assert frames(converted) == frames(expected)
    assert frames(converted.batch(3)) == frames(expected.batch(3))
    spec = ours.create_trajectory_data_spec(data, info)
    assert spec.policy_info == expected.element_spec.policy_info
    assert spec._replace(policy_info=()) == theirs.create_trajectory_data_spec(data)


def test_it_is_a_dataset_like_any_other() -> None:
    data = dataset(columns(3, 1, 4, 5))
    converted, expected = ours.convert_rlds_to_trajectories(data), theirs.convert_rlds_to_trajectories(data)
    assert isinstance(converted, tf.data.Dataset)
    assert converted.cardinality() == expected.cardinality()
    for step in (
        lambda ds: ds.batch(4),
        lambda ds: ds.batch(4, drop_remainder=True, num_parallel_calls=2),
        lambda ds: ds.window(2, drop_remainder=True).flat_map(lambda frame: frame.reward.batch(2)),
    ):
        got, want = step(converted), step(expected)
        assert got.element_spec == want.element_spec
        assert frames(got) == frames(want)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be greater than zero"):
        frames(converted.batch(0))
    assert tf.function(lambda ds: ds.reduce(0.0, lambda total, frame: total + frame.reward))(converted) == 39.0


@pytest.mark.parametrize(
    "data",
    [
        tf.data.Dataset.from_tensors({"random": True}),
        tf.data.Dataset.from_tensors({"steps": tf.data.Dataset.from_tensors({"a": 1, "is_first": True})}),
        tf.data.Dataset.from_tensors(1),
    ],
    ids=["no steps", "fields missing", "no dict"],
)
@pytest.mark.parametrize("function", ["create_trajectory_data_spec", "convert_rlds_to_trajectories"])
def test_data_that_is_not_rlds_is_refused_in_the_same_way(data: tf.data.Dataset, function: str) -> None:
    with pytest.raises((ValueError, TypeError)) as expected:
        getattr(theirs, function)(data)
    with pytest.raises(expected.type, match=re.escape(str(expected.value))):
        getattr(ours, function)(data)
    assert ours.get_rlds_step_features() == theirs.get_rlds_step_features()


def test_a_dataset_of_tfds(tmp_path: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    directory = write_dataset(tmp_path, [make_episode(n, seed=n, action=(2, 2)) for n in (3, 1, 7, 2, 5)], shards=2)
    data = tfds.builder_from_directory(directory).as_dataset(split="train")
    assert frames(ours.convert_rlds_to_trajectories(data)) == frames(theirs.convert_rlds_to_trajectories(data))
