"""Our implementation of Reverb's insert protocol, compared with Reverb's own clients."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("reverb")

import reverb
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import drain

from rlds_beam.encoding.wire import DATA_TYPES
from rlds_beam.errors import NotVerifiedError
from rlds_beam.reverb.encoding import ItemEncoder
from rlds_beam.reverb.inserts import Request
from rlds_beam.reverb.priorities import ConstantPriority
from rlds_beam.reverb.stream import InsertStream
from rlds_beam.reverb.target import ReverbTarget
from rlds_beam.reverb.writer import RequestEncoder, StreamWriter
from rlds_beam.testing import make_episode
from rlds_beam.trajectories.frames import to_frames
from rlds_beam.trajectories.items import ItemMaker, Items, Windows
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec

DTYPES = [name for name in DATA_TYPES if name not in ("string", "bfloat16")]


@pytest.fixture(scope="module")
def server():
    """A server with many tables, which return each item once, in order."""
    tables = [
        reverb.Table(
            f"t{i}",
            reverb.selectors.Fifo(),
            reverb.selectors.Fifo(),
            10_000_000,
            reverb.rate_limiters.MinSize(1),
            max_times_sampled=1,
        )
        for i in range(3)
    ]
    running = reverb.Server(tables)
    yield f"127.0.0.1:{running.port}"
    running.stop()


@pytest.fixture(scope="module")
def stream(server):
    opened = InsertStream(server, timeout=10)
    yield opened
    opened.close()


def spec_of(items: Items) -> TrajectorySpec:
    leaves = []
    for path, column in items.frames.columns.items():
        assert isinstance(column, np.ndarray)
        leaves.append(SpecLeaf(path, column.dtype.name, column.shape[1:]))
    return TrajectorySpec(tuple(leaves), (None,))


def target_of(server: str, items: Items, options: ItemOptions, tables: Any = ("t0",), **more: Any) -> ReverbTarget:
    given = {"salt": "", "priority": ConstantPriority(1.5), "timeout": 10.0, **more}
    return ReverbTarget(servers=(server,), tables=tables, spec=spec_of(items), items=options, **given)


def encoded(encoder: ItemEncoder, *args: Any, **kwargs: Any) -> list[Request]:
    return encoder.encode([encoder.cut(*args, **kwargs)])


seeds = itertools.count()
modes = st.sampled_from(
    [{}, {"pad_end_of_episodes": True}, {"pad_end_of_episodes": True, "tile_end_of_episodes": True}]
)
sequences = st.builds(
    lambda length, stride, mode, across: ItemOptions(
        items="sequences", sequence_length=length, stride_length=stride, across_episodes=across, **mode
    ),
    st.integers(1, 9),
    st.integers(1, 9),
    modes,
    st.booleans(),
)
kinds = st.sampled_from([ItemOptions(items=kind) for kind in ("pairs", "episodes", "frames")])


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    options=st.one_of(sequences, kinds),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    chunk_length=st.none() | st.integers(1, 12),
)
def test_reverb_samples_the_items_that_were_made(server, options, lengths, chunk_length) -> None:
    """Pairs, sequences, padded, tiled, across episodes, whole episodes, nested; for any chunk length."""
    maker, made = ItemMaker(options), []
    for length in lengths:
        episode = make_episode(length, seed=next(seeds), observation={"b": 2, "a": ()}, action={"x": (2, 3)})
        made.append(maker.push(to_frames(episode, FrameOptions())))
    made += [items for items in [maker.finish()] if items is not None]
    writer = StreamWriter(target_of(server, made[0], options, chunk_length=chunk_length))
    for items in made:
        writer.write(writer.encode(items))
    writer.flush()
    writer.close()
    assert writer.acknowledged[server] == sum(map(len, made))
    sampled = iter(drain(server, "t0"))
    for items in made:
        for k in range(len(items)):
            item = next(sampled)
            assert item.info.priority == 1.5
            for path, column in zip(items.frames.columns, item.data, strict=True):
                np.testing.assert_array_equal(column, np.asarray(items.gather(path))[k])
    assert next(sampled, None) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_equals_that_of_reverbs_writer(server, stream, dtype: str) -> None:
    numpy_dtype = SpecLeaf("x", dtype, ()).numpy_dtype
    for shape in ((), (3,), (2, 2), (0,), (2, 3, 1)):
        values = np.random.default_rng(7).integers(0, 2, (7, *shape)).astype(numpy_dtype)
        encoder = ItemEncoder([(numpy_dtype, shape)], ["t0"], chunk_length=3)
        for request in encoded(
            encoder,
            [values],
            Windows(0, 3, 3, 2, 7),
            priorities=np.ones(3),
            seeds=[next(seeds)],
            chunk_seed=next(seeds),
            episode_id=next(seeds) + 1,
        ):
            stream.send(request)
        stream.flush()
        with reverb.Client(server).trajectory_writer(num_keep_alive_refs=7) as writer:
            for i, value in enumerate(values):
                writer.append([tf.constant(value)])
                if i in (2, 4, 6):
                    writer.create_item("t1", trajectory=[writer.history[0][-3:]], priority=1.0)
            writer.flush(timeout_ms=10_000)
        ours, theirs = drain(server, "t0"), drain(server, "t1")
        assert len(ours) == len(theirs) == 3
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.data[0].dtype == other.data[0].dtype == numpy_dtype
            np.testing.assert_array_equal(mine.data[0], other.data[0])


def test_bfloat16_which_only_tensorflow_can_read(server, stream) -> None:
    """Reverb's Python client does not support it; its dataset does."""
    dtype = SpecLeaf("x", "bfloat16", ()).numpy_dtype
    values = np.arange(12).reshape(6, 2).astype(dtype)
    encoder = ItemEncoder([(dtype, (2,))], ["t0"], chunk_length=2)
    for request in encoded(
        encoder,
        [values],
        Windows(0, 2, 3, 3, 6),
        priorities=np.ones(2),
        seeds=[next(seeds)],
        chunk_seed=next(seeds),
        episode_id=next(seeds) + 1,
    ):
        stream.send(request)
    stream.flush()
    dataset = reverb.TrajectoryDataset(
        server, "t0", dtypes=(tf.bfloat16,), shapes=(tf.TensorShape([3, 2]),), max_in_flight_samples_per_worker=1
    )
    got = [sample.data[0].numpy() for sample in dataset.take(2)]
    np.testing.assert_array_equal(np.concatenate(got).astype(np.float32), values.astype(np.float32))


