"""A server's description compared with Reverb's client, and servers that do not answer."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import pytest
from servers import free_port

from rlds_beam.encoding.wire import DATA_TYPES
from rlds_beam.errors import UsageError
from rlds_beam.reverb.connection import Connection, ServerError

DEADLINE = 1.0

DTYPES = (
    "float32",
    "float64",
    "int32",
    "uint8",
    "int16",
    "int8",
    "string",
    "int64",
    "bool",
    "bfloat16",
    "uint16",
    "float16",
    "uint32",
    "uint64",
    "complex64",
    "complex128",
    "qint8",
    "quint8",
    "qint32",
    "qint16",
    "quint16",
    "resource",
    "variant",
    "float8_e5m2",
    "float8_e4m3fn",
    "int4",
    "uint4",
)


def signatures() -> dict[str, Any]:
    import tensorflow as tf
    from tf_agents.specs import tensor_spec
    from tf_agents.trajectories import time_step, trajectory

    def leaf(*shape, dtype="float32"):
        return tf.TensorSpec(shape, dtype)

    observation = {"state": leaf(3), "camera": {"b": leaf(8, 8, 3, dtype="uint8"), "a": leaf(dtype="int64")}}
    action = tensor_spec.BoundedTensorSpec((2,), "float32", -1, [1, 2])
    agent = trajectory.Trajectory(
        step_type=leaf(dtype="int32"),
        observation=observation,
        action=action,
        policy_info=(),
        next_step_type=leaf(dtype="int32"),
        reward=leaf(),
        discount=tensor_spec.BoundedTensorSpec((), "float32", 0, 1),
    )
    point = collections.namedtuple("point", "y x")
    return {
        "leaf": leaf(1, 2),
        "agent": tensor_spec.add_outer_dim(agent),
        "agent_pairs": tensor_spec.add_outer_dim(agent, 2),
        "time_step": time_step.time_step_spec(leaf(300)),
        "policy_info": agent._replace(policy_info={"log_probability": leaf(), "state": (leaf(1), [leaf(2)])}),
        "sequences": [leaf(1), (leaf(2), {"z": leaf(3), "a": leaf(4)}), point(y=leaf(5), x=leaf(6)), [leaf(7)] * 11],
        "empty_parts": ((), {}, [leaf(1)]),
        "sorted": collections.OrderedDict(b=leaf(1), B=leaf(2), a=leaf(3), ä=leaf(4)),
        "dtypes": {dtype: leaf(2, dtype=dtype) for dtype in DTYPES},
        "open": (leaf(None), leaf(None, 4, None), tf.TensorSpec(None), leaf(0), leaf(1 << 40)),
    }


def make_tables() -> list[Any]:
    import reverb

    table, selectors, limiters = reverb.Table, reverb.selectors, reverb.rate_limiters
    kinds = [
        selectors.Uniform,
        lambda: selectors.Prioritized(0.6),
        selectors.Fifo,
        selectors.Lifo,
        selectors.MinHeap,
        selectors.MaxHeap,
    ]
    tables = [
        table(f"{i}", sampler(), remover(), 10 * i + 1, limiters.MinSize(i + 1), max_times_sampled=i)
        for i, (sampler, remover) in enumerate(itertools.product(kinds, kinds))
    ]
    tables += [table.queue("queue", 7), table.stack("stack", (1 << 31) - 1)]
    for name, limiter in {
        "ratio": limiters.SampleToInsertRatio(0.25, 3, 20.5),
        "range": limiters.SampleToInsertRatio(4, 3, (-10.5, 1e300)),
    }.items():
        tables.append(table(name, selectors.Uniform(), selectors.Fifo(), 100, limiter))
    for name, signature in signatures().items():
        tables.append(table(name, selectors.Uniform(), selectors.Fifo(), 100, limiters.MinSize(1), signature=signature))
    return tables


@pytest.fixture(scope="module")
def server():
    import reverb

    server = reverb.Server(make_tables())
    client = reverb.Client(f"localhost:{server.port}")
    for i in range(6):
        client.insert([float(i)], {"queue": 1.0, "stack": 1.0, "0": 1.0, "14": 2.0})
    for name in ("queue", "stack"):
        list(client.sample(name, 3))
    yield client
    server.stop()


def test_every_table_reads_as_reverbs_client_reads_it(server):
    import tensorflow as tf

    def dtype_name(leaf):
        return leaf.dtype.name if leaf.dtype.name in DATA_TYPES else "unknown"

    def leaves(signature):
        # The paths are ours; tf.nest checks them.
        flat = tf.nest.flatten(signature, expand_composites=False)
        return [
            ("unknown", None)
            if not isinstance(leaf, tf.TensorSpec)
            else (dtype_name(leaf), None if leaf.shape.rank is None else tuple(leaf.shape.as_list()))
            for leaf in flat
        ]

    def selector(options):
        kind = options.WhichOneof("distribution")
        return {True: "min_heap", False: "max_heap"}[options.heap.min_heap] if kind == "heap" else kind

    theirs = server.server_info(timeout=60)
    with Connection(server.server_address) as connection:
        ours = connection.info(5)
    assert list(ours.tables) == sorted(theirs)
    for name, table in ours.tables.items():
        expected = theirs[name]
        limiter = expected.rate_limiter_info
        assert table.name == expected.name
        assert table.sampler == selector(expected.sampler_options)
        assert table.remover == selector(expected.remover_options)
        for field in ("max_size", "max_times_sampled", "current_size", "num_episodes", "num_deleted_episodes"):
            assert getattr(table, field) == getattr(expected, field), field
        for field in ("samples_per_insert", "min_diff", "max_diff", "min_size_to_sample"):
            assert getattr(table.limiter, field) == getattr(limiter, field), field
        assert table.limiter.inserts == limiter.insert_stats.completed
        assert table.limiter.samples == limiter.sample_stats.completed
        assert (table.signature is None) == (expected.signature is None)
        if table.signature is not None:
            assert [(leaf.dtype, leaf.shape) for leaf in table.signature] == leaves(expected.signature)
    sizes = [(ours.tables[name].current_size, ours.tables[name].num_deleted_episodes) for name in ("queue", "0", "14")]
    assert sizes == [(3, 3), (1, 5), (6, 0)]


@pytest.mark.parametrize("address", ["", "localhost", ":", "localhost:", ":80x", "a b:1"])
def test_an_address_has_a_port(address):
    with pytest.raises(UsageError, match="expected host:port"):
        Connection(address)


def unanswered(address: str, says: str) -> None:
    with Connection(address) as connection, pytest.raises(ServerError, match=says) as caught:
        connection.info(DEADLINE)
    assert str(caught.value).startswith(address)


def test_no_server_at_the_address():
    unanswered(f"127.0.0.1:{free_port()}", "Connection refused.*rlds-beam serve")
