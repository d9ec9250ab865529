"""Observer calls and the tables they fill, to compare our observers with TF-Agents'."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import pytest

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
pytest.importorskip("tf_agents")

import reverb
from tf_agents.replay_buffers import reverb_utils
from tf_agents.trajectories import trajectory

from rlds_beam.typing import Array


def queue_like(name: str) -> Any:
    """A table that returns each item once, in insertion order."""
    return reverb.Table(
        name,
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=1_000_000,
        max_times_sampled=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )


class Tables:
    """Two tables on their own server."""

    names = ("a", "b")

    def __init__(self) -> None:
        self.server = reverb.Server([queue_like(name) for name in self.names], port=None)
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
