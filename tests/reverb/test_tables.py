"""Tables before and after a job: errors before anything is sent, and failures of the final verification."""

from __future__ import annotations

import dataclasses
import pickle
import re
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import ServerProcess, free_port

from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.reverb.connection import Limiter, ServerInfo, TableInfo
from rlds_beam.reverb.inserts import Request, Slices, chunks, items
from rlds_beam.reverb.stream import InsertStream
from rlds_beam.reverb.tables import Baseline, TableCheck, ask, check_tables, compare_tables, have_room
from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec

TIMEOUT = 20.0


LEAVES = (
    SpecLeaf("step_type", "int32", ()),
    SpecLeaf("observation/image", "uint8", (4, 4, 3), "png"),
    SpecLeaf("observation/state", "float64", (3,)),
    SpecLeaf("action", "float32", (2,)),
    SpecLeaf("next_step_type", "int32", ()),
    SpecLeaf("reward", "float32", ()),
    SpecLeaf("discount", "float32", ()),
)


SPEC = TrajectorySpec(LEAVES, (2,))


def spec_with(*leaves: SpecLeaf, length: int = 2) -> TrajectorySpec:
    """SPEC with these leaves added; leaves with the same path are replaced."""
    replaced = {leaf.path: leaf for leaf in (*LEAVES, *leaves)}
    order = ("step_type", "observation", "action", "policy_info", "next_step_type", "reward", "discount")
    return TrajectorySpec(
        tuple(sorted(replaced.values(), key=lambda leaf: (order.index(leaf.path.split("/")[0]), leaf.path))), (length,)
    )


def signature(outer: tuple[int | None, ...] | None = None, spec: TrajectorySpec = SPEC) -> Any:
    outer = spec.item_shape if outer is None else outer
    return TrajectorySpec(spec.leaves, outer).to_tf()


def table(name: str, max_size: int = 100, **options: Any) -> Any:
    import reverb

    options = {"rate_limiter": reverb.rate_limiters.MinSize(1), **options}
    return reverb.Table(name, reverb.selectors.Uniform(), reverb.selectors.Fifo(), max_size, **options)


def make_tables() -> list[Any]:
    import reverb
    import tensorflow as tf

    ratio = reverb.rate_limiters.SampleToInsertRatio
    nest, leaves = tf.nest.map_structure, tuple(tf.nest.flatten(signature()))
    signatures = {
        "pairs": signature(),
        "any_length": signature((None,)),
        "five": signature((5,)),
        "one": signature((1,)),
        "frames": signature(()),
        "flat": leaves,
        "short": leaves[:3],
        "open": nest(lambda leaf: tf.TensorSpec(None, leaf.dtype), signature()),
        "open_sizes": nest(lambda leaf: tf.TensorSpec([None] * leaf.shape.rank, leaf.dtype), signature()),
    }
    return [
        table("unsigned"),
        *(table(name, signature=spec) for name, spec in signatures.items()),
        table("small", 10),
        table("full", 10),
        table("used", 100),
        table("once", 100, max_times_sampled=1),
        reverb.Table.queue("queue", 10),
        reverb.Table.stack("stack", 10),
        table("ratio", rate_limiter=ratio(2.0, 3, (0, 20.0))),
        table("deep", 5, rate_limiter=ratio(1.0, 50, (0, 60.0))),
        table("brim", 5, rate_limiter=ratio(1.0, 5, (0, 20.0))),
        *(table(f"free{i}") for i in range(8)),
        *(table(f"tight{i}", 10) for i in range(3)),
    ]


def push(address: str, name: str, keys: range) -> int:
    """Inserts one-number items with these keys into a table; returns how many were acknowledged."""
    if not keys:
        return 0
    ids = np.array(keys, np.uint64)
    at = np.arange(len(ids))[:, None]
    slices = Slices(np.full_like(at, keys[0] + 1, np.uint64), at, np.ones_like(at))
    rows = items(name, ids, np.ones(len(ids)), slices, 1)
    (chunk,) = chunks(np.array([keys[0] + 1], np.uint64), [np.array(keys, np.int64)], len(keys), 7, 0)
    stream = InsertStream(address, timeout=TIMEOUT)
    try:
        stream.send(Request([*chunk.parts, rows.tobytes()], ids))
        stream.flush()
        return stream.acknowledged
    finally:
        stream.close()


