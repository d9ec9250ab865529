"""Writes elements with keys as a dataset in the order of their keys: `writing.keyed_parts` on Beam."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import AsDict, AsSingleton, TaggedOutput
from apache_beam.transforms.util import WaitOn

from rlds_beam.checking.verdicts import Rejection
from rlds_beam.reading.base import WorkRange
from rlds_beam.transforms.elements import in_global_window, refuse_windows, report_sink
from rlds_beam.writing.keyed_parts import (
    BUCKETS,
    KeyedSink,
    Part,
    PlacedElement,
    StoredElement,
    commit,
    measure,
    name_ranges,
    place,
)

_log = logging.getLogger(__name__)


class WriteKeyedResult(NamedTuple):
    """The outputs of `WriteKeyed`: one result, and the elements that could not be written."""

    result: beam.PCollection[Any]
    rejected: beam.PCollection[Rejection]


class WriteKeyed(beam.PTransform[Any, Any]):
    """Writes a PCollection with a keyed sink. Without Beam: `keyed_parts.write_all`.

    Args:
      sink: packs, writes, and commits the elements.
      writer: the name of the public transform, for errors.
      result: the type of the sink's result.
    """

    def __init__(self, sink: KeyedSink, writer: str, result: Any):
        super().__init__()
        self._sink, self._writer, self._result = sink, writer, result

    def expand(self, elements: beam.PCollection[Any]) -> WriteKeyedResult:
        refuse_windows(self._writer, elements)
        sink, root = self._sink, elements.pipeline
        # Building the graph, which may never run, writes nothing.
        opened = root | "Start" >> beam.Create([sink]) | "Open" >> beam.Map(_open)
        stored = (
            elements
            | "AfterOpen" >> WaitOn(opened)
            | "Store" >> beam.ParDo(_StoreFn(sink)).with_output_types(StoredElement)
        )
        # A sample of the keys cuts the elements into buckets of about equal numbers, which workers sort.
        bounds = (
            stored
            | "Keys" >> beam.Map(lambda stored: stored.order)
            | "Sample" >> beam.ApproximateQuantiles.Globally(BUCKETS + 1)
        )
        buckets = (
            stored
            | "Bucket"
            >> beam.Map(
                lambda stored, bounds: (bisect.bisect_right(bounds, stored.order), stored), AsSingleton(bounds)
            ).with_output_types(tuple[int, StoredElement])
            | "Buckets" >> beam.GroupByKey()
        )
        # Their sizes, a few numbers each, say at which position in the whole each bucket begins.
        sizes = buckets | "Measure" >> beam.MapTuple(lambda number, own: (number, measure(own)))
        placed = buckets | "Place" >> beam.FlatMap(
            lambda bucket, sizes, sink: place(bucket[0], bucket[1], sizes, sink), AsDict(sizes), sink
        ).with_output_types(PlacedElement)
        names = (
            placed
            | "Ranges" >> beam.Map(lambda placed: placed.range)
            | "Distinct" >> beam.Distinct()
            | "AllRanges" >> beam.combiners.ToList()
            | "Name" >> beam.Map(name_ranges, sink)
        )
        plan = names | "Plan" >> beam.Map(lambda names, sink: sink.plan(list(names.values())), sink)
        written = (
            placed
            | "ByRange" >> beam.Map(lambda placed: (placed.range, placed)).with_output_types(tuple[Any, PlacedElement])
            | "Group" >> beam.GroupByKey()
            | "Write"
            >> beam.FlatMap(_write, sink, AsSingleton(names), AsSingleton(plan))
            .with_output_types(str, rejected=Rejection)
            .with_outputs("rejected", main="written")
        )
        done = written.written | "Done" >> beam.combiners.Count.Globally()
        finished = (
            plan
            | "AfterWrite" >> WaitOn(done)
            | "Indices" >> beam.FlatMap(_list_indices)
            | "Spread" >> beam.Reshuffle()
            | "Finish" >> beam.MapTuple(lambda finisher, work: finisher.process(work, {}))
            | "Finished" >> beam.combiners.Count.Globally()
        )
        result = (
            plan | "AfterAll" >> WaitOn(finished) | "Commit" >> beam.Map(commit, sink).with_output_types(self._result)
        )
        return WriteKeyedResult(result, written.rejected)


def _open(sink: KeyedSink) -> None:
    report_sink(sink.directory)
    sink.open()


class _StoreFn(beam.DoFn):
    def __init__(self, sink: KeyedSink):
        self._sink = sink
        self._part: Part | None = None

    def start_bundle(self) -> None:
        self.teardown()  # if the last bundle failed

    def process(self, element: Any) -> None:
        if self._part is None:
            self._part = Part(self._sink)
        self._part.add(element)

    def finish_bundle(self) -> Iterator[Any]:
        part, self._part = self._part, None
        if part is not None:
            yield from map(in_global_window, part.finish())

    def teardown(self) -> None:
        if self._part is not None:
            self._part.abort()
            self._part = None


def _write(
    group: tuple[tuple[str, int], Iterable[PlacedElement]],
    sink: KeyedSink,
    names: Mapping[tuple[str, int], WorkRange],
    plan: Any,
) -> Iterator[Any]:
    work, in_order = names[group[0]], sorted(group[1], key=lambda each: each.position)
    _log.info("Writing %s of %s: %d elements", work, sink.directory, len(in_order))
    for rejection in sink.write_range(work, in_order, plan):
        yield TaggedOutput("rejected", rejection)
    _log.info("Wrote %s of %s", work, sink.directory)
    yield str(work)


def _list_indices(plan: Any) -> Iterator[Any]:
    """What each range of an output with global indices still needs (`GlobalIndices`)."""
    finisher = getattr(plan, "finisher", None)
    for work in () if finisher is None else finisher.ranges({}):
        yield finisher, work
