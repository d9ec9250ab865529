"""The drop-in for TF-Agents' rlds_to_reverb pushes the same items as TF-Agents' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from rlds_streams import columns, dataset, frozen, info

pytest.importorskip("tf_agents")

import reverb
import tensorflow as tf
from tf_agents.replay_buffers import reverb_utils
from tf_agents.replay_buffers import rlds_to_reverb as theirs
from tf_agents.specs import tensor_spec

from rlds_beam.drop_in import reverb_observers
from rlds_beam.drop_in import rlds_to_reverb as ours

FRAME = theirs.create_trajectory_data_spec(dataset(columns(2)))


@pytest.fixture
def table() -> Iterator[Callable[..., reverb.Client]]:
    """Starts a server with a table `t` of this signature."""
    servers = []

    def make(spec: Any = FRAME) -> reverb.Client:
        signature = tensor_spec.add_outer_dim(spec) if spec is not None else None
        servers.append(
            reverb.Server(
                [
                    reverb.Table(
                        "t",
                        reverb.selectors.Fifo(),
                        reverb.selectors.Fifo(),
                        max_size=1000,
                        rate_limiter=reverb.rate_limiters.MinSize(1),
                        signature=signature,
                        max_times_sampled=1,
                    )
                ]
            )
        )
        return reverb.Client(f"127.0.0.1:{servers[-1].port}")

    yield make
    for server in servers:
        server.stop()


def items(client: reverb.Client) -> list[tuple[Any, ...]]:
    """Removes and returns all items of the table, in order."""
    size = client.server_info(timeout=60)["t"].current_size
    samples = client.sample("t", size, emit_timesteps=False, unpack_as_table_signature=True) if size else []
    return [frozen(sample.data) for sample in samples]


OBSERVERS = {
    "pairs": lambda module, client: module.ReverbAddTrajectoryObserver(client, "t", sequence_length=2),
    "padded": lambda module, client: module.ReverbAddTrajectoryObserver(client, "t", 3, pad_end_of_episodes=True),
    "stream": lambda module, client: module.ReverbTrajectorySequenceObserver(client, "t", 3, stride_length=2),
    "episodes": lambda module, client: module.ReverbAddEpisodeObserver(client, "t", max_sequence_length=9),
}


@pytest.mark.parametrize("kind", OBSERVERS)
def test_push_writes_the_same_items(kind: str, table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "_BLOCK_LENGTH", 4)
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
            self.frames.append(frozen(frame))

    data, mine, upstream = dataset(columns(3, 2)), Observer(), Observer()
    assert ours.push_rlds_to_reverb(data, mine) == theirs.push_rlds_to_reverb(data, upstream) == 5
    assert mine.frames == upstream.frames


@pytest.mark.parametrize("module", [reverb_utils, reverb_observers], ids=["TF-Agents' observer", "our observer"])
def test_a_bad_episode_ends_the_push_and_leaves_no_frames(module: Any, table: Any) -> None:
    client = table()
    observer = OBSERVERS["pairs"](module, client)
    broken = columns(3, start=10, is_last=lambda e: np.zeros(3, bool), is_terminal=lambda e: np.zeros(3, bool))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Mid step should not be followed by a first step"):
        ours.push_rlds_to_reverb(dataset(columns(3) + broken), observer)
    assert ours.push_rlds_to_reverb(dataset(columns(2, start=20)), observer) == 2
    size = client.server_info(timeout=60)["t"].current_size
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
    [(reverb_observers, True), (reverb_utils, False)],
    ids=["our observer", "TF-Agents' observer, not in the table"],
)
def test_policy_info_is_written_if_the_table_has_it(module: Any, in_table: bool, table: Any) -> None:
    data = dataset(columns(2, 1))
    client = table(ours.create_trajectory_data_spec(data, info) if in_table else FRAME)
    observer = OBSERVERS["pairs"](module, client)
    assert ours.push_rlds_to_reverb(data, observer, info) == 3
    (pair,) = theirs.convert_rlds_to_trajectories(data, info).take(2).batch(2).as_numpy_iterator()
    assert items(client) == [frozen(pair if in_table else pair._replace(policy_info=()))]
    observer.close()
