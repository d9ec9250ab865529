"""Writes elements with keys as a dataset in the order of their keys: `writing.keyed_parts` on Beam."""

from __future__ import annotations

import bisect
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import msgspec
from apache_beam.pvalue import AsDict, AsSingleton, TaggedOutput
from apache_beam.transforms.util import WaitOn

from rlds_beam import storage
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.encoding.metadata import decode_whole
from rlds_beam.output.base import GlobalIndices
from rlds_beam.output.directory import check_output, make_ready
from rlds_beam.output.files import REJECTED, REJECTED_LIST
from rlds_beam.output.plans import OutputPlan, read_plan, remove_output
from rlds_beam.output.range_conversion import NumberRanges
from rlds_beam.reading.base import WorkRange
from rlds_beam.transforms.elements import in_global_window, refuse_windows, report_sink
from rlds_beam.writing.keyed_parts import (
    BUCKETS,
    KeyedSink,
    Part,
    PlacedElement,
    Sizes,
    StoredElement,
    commit,
    measure,
    name_ranges,
    place,
)

_log = logging.getLogger(__name__)


class RejectedList(msgspec.Struct, frozen=True):
    """The content of `rejected.json`.

    Attributes:
      id: names the pipeline that wrote it; None if there is no list.
      records: the number of rejected records.
      files: the names of their files in `rejected/`.
    """

    id: str | None = None
    records: int = 0
    files: tuple[str, ...] = ()


def read_rejected_list(output: str) -> RejectedList:
    """Reads the `rejected.json` of an output. Raises UsageError if it is damaged."""
    return decode_whole(storage.join(output, REJECTED, REJECTED_LIST), RejectedList) or RejectedList()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineSink(KeyedSink):
    """A keyed sink whose directory may hold an earlier output, and the rejected records of the same pipeline.

    The runner chooses the bundles of a pipeline, and may choose others on the next run, so nothing of a killed one can
    be used.

    Attributes:
      directory, shards: as in `KeyedSink`.
      output_plan: the plan of the pipeline.
      overwrite: whether what was there is replaced.
      listed: the `RejectedList.id` before the pipeline ran. A list with another id is from this run, and stays.
    """

    directory: str
    shards: int | None
    output_plan: OutputPlan
    overwrite: bool
    listed: str | None

    def open(self) -> None:
        """Prepares the directory; raises UsageError if something was written to it since it was checked."""
        existing = read_plan(self.directory)
        if existing is not None and existing.content != self.output_plan.content:
            check_output(self.directory, self.output_plan, overwrite=self.overwrite)
            remove_output(self.directory, keep_rejected=read_rejected_list(self.directory).id != self.listed)
        make_ready(self.directory, self.output_plan)


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
            | "Bucket" >> beam.Map(_with_bucket, AsSingleton(bounds)).with_output_types(tuple[int, StoredElement])
            | "Buckets" >> beam.GroupByKey()
        )
        # Their sizes, a few numbers each, say at which position in the whole each bucket begins.
        sizes = buckets | "Measure" >> beam.MapTuple(lambda number, own: (number, measure(own)))
        placed = buckets | "Place" >> beam.FlatMap(_place, AsDict(sizes), sink).with_output_types(PlacedElement)
        names = (
            placed
            | "Ranges" >> beam.Map(lambda placed: placed.range)
            | "Distinct" >> beam.Distinct()
            | "AllRanges" >> beam.combiners.ToList()
            | "Name" >> beam.Map(name_ranges)
        )
        plan = names | "Plan" >> beam.Map(lambda names, sink: sink.plan(list(names.values())), sink)
        written = (
            placed
            | "ByRange" >> beam.Map(lambda placed: (placed.range, placed)).with_output_types(tuple[Any, PlacedElement])
            | "Group" >> beam.GroupByKey()
            | "Write"
            >> beam.ParDo(_WriteFn(sink), AsSingleton(names), AsSingleton(plan))
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


class _WriteFn(beam.DoFn):
    def __init__(self, sink: KeyedSink):
        self._sink = sink

    def process(
        self,
        group: tuple[Any, Iterable[PlacedElement]],
        names: Mapping[Any, WorkRange],
        plan: Any,
    ) -> Iterator[Any]:
        found, placed = group
        work = names[found]
        in_order = sorted(placed, key=lambda placed: placed.position)
        _log.info("Writing %s of %s: %d elements", work, self._sink.directory, len(in_order))
        for rejection in self._sink.write_range(work, in_order, plan):
            yield TaggedOutput("rejected", rejection)
        _log.info("Wrote %s of %s", work, self._sink.directory)
        yield str(work)


def _with_bucket(stored: StoredElement, bounds: Sequence[Any]) -> tuple[int, StoredElement]:
    return bisect.bisect_right(bounds, stored.order), stored


def _place(
    bucket: tuple[int, Iterable[StoredElement]], sizes: Mapping[int, Sizes], sink: KeyedSink
) -> Iterator[PlacedElement]:
    return place(*bucket, sizes, sink)


def _list_indices(plan: Any) -> Iterator[tuple[NumberRanges, Any]]:
    """What each range of an output with global indices still needs (`GlobalIndices`)."""
    output = getattr(plan, "output", None)
    if isinstance(output, GlobalIndices):
        finisher = NumberRanges(output, plan.ranges)
        for work in finisher.ranges({}):
            yield finisher, work