def look(
    address: str, name: str, spec: TrajectorySpec = SPEC, predicted: int | None = None, **options: Any
) -> Baseline:
    counts = None if predicted is None else {address: predicted}
    return check_tables([address], [name], spec, counts, TIMEOUT, **options)


@pytest.fixture(scope="module")
def client():
    import reverb

    server = reverb.Server(make_tables())
    yield reverb.Client(f"127.0.0.1:{server.port}")
    server.stop()


@pytest.fixture(scope="module")
def address(client) -> str:
    return client.server_address


def refused(*arguments: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        look(*arguments, **options)
    assert str(caught.value).startswith(arguments[0])
    return str(caught.value)


def check(before: Baseline, predicted: int, acknowledged: int) -> TableCheck:
    (server,) = before.servers
    (only,) = compare_tables(before, ask([server], TIMEOUT), {server: predicted}, {server: acknowledged})
    return only


class TestReachable:
    def test_no_server_at_the_address(self):
        address, message = f"127.0.0.1:{free_port()}", "no Reverb server answers"
        with pytest.raises(UsageError, match=f"{address}: {message}"):
            check_tables([address], ["pairs"], SPEC, None, 1)

    def test_one_server_under_two_names(self, address):
        other = address.replace("127.0.0.1", "localhost")
        with pytest.raises(UsageError, match=f"{other} and {address} are the same server; name it once"):
            check_tables([address, other], ["pairs"], SPEC, None, TIMEOUT)

    def test_no_such_table(self, address):
        message = refused(address, "pears")
        assert "no table 'pears'; did you mean pairs? It has: any_length, brim, deep, five, flat" in message
        assert "did you mean" not in refused(address, "xyz123")


class TestSignature:
    @pytest.mark.parametrize("name", ["unsigned", "pairs", "any_length", "flat", "open", "open_sizes"])
    def test_fits(self, address, name):
        assert look(address, name).squeeze is False

    def test_whole_episodes(self, address):
        spec = TrajectorySpec(LEAVES, (None,))
        look(address, "any_length", spec)
        message = refused(address, "pairs", spec)
        assert "observation/state: the table has float64[2, 3], the dataset float64[None, 3]" in message
        assert "Add --items=pairs; or `rlds-beam serve --like=INPUT --tables=pairs`" in message

    def test_single_frames_come_with_a_time_axis_or_without(self, address):
        spec = TrajectorySpec(LEAVES, ())
        squeezed = {
            name: look(address, name, spec).squeeze for name in ("frames", "one", "any_length", "unsigned", "open")
        }
        assert squeezed == {"frames": True, "one": False, "any_length": False, "unsigned": True, "open": True}
        assert check_tables([address], ["unsigned", "one"], spec, None, TIMEOUT).squeeze is False
        with pytest.raises(UsageError, match=r"table 'frames' needs single frames .* other tables .* separately"):
            check_tables([address], ["one", "frames"], spec, None, TIMEOUT)

    @pytest.mark.parametrize(
        ("name", "outer", "flag"),
        [
            ("five", (2,), "--items=sequences --sequence_length=5"),
            ("pairs", (5,), "--items=pairs"),
            ("one", (2,), "--items=frames"),
            ("frames", (2,), "--items=frames"),
            ("pairs", (), "--items=pairs"),
        ],
    )
    def test_items_of_another_length(self, address, name, outer, flag):
        message = refused(address, name, TrajectorySpec(LEAVES, outer))
        assert message.startswith(
            f"{address}: table {name!r} does not match these items: step_type: the table has int32["
        )
        assert f"and 3 more leaves. Add {flag}; or `rlds-beam serve --like=INPUT --tables={name}`" in message

    def test_other_dtypes_are_cast(self, address):
        spec = spec_with(SpecLeaf("observation/state", "float32", (3,)), SpecLeaf("reward", "float64", ()))
        message = refused(address, "pairs", spec)
        assert "observation/state: the table has float64[2, 3], the dataset float32[2, 3]; reward:" in message
        assert "Add --cast=observation/state=float64,reward=float32; or" in message
        assert "action" not in message
        assert refused(address, "flat", spec).count("--cast=observation/state=float64,reward=float32") == 1

    def test_other_leaves(self, address):
        more = refused(address, "pairs", spec_with(SpecLeaf("observation/depth", "uint8", (4, 4, 1))))
        assert "it has no observation/depth. Add --observation_fields=image,state; or" in more
        less = refused(address, "pairs", TrajectorySpec(LEAVES[:1] + LEAVES[2:], (2,)))
        assert "it needs observation/image. `rlds-beam serve" in less
        renamed = [dataclasses.replace(leaf, path=leaf.path.replace("state", "joints")) for leaf in LEAVES]
        both = refused(address, "pairs", TrajectorySpec(tuple(renamed), (2,)))
        assert "it needs observation/state; it has no observation/joints. `rlds-beam serve" in both
        look(address, "flat", TrajectorySpec(tuple(renamed), (2,)))  # without field names

    def test_policy_info(self):
        import reverb

        spec = spec_with(SpecLeaf("policy_info/log_probability", "float32", ()))
        server = reverb.Server([table("pairs", signature=signature(spec=spec))])
        message = refused(f"127.0.0.1:{server.port}", "pairs")
        server.stop()
        assert "it needs policy_info/log_probability. Add --policy_info_fields=log_probability; or" in message


class TestRoom:
    def test_a_full_table_would_drop_items(self, client, address):
        look(address, "small", predicted=10)
        message = refused(address, "small", predicted=11)
        assert "table 'small' has 0 of at most 10 items; 11 more would silently drop 1" in message
        assert "serve --tables=small:uniform:11" in message
        before = look(address, "small", predicted=11, allow_eviction=True)
        assert before.allow_eviction
        # Reverb agrees.
        assert push(address, "small", range(11)) == 11
        assert client.server_info(timeout=60)["small"].current_size == 10
        assert "has 10 of at most 10 items; 1 more would silently drop 1" in refused(address, "small", predicted=1)
        look(address, "small", predicted=0)
        look(address, "small")

    @pytest.mark.parametrize(("name", "room"), [("queue", 10), ("stack", 10), ("ratio", 10)])
    def test_a_limiter_that_would_wait(self, address, name, room):
        look(address, name, predicted=room)
        message = refused(address, name, predicted=room + 1)
        assert f"the rate limiter of table {name!r} admits {room} of {room + 1} items and then blocks" in message
        assert f"serve --tables={name}:uniform:{room + 1}" in message
        assert "rate limiter" in refused(address, name, predicted=room + 1, allow_eviction=True)
        look(address, name, predicted=room + 1, allow_blocking=True)  # a queue drops nothing: it waits

    def test_have_room(self, address):
        for name, room in {"queue": 10, "ratio": 10, "full": 10}.items():
            before = look(address, name)
            assert have_room(before, {address: room})
            assert not have_room(before, {address: room + 1})
            assert have_room(before, {"elsewhere:1": room + 1})

    @given(
        spi=st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0]),
        minimum=st.integers(1, 6),
        buffer=st.integers(3, 12),
        max_size=st.integers(1, 12),
        start=st.integers(0, 6),
        more=st.integers(0, 12),
    )
    def test_the_closed_form_is_the_limiters_own_rule(self, spi, minimum, buffer, max_size, start, more):
        inserts = size = deletes = 0
        max_diff = spi * minimum + buffer

        def insert() -> bool:  # RateLimiter::CanInsert, Table::InsertOrAssignInternal
            nonlocal inserts, size, deletes
            if inserts + 1 - deletes > minimum and (inserts + 1) * spi > max_diff:
                return False
            deletes += size == max_size
            size, inserts = min(size + 1, max_size), inserts + 1
            return True

        start = sum(insert() for _ in range(start))
        limiter = Limiter(spi, spi * minimum - buffer, max_diff, minimum, inserts, 0)
        info = TableInfo("t", "uniform", "fifo", max_size, 0, size, 0, 0, limiter, None)
        before = Baseline({"s:1": ServerInfo(1, {"t": info})}, ("t",))
        fits = have_room(before, {"s:1": more})
        dropped = deletes
        assert fits == (sum(insert() for _ in range(more)) == more and deletes == dropped)


