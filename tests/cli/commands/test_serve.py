"""Served tables, which TF-Agents can use, and the server process."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("reverb")

from serving import Serve, a_table, refused

from rlds_beam.cli.commands.serve import read_spec
from rlds_beam.encoding.wire import SignatureLeaf
from rlds_beam.reverb.connection import Connection
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.trajectories.options import FrameOptions
from rlds_beam.trajectories.spec import TrajectorySpec

KINDS = "replay:uniform,all:prioritized:1000,line:queue:100,pile:stack:100"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("rlds"), [make_episode(5, seed=i) for i in range(4)])


@pytest.fixture(scope="module")
def spec(dataset) -> TrajectorySpec:
    return read_spec(str(dataset), FrameOptions())


@pytest.fixture(scope="module")
def served(dataset) -> Iterator[Serve]:
    with Serve(f"--like={dataset}", f"--tables={KINDS}") as command:
        yield command.wait_ready(4)


def signature_leaves(spec: TrajectorySpec) -> tuple[SignatureLeaf, ...]:
    """The signature of tables served for `spec`."""
    return tuple(SignatureLeaf(leaf.path, leaf.dtype, (None, *leaf.shape)) for leaf in spec.leaves)


# Tables


def test_prints_the_tables_and_who_can_reach_them(served):
    assert "for every client that can reach this machine" in served.text
    for line in (
        "replay: uniform, 0 items of at most 1,000,000,000",
        "all: prioritized, 0 items of at most 1,000",
        "line: queue, 0 items of at most 100",
        "pile: stack, 0 items of at most 100",
    ):
        assert line in served.text


def test_table_kinds_equal_those_of_reverb_and_the_tf_agents_tutorials(served):
    """uniform: tf_agents/examples/sac/haarnoja18/sac_train_eval.py."""
    import reverb

    theirs = [
        a_table("replay", max_size=10**9),
        a_table("all", sampler=reverb.selectors.Prioritized(1.0)),
        reverb.Table.queue("line", 100),
        reverb.Table.stack("pile", 100),
    ]
    ours = reverb.Client(served.address).server_info(timeout=60)
    for table in theirs:
        expected, found = (dataclasses.asdict(i) for i in (table.info, ours[table.name]))
        for field in ("sampler_options", "remover_options", "max_size", "max_times_sampled"):
            assert found[field] == expected[field], (table.name, field)
        for field in ("samples_per_insert", "min_diff", "max_diff", "min_size_to_sample"):
            limits = (getattr(i["rate_limiter_info"], field) for i in (expected, found))
            assert len(set(limits)) == 1, (table.name, field)


def test_tf_agents_pushes_into_it_and_its_replay_buffer_samples_from_it(served, dataset, spec):
    import reverb
    import tensorflow_datasets as tfds
    from tf_agents.replay_buffers import reverb_replay_buffer, reverb_utils, rlds_to_reverb

    episodes = tfds.builder_from_directory(str(dataset)).as_dataset(split="train")
    observer = reverb_utils.ReverbAddTrajectoryObserver(
        reverb.Client(served.address), ["replay", "all"], sequence_length=2
    )
    # Raises unless the tables' signature equals the spec of the data, including names and bounds.
    assert rlds_to_reverb.push_rlds_to_reverb(episodes, observer) == 20
    observer.close()
    assert Connection(served.address).info(10).tables["all"].signature == signature_leaves(spec)

    buffer = reverb_replay_buffer.ReverbReplayBuffer(
        spec.to_tf(per_frame=True), table_name="replay", sequence_length=2, server_address=served.address
    )
    assert buffer.num_frames() == 4 * 4
    batch, _ = next(iter(buffer.as_dataset(sample_batch_size=8, num_steps=2)))
    assert batch.observation.shape == (8, 2, 3)
    seen = np.concatenate([make_episode(5, seed=i).steps["observation"] for i in range(4)])
    assert {row.tobytes() for row in batch.observation.numpy().reshape(-1, 3)} <= {row.tobytes() for row in seen}


def test_a_converted_dataset_gives_the_same_tables(convert_only, dataset, spec, capsys):
    converted = convert_only(dataset, "--items=sequences", "--sequence_length=3").output
    assert signature_leaves(read_spec(str(converted), FrameOptions())) == signature_leaves(spec)
    text = refused(capsys, f"--like={converted}", "--last_step=absorbing")
    assert "--last_step" in text and "already converted" in text


# Network access


def test_a_port_that_is_taken(served, dataset, capsys):
    """Reverb itself would start and share clients with the other server."""
    port = served.address.rpartition(":")[2]
    text = refused(capsys, f"--like={dataset}", f"--port={port}")
    assert text.startswith(f"rlds-beam: --port={port}: another process listens on it")


# The process


def test_a_server_that_is_killed_ends_the_command(dataset) -> None:
    with Serve(f"--like={dataset}") as command:
        command.wait_ready(1)
        os.kill(command.server, signal.SIGKILL)
        code, out, err = command.end()
    assert (code, out) == (1, "")
    assert err.startswith("rlds-beam: the Reverb server ended, and its items are lost: exit code -9")


def test_ctrl_c_ends_it(served):
    """The last test that uses this server."""
    server = served.server
    (ignored,) = re.findall(r"SigIgn:\s+(\w+)", Path(f"/proc/{server}/status").read_text())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a terminal signals both processes
        assert int(ignored, 16) >> number - 1 & 1
    assert served.end(signal.SIGINT) == (0, "", "")
    assert not os.path.exists(f"/proc/{server}")
