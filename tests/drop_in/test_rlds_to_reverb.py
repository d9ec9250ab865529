"""The drop-in for TF-Agents' rlds_to_reverb, compared with TF-Agents' own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from checkout import SUPPORT

pytest.importorskip("tf_agents")

import reverb
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tf_agents.replay_buffers import reverb_utils
from tf_agents.replay_buffers import rlds_to_reverb as theirs
from tf_agents.specs import tensor_spec

from rlds_beam.drop_in import frame_blocks, reverb_observers
from rlds_beam.drop_in import rlds_to_reverb as ours
from rlds_beam.drop_in.whole_episodes import whole_episodes

Flags = list[tuple[bool, bool, bool]]
"""(is_first, is_last, is_terminal) of each step of an episode."""

Columns = dict[str, Any]

UPSTREAM = SUPPORT / "upstream_rlds_to_reverb.py"

F, M, L, T = (True, False, False), (False, False, False), (False, True, False), (False, True, True)


def columns(*lengths: int, start: int = 0, **changes: Any) -> list[Columns]:
    """Valid episodes of these lengths; the observation and the action of each step are unlike all others."""
    episodes = []
    for length in lengths:
        step = np.arange(start, start + length)
        start += length
        episodes.append({
            "observation": np.stack([step, -step], 1).astype(np.float32),
            "action": step[:, None].astype(np.float32),
            "reward": step.astype(np.float32) / 2,
            "discount": np.full(length, 0.5, np.float32),
            "is_first": step == step[0],
            "is_last": step == step[-1],
            "is_terminal": (step == step[-1]) & (length % 2 == 0),
        })  # fmt: skip
        episodes[-1] |= {name: change(episodes[-1]) for name, change in changes.items()}
    return episodes


def dataset(episodes: list[Columns]) -> tf.data.Dataset:
    """An RLDS dataset."""
    return tf.data.Dataset.from_tensor_slices(
        {"steps": [tf.data.Dataset.from_tensor_slices(episode) for episode in episodes]}
    )


def frames(data: tf.data.Dataset) -> list[tuple[Any, ...]]:
    """Each frame as its leaves: bytes that are equal only where dtype, shape and value are."""
    return [_frozen(frame) for frame in data.as_numpy_iterator()]


def frames_and_fault(data: tf.data.Dataset) -> tuple[list[Any], str | None]:
    """The frames, and what the error says that ends them."""
    found: list[Any] = []
    try:
        found.extend(map(_frozen, data.as_numpy_iterator()))
    except tf.errors.InvalidArgumentError as error:
        return found, re.findall(r"assertion failed: \[(.*)\]", error.message)[0]
    return found, None


def _frozen(nest: Any) -> tuple[Any, ...]:
    leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(nest)]
    return tuple(
        (leaf.dtype.str, leaf.shape, leaf.tolist() if leaf.dtype == object else leaf.tobytes()) for leaf in leaves
    )


@pytest.mark.timeout(900)
def test_tf_agents_own_tests_pass() -> None:
    done = subprocess.run([sys.executable, UPSTREAM], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    ran = re.search(r"Ran (\d+) tests", done.stderr)
    assert ran and int(ran[1]) >= 40


# Frames


class Streams:
    """Both conversions of a dataset that can be changed: building them is what takes time."""

    def __init__(self, patch: pytest.MonkeyPatch, block_length: int, whole: bool):
        self.episodes: list[Flags] = []
        patch.setattr(frame_blocks, "_BLOCK_LENGTH", block_length)
        spec = {"flags": tf.TensorSpec([None, 3], tf.bool), "start": tf.TensorSpec([], tf.int64)}
        data = tf.data.Dataset.from_generator(self._generate, output_signature=spec).map(self._episode)
        assert whole_episodes(data) is not None
        if not whole:
            patch.setattr(frame_blocks, "whole_episodes", lambda _: None)
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
            "steps": tf.data.Dataset.from_tensor_slices({
                "observation": tf.stack([step, -step], 1),
                "action": tf.cast(step, tf.float64)[:, None],
                "reward": tf.where(step % 3 == 0, np.nan, tf.cast(step, tf.float32)),
                "discount": tf.cast(step % 9, tf.float32),
                "is_first": flags[:, 0],
                "is_last": flags[:, 1],
                "is_terminal": flags[:, 2],
            })
        }  # fmt: skip


WAYS = {"blocks of 2": (2, False), "blocks of 1024": (1024, False), "blocks of 2, whole episodes": (2, True)}


@pytest.fixture(scope="module", params=WAYS.values(), ids=WAYS)
def streams(request: pytest.FixtureRequest) -> Iterator[Streams]:
    with pytest.MonkeyPatch.context() as patch:
        yield Streams(patch, *request.param)


def _valid(length: int, terminal: bool) -> Flags:
    last = (length == 1, True, terminal)
    return [F, *[M] * (length - 2), last] if length > 1 else [last]


VALID = st.builds(_valid, st.integers(1, 7), st.booleans())
ANY = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=5)


# An iterator takes a tenth of a second to start, so streams are few and long: those of `ignore_errors` never end.
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(episodes=st.lists(st.one_of(*[VALID] * 8, ANY), max_size=30))
def test_frames_and_errors_are_those_of_tf_agents(streams: Streams, episodes: list[Flags]) -> None:
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
)  # fmt: skip
def test_any_dtype_and_spec(changes: dict[str, Callable[[Columns], Any]]) -> None:
    data = dataset(columns(3, 1, 4, **changes))
    converted, expected = ours.convert_rlds_to_trajectories(data), theirs.convert_rlds_to_trajectories(data)
    assert converted.element_spec == expected.element_spec
    assert frames(converted) == frames(expected)
    assert ours.create_trajectory_data_spec(data) == theirs.create_trajectory_data_spec(data)


def test_dimensions_that_the_dataset_leaves_open() -> None:
    data = dataset(columns(3, 4)).map(lambda e: {"steps": e["steps"].map(_forget_shape)})
    converted = ours.convert_rlds_to_trajectories(data)
    assert converted.element_spec == theirs.convert_rlds_to_trajectories(data).element_spec
    assert frames(converted) == frames(ours.convert_rlds_to_trajectories(dataset(columns(3, 4))))


def _forget_shape(step: Any) -> Any:
    return step | {"observation": tf.ensure_shape(tf.reshape(step["observation"], tf.range(2, 3)), [None])}


def test_nested_leaves_are_those_of_flat_data() -> None:
    def nested(step: Any) -> Any:
        view = step["observation"]
        return step | {"observation": {"a": view, "b": (view[0], {"c": view[1:]})}, "action": (step["action"], view)}

    episodes = columns(3, 1, 2)
    data = dataset(episodes).map(lambda episode: {"steps": episode["steps"].map(nested)})
    converted = ours.convert_rlds_to_trajectories(data)
    flat = list(theirs.convert_rlds_to_trajectories(dataset(episodes)).as_numpy_iterator())
    for frame, plain in zip(converted.as_numpy_iterator(), flat, strict=True):
        view = plain.observation
        expected = plain._replace(
            observation={"a": view, "b": (view[0], {"c": view[1:]})}, action=(plain.action, view)
        )  # fmt: skip
        tf.nest.assert_same_structure(frame, expected)
        assert _frozen(frame) == _frozen(expected)
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


def info(step: Any, next_step: Any) -> Any:
    if next_step["is_first"]:  # works only with autograph
        value = -next_step["reward"]
    else:
        value = next_step["reward"]
    return {"next_reward": value, "action": step["action"]}


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
        lambda ds: ds.map(lambda frame: frame.observation).prefetch(2).batch(2),
        lambda ds: ds.take(3).concatenate(ds.skip(3)).repeat(2),
        lambda ds: ds.window(2, drop_remainder=True).flat_map(lambda frame: frame.reward.batch(2)),
        lambda ds: tf.data.Dataset.zip((ds, ds)).shuffle(5, seed=1, reshuffle_each_iteration=False),
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
def test_what_is_no_rlds_is_refused_alike(data: tf.data.Dataset, function: str) -> None:
    with pytest.raises((ValueError, TypeError)) as expected:
        getattr(theirs, function)(data)
    with pytest.raises(expected.type, match=re.escape(str(expected.value))):
        getattr(ours, function)(data)
    assert ours.get_rlds_step_features() == theirs.get_rlds_step_features()


# Reverb

FRAME = theirs.create_trajectory_data_spec(dataset(columns(2)))


@pytest.fixture
def table() -> Iterator[Callable[..., reverb.Client]]:
    """Makes a server with a table `t` of that signature."""
    servers = []

    def make(spec: Any = FRAME) -> reverb.Client:
        signature = tensor_spec.add_outer_dim(spec) if spec is not None else None
        servers.append(
            reverb.Server([
                reverb.Table(
                    "t", reverb.selectors.Fifo(), reverb.selectors.Fifo(), max_size=1000,
                    rate_limiter=reverb.rate_limiters.MinSize(1), signature=signature, max_times_sampled=1,
                )
            ])
        )  # fmt: skip
        return reverb.Client(f"127.0.0.1:{servers[-1].port}")

    yield make
    for server in servers:
        server.stop()


def items(client: reverb.Client) -> list[tuple[Any, ...]]:
    """All items of the table, in order; this removes them."""
    size = client.server_info(timeout=10)["t"].current_size
    samples = client.sample("t", size, emit_timesteps=False, unpack_as_table_signature=True) if size else []
    return [_frozen(sample.data) for sample in samples]


OBSERVERS = {
    "pairs": lambda module, client: module.ReverbAddTrajectoryObserver(client, "t", sequence_length=2),
    "padded": lambda module, client: module.ReverbAddTrajectoryObserver(client, "t", 3, pad_end_of_episodes=True),
    "stream": lambda module, client: module.ReverbTrajectorySequenceObserver(client, "t", 3, stride_length=2),
    "episodes": lambda module, client: module.ReverbAddEpisodeObserver(client, "t", max_sequence_length=9),
}


@pytest.mark.parametrize("kind", OBSERVERS)
def test_push_writes_the_same_items(kind: str, table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_blocks, "_BLOCK_LENGTH", 4)
    data, client = dataset(columns(3, 1, 4, 5)), table()
    observer = OBSERVERS[kind](reverb_utils, client)
    assert theirs.push_rlds_to_reverb(data, observer) == 13
    observer.flush()
    expected = items(client)
    assert expected
    for module in (reverb_utils, reverb_observers):
        observer = OBSERVERS[kind](module, client)
        assert ours.push_rlds_to_reverb(data, observer) == 13
        assert items(client) == expected
        observer.close()


def test_an_observer_of_another_class_gets_tensors() -> None:
    class Observer:
        def __init__(self) -> None:
            self.frames: list[Any] = []

        def get_table_signature(self) -> Any:
            return tensor_spec.add_outer_dim(FRAME)

        def __call__(self, frame: Any) -> None:
            assert tf.is_tensor(frame.step_type)
            self.frames.append(_frozen(frame))

    data, mine, upstream = dataset(columns(3, 2)), Observer(), Observer()
    assert ours.push_rlds_to_reverb(data, mine) == theirs.push_rlds_to_reverb(data, upstream) == 5
    assert mine.frames == upstream.frames


@pytest.mark.parametrize("module", [reverb_utils, reverb_observers], ids=["TF-Agents' observer", "our observer"])
def test_a_bad_episode_ends_it_and_leaves_no_frames(module: Any, table: Any) -> None:
    client = table()
    observer = OBSERVERS["pairs"](module, client)
    broken = columns(3, start=10, is_last=lambda e: np.zeros(3, bool), is_terminal=lambda e: np.zeros(3, bool))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Mid step should not be followed by a first step"):
        ours.push_rlds_to_reverb(dataset(columns(3) + broken), observer)
    assert ours.push_rlds_to_reverb(dataset(columns(2, start=20)), observer) == 2
    size = client.server_info(timeout=10)["t"].current_size
    samples = client.sample("t", size, emit_timesteps=False, unpack_as_table_signature=True)
    assert [sample.data.action[:, 0].tolist() for sample in samples] == [[0, 1], [1, 2], [10, 11], [20, 21]]
    observer.close()


def _bounded(spec: Any) -> Any:
    return spec._replace(
        action=tensor_spec.BoundedTensorSpec([1], tf.float32, -1, 1, name="a"), discount=tf.TensorSpec([], tf.float32)
    )


@pytest.mark.parametrize(
    ("signature", "fits"),
    [
        (FRAME, True),
        (_bounded(FRAME), True),
        (FRAME._replace(action=tf.TensorSpec([1], tf.float64)), False),
        (FRAME._replace(action=tf.TensorSpec([], tf.float32)), False),
        (FRAME._replace(observation={"a": FRAME.observation}), False),
        (FRAME._replace(policy_info=tf.TensorSpec([], tf.float32)), False),
        (None, False),
    ],
    ids=["same", "names and bounds", "dtype", "shape", "structure", "policy_info", "none"],
)
def test_a_signature_fits_by_structure_dtype_and_shape(signature: Any, fits: bool, table: Any) -> None:
    observer = OBSERVERS["pairs"](reverb_observers, table(signature))
    if fits:
        assert ours.push_rlds_to_reverb(dataset(columns(3)), observer) == 3
    else:
        with pytest.raises(ValueError, match=r"^Replay buffer table signature spec should match RLDS data spec\.$"):
            ours.push_rlds_to_reverb(dataset(columns(3)), observer)
    observer.close()


@pytest.mark.parametrize(
    ("module", "in_table"),
    [(reverb_utils, True), (reverb_observers, True), (reverb_utils, False)],
    ids=["TF-Agents' observer", "our observer", "not in the table"],
)
def test_policy_info_is_written_where_the_table_has_it(module: Any, in_table: bool, table: Any) -> None:
    data = dataset(columns(2, 1))
    client = table(ours.create_trajectory_data_spec(data, info) if in_table else FRAME)
    observer = OBSERVERS["pairs"](module, client)
    assert ours.push_rlds_to_reverb(data, observer, info) == 3
    (pair,) = theirs.convert_rlds_to_trajectories(data, info).take(2).batch(2).as_numpy_iterator()
    assert items(client) == [_frozen(pair if in_table else pair._replace(policy_info=()))]
    observer.close()