class TestVerify:
    def test_everything_is_in_the_table(self, address):
        before = look(address, "free0", predicted=30)
        assert pickle.loads(pickle.dumps(before)) == before
        assert before.state_ids == {address: ask([address], TIMEOUT)[address].state_id}
        result = check(before, 30, push(address, "free0", range(30)))
        counts = {"predicted": 30, "acknowledged": 30, "inserted": 30, "already_there": 0, "size": 30, "episodes": 1}
        assert result == TableCheck(server=address, table="free0", **counts)
        assert str(result) == f"{address} free0: 30 of 30 items; it holds 30 items"
        assert msgspec.convert(msgspec.to_builtins(result), TableCheck) == result

    def test_a_second_run_finds_its_items(self, address):
        push(address, "free1", range(12))  # from a run that was killed
        before = look(address, "free1", predicted=30)
        result = check(before, 30, push(address, "free1", range(30)))
        assert (result.inserted, result.already_there, result.size, result.note) == (18, 12, 30, "")
        assert "30 of 30 items (12 were there); it holds 30" in str(result)
        again = check(look(address, "free1", predicted=30), 30, push(address, "free1", range(30)))
        assert (again.inserted, again.already_there, again.size) == (0, 30, 30)

    def test_acknowledged_is_not_predicted(self, address):
        before = look(address, "free4", predicted=30)
        with pytest.raises(
            NotVerifiedError, match=r"'free4': 30 items predicted, 29 acknowledged. .*run the same command again"
        ):
            check(before, 30, push(address, "free4", range(29)))

    def test_items_were_dropped(self, address):
        before = look(address, "tight0", predicted=10)
        push(address, "tight0", range(100, 104))  # another client writes in between
        with pytest.raises(NotVerifiedError, match="'tight0': 4 items left it: it is full and must be larger"):
            check(before, 10, push(address, "tight0", range(10)))

    def test_items_were_deleted(self, client, address):
        before = look(address, "free5", predicted=10)
        acknowledged = push(address, "free5", range(10))
        client.mutate_priorities("free5", deletes=[3, 4])
        with pytest.raises(NotVerifiedError, match="'free5': 2 items left it: another client deleted them"):
            check(before, 10, acknowledged)

    def test_a_sampler_takes_items_out(self, client, address):
        before = look(address, "once", predicted=10)
        acknowledged = push(address, "once", range(10))
        list(client.sample("once", 4, emit_timesteps=False))
        result = check(before, 10, acknowledged)
        assert (result.inserted, result.size, result.note) == (10, 6, "4 items left it, sampled or dropped")

    @pytest.mark.parametrize("old", [0, 8, 30])
    def test_the_table_was_reset(self, client, address, old):
        client.reset("free7")
        push(address, "free7", range(200, 200 + old))
        before = look(address, "free7", predicted=20)
        acknowledged = push(address, "free7", range(14))
        client.reset("free7")
        acknowledged += push(address, "free7", range(14, 20))
        with pytest.raises(NotVerifiedError, match="'free7': it was reset: 20 items acknowledged"):
            check(before, 20, acknowledged)

    def test_a_restart_is_found(self, tmp_path):
        import reverb

        def one() -> list[Any]:
            return [table("free"), table("more")]

        with ServerProcess(one, checkpoint=str(tmp_path)) as process:
            address = process.address
            before = check_tables([address], ["free", "more"], SPEC, {address: 10}, TIMEOUT)
            for name in ("free", "more"):
                push(address, name, range(10))
            reverb.Client(address).checkpoint()
            process.kill()
            process.start()
            after = ask([address], TIMEOUT)
            assert after[address].tables["free"].current_size == 10  # complete by chance, which cannot be known
            with pytest.raises(NotVerifiedError) as caught:
                compare_tables(before, after, {address: 10}, {address: 10})
            assert len(re.findall("was restarted", str(caught.value))) == 1
            # The error says how to recover.
            again = check_tables([address], ["free", "more"], SPEC, {address: 10}, TIMEOUT)
            for name in ("free", "more"):
                push(address, name, range(10))
            checks = compare_tables(again, ask([address], TIMEOUT), {address: 10}, {address: 10})
            assert [(c.already_there, c.size) for c in checks] == [(10, 10), (10, 10)]
