"""The observers, compared with TF-Agents' own: the same calls on the same server give the same tables."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import time
import types
import unittest.mock
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import cases

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
pytest.importorskip("tf_agents")

import reverb
from pushes import one_table
from servers import DEADLINE, ServerProcess, free_port
from tf_agents.replay_buffers import reverb_utils
from tf_agents.trajectories import trajectory

from rlds_beam.drop_in import reverb_observers
from rlds_beam.drop_in.reverb_observers import (
    ReverbAddEpisodeObserver,
    ReverbAddTrajectoryObserver,
    ReverbTrajectorySequenceObserver,
)
from rlds_beam.errors import NotVerifiedError
from rlds_beam.reverb.connection import ServerError
from rlds_beam.typing import Array


class Tables:
    """Two tables on their own server."""

    names = ("a", "b")

    def __init__(self) -> None:
        self.server = reverb.Server([table for name in self.names for table in one_table(name=name)], port=None)
        self.client = reverb.Client(f"localhost:{self.server.port}")

    def sizes(self) -> list[tuple[int, int]]:
        """The number of items and episodes of each table."""
        infos = self.client.server_info(timeout=60)
        return [(infos[name].current_size, infos[name].num_episodes) for name in self.names]

    def drain(self) -> list[tuple[int, list[tuple[float, list[Array]]]]]:
        """Removes all items; returns each table's number of episodes, and each item's priority and columns."""
        infos = self.client.server_info(timeout=60)
        drained = []
        for name in self.names:
            size = infos[name].current_size
            samples = self.client.sample(name, size, emit_timesteps=False) if size else []
            drained.append((infos[name].num_episodes, [(s.info.priority, list(s.data)) for s in samples]))
        return drained


def run_of(step_types: list[int], seed: int = 0) -> Any:
    """Distinct frames [n, ...] with these step types, of many dtypes and deeply nested."""
    n, rng = len(step_types), np.random.default_rng(seed)
    step_type = np.array(step_types, np.int32)
    return trajectory.Trajectory(
        step_type=step_type,
        observation={"b": rng.random((n, 3), np.float32), "a": (rng.integers(0, 9, (n, 2, 2), np.uint8), ())},
        action=[rng.random(n), rng.integers(-5, 5, (n, 1), np.int64)],
        policy_info={"flag": rng.random(n) < 0.5},
        next_step_type=np.roll(step_type, -1),
        reward=np.arange(n, dtype=np.float32) + 1 + 1000 * seed,
        discount=rng.random(n, np.float32),
    )


def pick(run: Any, which: Any) -> Any:
    """Selects one or more frames of a run."""
    return trajectory.Trajectory(
        step_type=run.step_type[which],
        observation={"b": run.observation["b"][which], "a": (run.observation["a"][0][which], ())},
        action=[column[which] for column in run.action],
        policy_info={"flag": run.policy_info["flag"][which]},
        next_step_type=run.next_step_type[which],
        reward=run.reward[which],
        discount=run.discount[which],
    )


@dataclasses.dataclass
class Case:
    """A sequence of calls to an observer."""

    kind: str
    arguments: dict[str, Any]
    frames: Any
    steps: list[tuple[Any, ...]]

    @classmethod
    def generate(cls, seed: int) -> Case:
        rng = np.random.default_rng(seed)
        kind = ["ReverbAddTrajectoryObserver", "ReverbTrajectorySequenceObserver", "ReverbAddEpisodeObserver"][seed % 3]
        arguments: dict[str, Any] = {"table_name": ["a", ["a", "b"], ["b"]][rng.integers(3)]}
        arguments["priority"] = [1, 3.5, 0][rng.integers(3)]
        if kind == "ReverbAddEpisodeObserver":
            arguments["max_sequence_length"] = int(rng.integers(1, 8))
            arguments["bypass_partial_episodes"] = bool(rng.integers(2))
        else:
            arguments |= {"sequence_length": int(rng.integers(1, 6)), "stride_length": int(rng.integers(1, 6))}
            pad, tile = [(False, False), (True, False), (True, True)][rng.integers(3)]
            arguments |= {"pad_end_of_episodes": pad, "tile_end_of_episodes": tile}
        step_types = cls._step_types(rng)
        return cls(kind, arguments, run_of(step_types, seed % 100), cls._steps(rng, kind, len(step_types)))

    @staticmethod
    def _step_types(rng: np.random.Generator) -> list[int]:
        if rng.random() < 0.1:
            return rng.integers(0, 3, 20).tolist()  # no valid episodes
        lengths = rng.integers(1, 9, rng.integers(1, 6)).tolist()
        whole = [t for n in lengths for t in ([0] + [1] * (n - 2) + [2] if n > 1 else [2])]
        return whole[: len(whole) - int(rng.integers(0, 3))] or [1]

    @staticmethod
    def _steps(rng: np.random.Generator, kind: str, n: int) -> list[tuple[Any, ...]]:
        """Splits the frames into pieces with other calls in between: rarely in plain cases, often in others."""
        wild, steps, at = rng.random() < 0.5, [], 0
        others: list[tuple[Any, ...]] = [
            ("reset", True),
            ("reset", False),
            ("reopen",),
            ("close",),
            ("open",),
            ("flush",),
        ]
        if kind == "ReverbAddEpisodeObserver":
            others.append(("update_priority", 7.25))
        while at < n:
            size = int(rng.integers(1, 12))
            steps.append(("add", at, min(n, at + size), bool(rng.integers(2))))
            at += size
            while wild and rng.random() < 0.5:
                steps.append(others[rng.integers(len(others))])
        return [*steps, ("reset", bool(rng.integers(2)))] if wild else steps

    def play(self, module: Any, client: Any, **extra: Any) -> list[str]:
        """Makes all calls on the observer of that name in `module` and returns the errors."""
        observer, errors = getattr(module, self.kind)(client, **self.arguments, **extra), []
        theirs = module is reverb_utils
        for name, *rest in self.steps:
            try:
                if name == "add":
                    begin, end, at_once = rest
                    if at_once and not theirs:
                        observer.add_episode(pick(self.frames, slice(begin, end)))
                    else:
                        self._one_by_one(observer, begin, end, theirs)
                elif name == "reopen":
                    observer.close()
                    observer.open()
                else:
                    getattr(observer, name)(*rest)
            except ValueError as error:
                errors.append(f"{name}{rest[:2]}: {error}")
        observer.close()
        return errors

    def _one_by_one(self, observer: Any, begin: int, end: int, theirs: bool) -> None:
        for t in range(begin, end):
            frame = pick(self.frames, t)
            try:
                observer(frame)
            except ValueError as error:
                if theirs and "exceeds" in str(error) and frame.is_boundary():
                    # The only difference: without this the next episode is lost.
                    observer.reset(write_cached_steps=False)
                raise


def assert_equal(ours: Any, theirs: Any, context: object) -> None:
    for (our_episodes, our_items), (their_episodes, their_items) in zip(ours, theirs, strict=True):
        assert len(our_items) == len(their_items), context
        assert our_episodes == their_episodes, context
        for (our_priority, here), (their_priority, there) in zip(our_items, their_items, strict=True):
            assert our_priority == their_priority, context
            assert [(a.dtype, a.shape) for a in here] == [(a.dtype, a.shape) for a in there], context
            assert all(a.tobytes() == b.tobytes() for a, b in zip(here, there, strict=True)), context


@pytest.fixture(scope="module")
def tables() -> Iterator[Tables]:
    tables = Tables()
    yield tables
    tables.server.stop()


@pytest.mark.parametrize("batch", range(4))
def test_generated_cases_equal_tf_agents(tables: Tables, batch: int) -> None:
    written = 0
    count = cases(150)
    for seed in range(batch * 150, batch * 150 + count):
        case = Case.generate(seed)
        their_errors = case.play(reverb_utils, tables.client)
        theirs = tables.drain()
        chunk_length = (None, 1, 3, 64)[seed % 4]
        our_errors = case.play(reverb_observers, tables.client, timeout=20, chunk_length=chunk_length)
        ours = tables.drain()
        context = (seed, case.kind, case.arguments, case.steps, case.frames.step_type.tolist())
        assert our_errors == their_errors, context
        assert_equal(ours, theirs, context)
        written += sum(len(items) for _, items in theirs)
    assert written > 4 * count  # there was something to compare


@pytest.mark.parametrize("seed", range(0, 80 * cases(25), 80))
def test_nothing_is_written_twice_with_the_same_seed(tables: Tables, seed: int) -> None:
    case = Case.generate(seed)
    case.play(reverb_observers, tables.client, key_seed=seed)
    written = tables.sizes()
    steps = [(*step[:3], not step[3]) if step[0] == "add" else step for step in case.steps]
    dataclasses.replace(case, steps=steps).play(reverb_observers, tables.client, key_seed=seed, chunk_length=2)
    assert tables.sizes() == written
    case.play(reverb_observers, tables.client, key_seed=f"{seed}")  # text is a different seed than the number
    assert [items for items, _ in tables.sizes()] == [2 * items for items, _ in written]
    case.play(reverb_observers, tables.client)
    assert [items for items, _ in tables.sizes()] == [3 * items for items, _ in written]
    tables.drain()


def test_two_observers_can_alternate(tables: Tables) -> None:
    run = run_of([0, 1, 1, 1, 2] * 2)
    observers = [ReverbAddTrajectoryObserver(tables.client, name, 3) for name in tables.names]
    for t in range(10):
        for observer in observers:
            observer(pick(run, t))
    a, b = tables.drain()
    assert len(a[1]) == 6
    assert_equal([a], [b], "each of them")


def test_the_caller_may_reuse_its_arrays(tables: Tables) -> None:
    observer = ReverbTrajectorySequenceObserver(tables.client, "a", 2, chunk_length=8)
    frame = pick(run_of([0]), 0)
    for t in range(3):
        frame.observation["b"][:] = t
        observer(frame)
    run = run_of([1, 1, 1])
    observer.add_episode(run)
    expected = run.observation["b"].copy()
    run.observation["b"][:] = -1
    observer.flush()
    items = [data[2] for _, data in tables.drain()[0][1]]
    assert [item[:, 0].tolist() for item in items[:2]] == [[0, 1], [1, 2]]
    assert np.array_equal(np.concatenate(items[3:]), expected[[0, 1, 1, 2]])


def test_tensors_python_numbers_and_any_nest(tables: Tables) -> None:
    tf = pytest.importorskip("tensorflow")
    for module in (reverb_utils, reverb_observers):
        observer = module.ReverbTrajectorySequenceObserver(tables.client, "a", 2)
        for t in range(3):
            observer({"z": [1.5 * t, t], "a": tf.constant([t, t], tf.float16), "m": ({}, (True,), np.uint8(t))})
        observer.flush()
    (_, items), _ = tables.drain()
    assert_equal([(0, items[2:])], [(0, items[:2])], "ours, theirs")


def test_each_chunk_is_stored_once(tmp_path: Path) -> None:
    server = reverb.Server(one_table(name="a"), checkpointer=reverb.checkpointers.DefaultCheckpointer(str(tmp_path)))
    client = reverb.Client(f"localhost:{server.port}")
    observer = ReverbTrajectorySequenceObserver(client, "a", 4, chunk_length=5)
    run = run_of([1] * 50)
    for t in range(50):
        observer(pick(run, t))
    observer.flush()
    chunks = zlib.decompress((Path(client.checkpoint()) / "chunks.tfrecord").read_bytes())
    server.stop()
    count = at = 0
    while at < len(chunks):
        at += 16 + int.from_bytes(chunks[at : at + 8], "little")
        count += 1
    assert count == 10


@pytest.mark.parametrize("leaf", [np.float64(1), np.zeros(2, np.float32)])
def test_a_mismatched_frame_is_refused_as_by_reverb(tables: Tables, leaf: Any) -> None:
    for module in (reverb_utils, reverb_observers):
        observer = module.ReverbAddTrajectoryObserver(tables.client, "a", 2)
        observer(pick(run_of([0]), 0))
        with pytest.raises(ValueError, match=r"olumn .*reward"):
            observer(pick(run_of([1]), 0)._replace(reward=leaf))


def test_what_is_refused(tables: Tables) -> None:
    client, run = tables.client, run_of([0, 1, 2])
    with pytest.raises(ValueError, match="at least 1"):
        ReverbAddTrajectoryObserver(client, "a", 0)
    with pytest.raises(ValueError, match="Must set `pad_end_of_episodes=True`"):
        ReverbAddTrajectoryObserver(client, "a", 2, tile_end_of_episodes=True)
    with pytest.raises(ValueError, match="greater equal one"):
        ReverbAddEpisodeObserver(client, "a", 0)
    with pytest.raises(ValueError, match="timeout"):
        ReverbAddEpisodeObserver(client, "a", 1, timeout=0)
    with pytest.raises(ValueError, match="chunk_length"):
        ReverbAddEpisodeObserver(client, "a", 1, chunk_length=0)
    with pytest.raises(ValueError, match="must not be nan"):
        ReverbAddEpisodeObserver(client, "a", 3, priority=float("nan")).add_episode(run)
    with pytest.raises(ValueError, match=r"time axis.*'reward'"):
        ReverbAddEpisodeObserver(client, "a", 3).add_episode(run._replace(reward=run.reward[1:]))
    with pytest.raises(ValueError, match="numbers and flags"):
        ReverbAddEpisodeObserver(client, "a", 3).add_episode(run._replace(policy_info=np.array(["a", "b", "c"])))
    observer = ReverbAddEpisodeObserver(client, "a", 3)
    observer(pick(run, 0))
    with pytest.raises(ValueError, match="but earlier frames have"):
        observer(pick(run, 1)._replace(policy_info=()))
    with pytest.raises(NotVerifiedError, match="nope"):
        ReverbAddTrajectoryObserver(client, "nope", 1)(pick(run, 2))


def test_a_custom_client_only_needs_the_address(tables: Tables) -> None:
    client = types.SimpleNamespace(server_address=tables.client.server_address)
    observer = ReverbAddTrajectoryObserver(client, "a", 2)
    observer.add_episode(run_of([0, 1, 2]))
    observer.flush()
    assert len(tables.drain()[0][1]) == 2


class Inserts:
    """The number of items inserted into a table since this was created."""

    def __init__(self, client: Any, table: str):
        self._client, self._table = client, table
        self._before = self._now()

    def _now(self) -> int:
        info = self._client.server_info(timeout=60)[self._table]
        return int(info.rate_limiter_info.insert_stats.completed)

    def wait(self, items: int) -> int:
        """The number of items, once it reaches `items`, or after the deadline."""
        deadline = time.monotonic() + DEADLINE
        while (there := self._now() - self._before) < items and time.monotonic() < deadline:
            time.sleep(0.001)
        return there


WINDOWED = [ReverbAddTrajectoryObserver, ReverbTrajectorySequenceObserver]


@pytest.mark.parametrize("length", [2, 3, 64])
@pytest.mark.parametrize("kind", WINDOWED)
def test_items_are_there_without_a_flush(tables: Tables, kind: Any, length: int) -> None:
    """Frames at the pace of an environment: each frame that completes an item sends it."""
    observer, run = kind(tables.client, "a", length), run_of([0] + [1] * 99)
    inserts = Inserts(tables.client, "a")
    for t in range(100):
        observer(pick(run, t))
        due = max(0, t + 2 - length)
        assert inserts.wait(due) == due, t
        stream = observer._writer._stream
        while stream is not None and not stream.idle:  # wait for the answer
            time.sleep(0.001)
        time.sleep(0.002)  # a fast environment
    observer.close()
    expected = [(1, _window(run, i, length)) for i in range(101 - length)]
    assert_equal([(0, tables.drain()[0][1])], [(0, expected)], length)


def _window(run: Any, begin: int, length: int) -> list[Array]:
    import tree

    return tree.flatten(pick(run, slice(begin, begin + length)))


def test_the_signature_is_the_tables() -> None:
    import tensorflow as tf

    signature = {"x": tf.TensorSpec((2,), tf.float32)}
    table = reverb.Table.queue("a", 3, signature=signature)
    server = reverb.Server([table])
    observer = ReverbAddTrajectoryObserver(server.localhost_client(), "a", 2)
    assert observer.get_table_signature() == signature
    assert observer.py_client.server_address == f"localhost:{server.port}"
    server.stop()


@pytest.mark.parametrize(
    "name",
    [
        "test_trajectory_observer_no_mock",
        "test_episodic_observer_no_mock",
        "test_episodic_observer_overflow_episode_raise_value_error",
        "test_episodic_observer_assert_sequence_length_positive",
        "test_episodic_observer_update_priority",
    ],
)
def test_tf_agents_own_tests_pass(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """TF-Agents' tests that do not count calls of Reverb's writer. They do not flush, so nothing may be held back."""
    monkeypatch.setitem(sys.modules, "mock", unittest.mock)  # the backport of unittest.mock
    from tf_agents.replay_buffers import reverb_utils_test

    ours = types.SimpleNamespace(
        ReverbAddTrajectoryObserver=functools.partial(ReverbAddTrajectoryObserver, chunk_length=1),
        ReverbAddEpisodeObserver=functools.partial(ReverbAddEpisodeObserver, chunk_length=1),
    )
    monkeypatch.setattr(reverb_utils_test, "reverb_utils", ours)
    result = reverb_utils_test.ReverbObserverTest(name).run()
    assert result.testsRun == 1 and not result.errors and not result.failures, result


# Servers that fail


def _table() -> list[Any]:
    return one_table(name="a")


def test_a_stopped_server_ends_the_wait_and_gets_its_items_when_it_resumes() -> None:
    run = run_of([1] * 10)
    with ServerProcess(_table) as server:
        client = reverb.Client(server.address)
        observer = ReverbTrajectorySequenceObserver(client, "a", 2, timeout=6)
        observer.add_episode(run)
        observer.flush()
        server.stop()
        observer.add_episode(run)
        with pytest.raises(NotVerifiedError, match="no item was acknowledged for 6 s"):
            observer.flush()
        with pytest.raises(reverb.errors.DeadlineExceededError):
            ReverbAddEpisodeObserver(client, "a", 2, timeout=1).get_table_signature()
        server.resume()
        observer.reset(write_cached_steps=False)
        assert client.server_info(timeout=60)["a"].current_size == 19


def test_requests_sent_together_keep_the_chunks_of_the_last_one() -> None:
    """Items that overlap over many requests: the server must keep each chunk for the next message only."""
    run = run_of([0] + [1] * 198 + [2])
    run.observation["b"] = np.random.default_rng(0).standard_normal((200, 100))
    with ServerProcess(lambda: _table()) as process:
        client = reverb.Client(process.address)
        observer = ReverbAddTrajectoryObserver(client, "a", 50, chunk_length=3, timeout=30)
        observer.add_episode(pick(run, slice(0, 60)))
        observer.flush()
        process.stop()  # so that later items wait
        for at in range(60, 200, 4):
            observer.add_episode(pick(run, slice(at, at + 4)))
        process.resume()
        observer.flush()
        assert reverb.Client(process.address).server_info(timeout=60)["a"].current_size == 151
        observer.close()


def test_a_server_that_was_restarted_is_noticed() -> None:
    run = run_of([1] * 10)
    with ServerProcess(_table) as server:
        observer = ReverbTrajectorySequenceObserver(reverb.Client(server.address), "a", 2, timeout=60)
        observer.add_episode(run)
        observer.flush()
        server.kill()
        server.start()
        observer.add_episode(run)
        with pytest.raises(NotVerifiedError, match="restarted"):
            observer.close()
        observer.open()
        observer.add_episode(run)
        observer.close()
        assert reverb.Client(server.address).server_info(timeout=60)["a"].current_size == 9


def test_no_server_at_the_address() -> None:
    observer = ReverbAddTrajectoryObserver(reverb.Client(f"127.0.0.1:{free_port()}"), "a", 2, timeout=0.5)
    observer(pick(run_of([0]), 0))
    with pytest.raises(ServerError, match=r"127\.0\.0\.1"):
        observer(pick(run_of([2]), 0))
    with pytest.raises(ServerError, match=r"127\.0\.0\.1"):
        observer.add_episode(run_of([0, 2]))


def test_a_full_queue_ends_the_wait() -> None:
    server = reverb.Server([reverb.Table.queue("a", 3)])
    client = server.localhost_client()
    observer = ReverbAddTrajectoryObserver(client, "a", 1, timeout=2)
    observer.add_episode(run_of([1] * 4))
    with pytest.raises(NotVerifiedError, match="rate limiter"):
        observer.flush()
    assert len(list(client.sample("a", 2))) == 2
    observer.flush()
    assert client.server_info(timeout=60)["a"].current_size == 2
    observer.close()
    server.stop()
