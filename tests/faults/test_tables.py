"""Fault cases 25 and 26, through the real command: tables that are full, that block, or that do not match."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("reverb")

import reverb
import tensorflow as tf
from pushes import PAIRS, look, size
from servers import tight

from rlds_beam.formats.inputs import open_source
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.trajectories.spec import TrajectorySpec, trajectory_spec


class TestNoRoom:
    """Case 25: a table that would drop items or make the writer wait is refused, unless an option allows it."""

    def test_25_too_small(self, push, table) -> None:
        address = table(tight(100))
        push(address).assert_refused(
            address,
            f"'t' has 0 of at most 100 items; {PAIRS:,} more would silently drop {PAIRS - 100:,}",
            f"serve --tables=t:uniform:{PAIRS}",
            "--allow_eviction",
        )
        assert look(address).limiter.inserts == 0
        check = push(address, "--allow_eviction").assert_clean()
        assert (check["inserted"], check["size"]) == (PAIRS, 100)
        assert check["note"].startswith(f"{PAIRS - 100:,} items were dropped")

    def test_25_a_limiter_that_would_wait(self, push, table) -> None:
        ratio = reverb.rate_limiters.SampleToInsertRatio(1.0, 10, 20.0)
        uniform, fifo = reverb.selectors.Uniform(), reverb.selectors.Fifo()
        address = table(reverb.Table.queue("t", 50), reverb.Table("ratio", uniform, fifo, 10**6, ratio))
        for name, room in {"t": 50, "ratio": 30}.items():
            ran = push(address, table=name)
            ran.assert_refused(f"'{name}' admits {room} of {PAIRS:,} items", "--allow_blocking", "uniform")
            assert look(address, name).limiter.inserts == 0
            push(address, "--allow_blocking", "--timeout=1", table=name).assert_not_verified(
                "no item was acknowledged for 1 s", "rate limiter"
            )
            assert size(address, name) == room


def _spec(data: Path) -> TrajectorySpec:
    return trajectory_spec(open_source(str(data)).schema, FrameOptions(), ItemOptions())


class TestOtherTables:
    """Case 26: a table with another signature or name is refused, and nothing is written."""

    @pytest.fixture(scope="class")
    def server(self, data):
        """Tables that almost match."""
        right = _spec(data).to_tf()
        other = tf.TensorSpec
        signatures = {
            "replay": right,
            "dtype": right._replace(action=other((2, 2), tf.float64)),
            "shape": right._replace(observation=other((2, 9), tf.float32)),
            "length": tf.nest.map_structure(lambda leaf: other((5, *leaf.shape[1:]), leaf.dtype), right),
            "more": right._replace(policy_info={"log_prob": other((2,), tf.float32)}),
            "fewer": right._replace(reward=()),
            "order": tuple(reversed(tf.nest.flatten(right))),
        }
        fifo = reverb.selectors.Fifo
        server = reverb.Server(
            [
                reverb.Table(name, fifo(), fifo(), 10**6, reverb.rate_limiters.MinSize(1), signature=signature)
                for name, signature in signatures.items()
            ]
        )
        yield f"127.0.0.1:{server.port}"
        server.stop()

    @pytest.mark.parametrize(
        ("table", "mentioned"),
        [
            ("dtype", ("action: the table has float64[2, 2], the dataset float32[2, 2]", "--cast=action=")),
            ("shape", ("observation: the table has float32[2, 9], the dataset float32[2, 128]",)),
            ("length", ("step_type: the table has int32[5]", "--items=sequences --sequence_length=5")),
            ("more", ("it needs policy_info/log_prob", "--policy_info_fields=log_prob")),
            ("fewer", ("it has no reward",)),
            ("order", ("the table has", "the dataset ")),
        ],
    )
    def test_26_another_signature(self, push, server, table, mentioned) -> None:
        for writer in ("stream", "observer") if table == "dtype" else ("stream",):
            said = f"table '{table}' does not match these items"
            push(server, f"--writer={writer}", table=table).assert_refused(
                server, said, *mentioned, "rlds-beam serve --like"
            )
            assert look(server, table).limiter.inserts == 0

    @pytest.mark.parametrize("writer", ["stream", "observer"])
    def test_26_no_such_table(self, push, server, writer) -> None:
        ran = push(server, f"--writer={writer}", table="replays")
        ran.assert_refused(server, "no table 'replays'; did you mean replay?")
        ran = push(server, f"--writer={writer}", table="replay,nope")
        ran.assert_refused("no table 'nope'. It has: dtype, fewer")
        assert look(server, "replay").limiter.inserts == 0