def test_episodes_are_counted_as_reverb_counts_them(server, stream) -> None:
    encoder = ItemEncoder([(np.dtype("float32"), ())], ["t2"], chunk_length=2)
    client = reverb.Client(server)
    before = client.server_info(timeout=60)["t2"].num_episodes
    for episode in range(5):
        for request in encoded(
            encoder,
            [np.arange(6, dtype=np.float32)],
            Windows(0, 5, 2, 1, 6),
            priorities=np.ones(5),
            seeds=[next(seeds)],
            chunk_seed=next(seeds),
            episode_id=1000 + episode,
        ):
            stream.send(request)
    stream.flush()
    info = client.server_info(timeout=60)["t2"]
    assert (info.num_episodes - before, info.current_size) == (5, 25)
    drain(server, "t2")


def test_single_frames_can_be_squeezed(server, stream) -> None:
    encoder = ItemEncoder([(np.dtype("float32"), (2,)), (np.dtype("int32"), ())], ["t0"], 4, squeeze=True)
    columns = [np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6, dtype=np.int32)]
    for request in encoded(
        encoder,
        columns,
        Windows(0, 6, 1, 1, 6),
        priorities=np.ones(6),
        seeds=[next(seeds)],
        chunk_seed=next(seeds),
        episode_id=next(seeds) + 1,
    ):
        stream.send(request)
    stream.flush()
    for k, item in enumerate(drain(server, "t0")):
        assert [column.shape for column in item.data] == [(2,), ()]
        np.testing.assert_array_equal(item.data[0], columns[0][k])
        assert item.data[1] == k


