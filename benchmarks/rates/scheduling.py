"""Which worker runs which range, and when all are done: pure functions on arrays of seconds.

Ranges wait in one list. `taken` gives the next one to the first free worker (runners that assign work dynamically);
`dealt` and `drawn` assign all in advance, in turn like cards or by the hash of a random key (runners that cut the list
into bundles or shuffle it). A worker never waits while it has a range left.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A schedule of ranges.

    Attributes:
      owners: int64 [ranges], the worker that did each.
      finishes: float64 [workers], seconds until each finished its last range; 0 if it had none.
    """

    owners: Array
    finishes: Array

    @property
    def makespan(self) -> float:
        """Seconds until all is done."""
        return float(self.finishes.max())

    @property
    def utilization(self) -> float:
        """The share of the workers' time, until all is done, in which they have work."""
        return float(self.finishes.mean() / self.makespan) if self.makespan else 1.0

    @property
    def tail(self) -> float:
        """The share of the time after half of the workers have run out of work."""
        return float(1 - np.median(self.finishes) / self.makespan) if self.makespan else 0.0


def taken(costs: Array, speeds: Array, seed: int = 0) -> Schedule:
    """Gives each range, in order, to the worker that is free first.

    Args:
      costs: float64 [ranges], seconds at speed 1.
      speeds: float64 [workers], 0.5 takes twice as long.
      seed: unused.
    """
    del seed
    free, pace, owners = [(0.0, worker) for worker in range(len(speeds))], speeds.tolist(), []
    for cost in costs.tolist():
        at, worker = free[0]
        heapq.heapreplace(free, (at + cost / pace[worker], worker))
        owners.append(worker)
    return Schedule(np.array(owners, np.int64), np.array([at for at, _ in sorted(free, key=lambda one: one[1])]))


def dealt(costs: Array, speeds: Array, seed: int = 0) -> Schedule:
    """Gives range i to worker i modulo their number, however busy it is. Same arguments as `taken`."""
    del seed
    return _settled(np.arange(len(costs)) % len(speeds), costs, speeds)


def drawn(costs: Array, speeds: Array, seed: int = 0) -> Schedule:
    """Gives each range to a random worker. Same arguments as `taken`."""
    return _settled(np.random.default_rng(seed).integers(0, len(speeds), len(costs)), costs, speeds)


def _settled(owners: Array, costs: Array, speeds: Array) -> Schedule:
    return Schedule(owners, np.bincount(owners, costs, len(speeds)) / speeds)


ASSIGNMENTS: dict[str, Callable[[Array, Array, int], Schedule]] = {"taken": taken, "dealt": dealt, "drawn": drawn}


def shared(schedule: Schedule, share: float) -> Schedule:
    """The schedule if a shared resource (a network, a bucket, servers) slows the workers down.

    A busy worker uses the fraction `share` of it. While k workers are busy and k * share exceeds 1, all slow down by
    that factor; their work and its order stay the same.
    """
    order = np.argsort(schedule.finishes, kind="stable")
    steps = np.diff(schedule.finishes[order], prepend=0.0)
    at_work = len(steps) - np.arange(len(steps))
    finishes = np.empty_like(schedule.finishes)
    finishes[order] = np.cumsum(steps * np.maximum(1.0, at_work * share))
    return dataclasses.replace(schedule, finishes=finishes)


def ideal(costs: Array, speeds: Array, share: float = 0.0) -> float:
    """Lower bound of any assignment in seconds: all workers, or the shared resource, busy to the end."""
    return max(float(costs.sum() / speeds.sum()), float(costs.sum()) * share)
