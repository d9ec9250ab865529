"""The stages of a job as a Beam pipeline: one for all jobs."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.pvalue import AsSingleton

from rlds_beam import platforms, worker_status
from rlds_beam.processing.job import Stage, Totals
from rlds_beam.transforms import elements  # registers the coders of ranges and keys
from rlds_beam.worker_status import METRICS_NAMESPACE, Done

__all__ = ["RunStages", "elements"]

_log = logging.getLogger(__name__)

_AT_ONCE = 16
"""Partial results that a worker merges at once."""


class RunStages(beam.PTransform[Any, Totals]):
    """Runs the stages of a job one after the other: a PCollection of the results of all of them, by stage.

    On this machine without Beam: `runners.local`.

    Args:
      stages: the stages.
    """

    def __init__(self, stages: Sequence[Stage]):
        super().__init__()
        self._stages = stages

    def expand(self, root: Any) -> beam.PCollection[Totals]:
        totals = root | "Start" >> beam.Create([{}])
        for stage in self._stages:
            before, merge = AsSingleton(totals), beam.CombineGlobally(_MergeFn(stage))
            total = (
                totals
                | f"Ranges of {stage.name}" >> beam.FlatMap(_ranges, stage)
                # Only the list of ranges is spread over the workers; episodes are never shuffled.
                | f"Spread {stage.name}" >> beam.Reshuffle()
                | f"Process {stage.name}" >> beam.ParDo(_ProcessFn(stage), before)
                | f"Merge {stage.name}" >> (merge.with_fanout(elements.FANOUT) if stage.large else merge)
            )
            totals = total | f"Finish {stage.name}" >> beam.Map(_finish, stage, before)
        return totals


def _ranges(totals: Totals, stage: Stage) -> Iterable[Any]:
    return stage.ranges(totals)


def _finish(total: Any, stage: Stage, totals: Totals) -> Totals:
    return {**totals, stage.name: stage.finish(total, totals)}


class _ProcessFn(beam.DoFn):
    """Processes ranges, and counts their time, work, and memory as metrics."""

    def __init__(self, stage: Stage):
        self._stage = stage
        self._counters = {name: Metrics.counter(METRICS_NAMESPACE, name) for name in Done._fields}
        self._began, self._ended, self._memory = (
            Metrics.distribution(METRICS_NAMESPACE, name)
            for name in ("range_began_msec", "range_ended_msec", "peak_memory_kb")
        )

    def process(self, work: Any, totals: Totals) -> Iterator[Any]:
        self._began.update(int(time.time() * 1000))
        _log.info("Began %s: %s", self._stage.name, self._stage.describe(work))
        before = worker_status.done()
        partial = self._stage.process(work, totals)
        for name, counted in (worker_status.done() - before)._asdict().items():
            if counted:
                self._counters[name].inc(counted)
        self._ended.update(int(time.time() * 1000))
        _log.info("Ended %s: %s", self._stage.name, self._stage.describe(work))
        self._memory.update(platforms.peak_memory_kb())
        yield partial

    def teardown(self) -> None:
        self._stage.close()


class _MergeFn(beam.CombineFn):
    def __init__(self, stage: Stage):
        self._stage = stage

    def create_accumulator(self) -> list[Any]:
        return []

    def add_input(self, accumulator: list[Any], partial: Any) -> list[Any]:
        accumulator.append(partial)
        return self.compact(accumulator) if len(accumulator) >= _AT_ONCE else accumulator

    def merge_accumulators(self, accumulators: Iterable[list[Any]]) -> list[Any]:
        return self.compact([partial for accumulator in accumulators for partial in accumulator])

    def compact(self, accumulator: list[Any]) -> list[Any]:
        return [self._stage.merge(accumulator)]

    def extract_output(self, accumulator: list[Any]) -> Any:
        return self._stage.merge(accumulator)
