"""A job is a sequence of stages, and a stage is four functions over ranges of work.

Every runner calls the same four: `runners.local` in processes of this machine, `transforms.stages.RunStages` as a Beam
pipeline. So all of them give the same results.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Totals = Mapping[str, Any]
"""The results of the stages so far, by `Stage.name`."""


class Stage(abc.ABC):
    """One pass over ranges of work. Picklable: it is sent to every worker once, and its ranges one by one.

        total = stage.merge(stage.process(work, totals) for work in stage.ranges(totals))
        totals[stage.name] = stage.finish(total, totals)

    Attributes:
      name: the key of its result in the totals, which is unique in a job.
      large: whether its parts take megabytes, so that several workers of a cluster merge some before one merges all.
    """

    name: str
    large = False

    def ranges(self, totals: Totals) -> Iterable[Any]:
        """The ranges, each with what it needs."""
        del totals
        return ()

    def describe(self, work: Any) -> str:
        """A range as text, for the error if its worker dies: its name, and its files."""
        files = dict.fromkeys(segment.shard.path for segment in getattr(work, "segments", ()))
        return " in ".join(filter(None, [str(work), ", ".join(files)]))

    def process(self, work: Any, totals: Totals) -> Any:
        """Works on one range, in any worker; returns a small part of the total. A runner may repeat it."""
        raise NotImplementedError

    def merge(self, partials: Iterable[Any]) -> Any:
        """The total of some parts, which may be totals themselves; their order and grouping do not matter."""
        for _ in partials:
            pass

    def finish(self, total: Any, totals: Totals) -> Any:
        """The result, from the total of all ranges. Called once, although a runner may repeat it."""
        del totals
        return total

    def close(self) -> None:  # noqa: B027
        """Frees what `process` keeps in a process, for example a connection. Called at the end of a worker's work."""


Job = tuple[Stage, ...]
"""Stages that run one after the other; the result of the last is that of the job."""

_AT_ONCE = 16
"""Partial results that are merged at once."""


def process_here(stage: Stage, totals: Totals, works: Iterable[Any] | None = None) -> Iterator[Any]:
    """Processes the ranges (`works`) of a stage in this process, in order; yields the partial results."""
    try:
        for work in stage.ranges(totals) if works is None else works:
            yield stage.process(work, totals)
    finally:
        stage.close()


def run_stages(
    stages: Sequence[Stage], process: Callable[[Stage, Totals], Iterator[Any]] = process_here
) -> dict[str, Any]:
    """Runs the stages of a job on this machine; returns the results of all of them.

    Args:
      stages: the stages.
      process: processes the ranges of a stage.
    """
    totals: dict[str, Any] = {}
    for stage in stages:
        partials = process(stage, totals)
        total = stage.merge(itertools.islice(partials, _AT_ONCE))
        while some := [*itertools.islice(partials, _AT_ONCE)]:
            total = stage.merge([total, *some])
        totals[stage.name] = stage.finish(total, totals)
    return totals


class Figures(NamedTuple):
    """How a job ran.

    Attributes:
      steps: the steps of accepted episodes.
      seconds: the seconds from the first range to the last.
      memory_kb: the peak memory of a process, in KiB; 0 if unknown.
    """

    steps: int = 0
    seconds: float = 0.0
    memory_kb: int = 0