def test_repeated_items_change_nothing_and_other_frames_are_new_items(server) -> None:
    options = ItemOptions()
    maker = ItemMaker(options)
    first, again, other = (
        maker.push(to_frames(make_episode(8, seed=3, columns={"reward": np.full(8, reward, "f4")}), FrameOptions()))
        for reward in (1, 1, 2)
    )
    writer = StreamWriter(target_of(server, first, options, ("t0", "t1")))
    client = reverb.Client(server)
    sizes = []
    for items in (first, again, other, again):
        writer.write(writer.encode(items))
        writer.flush()
        info = client.server_info(timeout=60)
        sizes.append((info["t0"].current_size, info["t1"].current_size))
    writer.close()
    assert sizes == [(7, 7), (7, 7), (14, 14), (14, 14)]
    assert {len(drain(server, table)) for table in ("t0", "t1")} == {14}


def test_keys_differ_by_episode_table_number_and_configuration() -> None:
    options, maker = ItemOptions(), ItemMaker(ItemOptions())
    keys: set[int] = set()
    count = 0
    for seed, salt, tables in itertools.product((1, 2), ("", "other"), (("a",), ("b", "c"))):
        items = maker.push(to_frames(make_episode(9, seed=seed), FrameOptions()))
        target = target_of("s:1", items, options, tables, salt=salt)
        encoder = RequestEncoder(target)
        requests = encoder.requests([encoder.encode(items).cut])
        keys |= {int(key) for request in requests for key in request.keys}
        count += 8 * len(tables)
    assert len(keys) == count


def test_an_episode_goes_to_one_server_for_any_server_order() -> None:
    items = ItemMaker(ItemOptions()).push(to_frames(make_episode(3), FrameOptions()))
    servers = ("a:1", "b:1", "c:1")
    target = target_of("", items, ItemOptions())
    targets = [dataclasses.replace(target, servers=order) for order in itertools.permutations(servers)]
    chosen = []
    for seed in range(300):
        key = make_episode(3, seed=seed).key
        (server,) = {target.choose_server(key) for target in targets}
        chosen.append(server)
    assert all(70 < chosen.count(server) < 130 for server in servers)


def test_a_request_contains_all_that_its_items_need(server) -> None:
    """Each request can be sent alone on a new connection, in any order."""
    frames = 5000
    columns = [np.random.default_rng(0).standard_normal((frames, 400)).astype(np.float32)]
    encoder = ItemEncoder([(np.dtype("float32"), (400,))], ["t0"], chunk_length=32)
    requests = encoded(
        encoder,
        columns,
        Windows(0, frames - 2, 3, 1, frames),
        priorities=np.ones(frames - 2),
        seeds=[next(seeds)],
        chunk_seed=next(seeds),
        episode_id=next(seeds) + 1,
    )
    assert len(requests) > 2
    for request in reversed(requests):
        one = InsertStream(server, timeout=10)
        one.send(request)
        one.flush()
        one.close()
    sampled = drain(server, "t0")
    assert len(sampled) == frames - 2
    starts = sorted(tuple(item.data[0][0][:3].tolist()) for item in sampled)
    assert starts == sorted(tuple(row[:3].tolist()) for row in columns[0][: frames - 2])


def test_a_missing_table_is_reported_by_the_server(server) -> None:
    encoder = ItemEncoder([(np.dtype("float32"), ())], ["nope"], 4)
    opened = InsertStream(server, timeout=10)
    (request,) = encoded(
        encoder,
        [np.zeros(3, np.float32)],
        Windows(0, 2, 2, 1, 3),
        priorities=np.ones(2),
        seeds=[1],
        chunk_seed=1,
        episode_id=1,
    )
    opened.send(request)
    with pytest.raises(NotVerifiedError, match="nope was not found"):
        opened.flush()
    opened.close()
