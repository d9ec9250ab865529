"""Pushes ranges of input to Reverb tables, and compares the content of the tables with the items sent."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rlds_beam import storage, worker_status
from rlds_beam.checking.duplicates import Duplicates, mark_duplicate
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.metadata import Count
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import BadEpisode, NotVerifiedError, RldsBeamError, UsageError
from rlds_beam.formats.trajectories.written_items import ConvertedDataset, ConvertedRange
from rlds_beam.output.commits import rejected_path
from rlds_beam.output.files import REJECTED, is_rejected_file
from rlds_beam.output.shards import RejectedWriter
from rlds_beam.processing.job import Stage, Totals
from rlds_beam.processing.ranges import check_and_connect, read_range, write_range
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import WorkRange
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.reverb import tables
from rlds_beam.reverb.column_items import ItemConversion, ItemConverter
from rlds_beam.reverb.connection import ServerError
from rlds_beam.reverb.options import WriterKind
from rlds_beam.reverb.tables import Baseline, TableCheck
from rlds_beam.reverb.target import ReverbTarget
from rlds_beam.reverb.writer import Writer, new_writer
from rlds_beam.trajectories.items import Items, UnusedSteps, item_count


class Pushed(msgspec.Struct, frozen=True):
    """The result of one or more ranges.

    Attributes:
      report: the report on the records.
      predicted: the computed number of items for each server, in each table.
      acknowledged: the number of items that each server confirmed, in each table.
    """

    report: Report = msgspec.field(default_factory=Report)
    predicted: dict[str, Count] = msgspec.field(default_factory=dict)
    acknowledged: dict[str, Count] = msgspec.field(default_factory=dict)

    def merge(self, *others: Pushed) -> Pushed:
        """The sum, independent of order and grouping."""
        all_of = (self, *others)
        return Pushed(
            Report().merge(*(pushed.report for pushed in all_of)),
            _sum(pushed.predicted for pushed in all_of),
            _sum(pushed.acknowledged for pushed in all_of),
        )


@dataclasses.dataclass(frozen=True)
class EpisodePusher:
    """Pushes ranges of an RLDS dataset. Picklable.

    Attributes:
      reader: the reader of the dataset.
      check: the policy of each rule.
      connecting: the connectors that run over accepted episodes.
      conversion: how episodes become items.
      target: the tables to write to.
      rejected: the directory for rejected records; None discards them.
    """

    reader: EpisodeReader
    check: CheckOptions
    connecting: ConnectorRunner
    conversion: ItemConversion
    target: ReverbTarget
    rejected: str | None = None

    def push(
        self,
        work: WorkRange,
        duplicates: Duplicates,
        writer: Writer,
        results: Sequence[Any] = (),
    ) -> Pushed:
        """Reads, checks, converts, and writes one range, and waits until the servers have confirmed it.

        Args:
          work: the range.
          duplicates: the keys of duplicates, with those of the originals.
          writer: the writer.
          results: the fitted results of connectors (`FitConnectors`).

        Raises:
          FailedRuleError: a rule of `fail` was broken.
          NotVerifiedError: a server did not confirm all items.
        """
        before, sent = Counter(writer.acknowledged), writer.sent_bytes
        items = ReverbRangeWriter(self.conversion, self.target, writer)
        with contextlib.ExitStack() as stack:
            rejected = None
            if self.rejected is not None:
                rejected = stack.enter_context(RejectedWriter(rejected_path(self.rejected, work)))
            connecting, ignored = (
                self.connecting.fit(results),
                self.connecting.ignored_values(self.conversion.ignored_values),
            )
            reject = None if rejected is None else rejected.add
            episodes = read_range(self.reader, work, duplicates)
            report = write_range(episodes, self.check, connecting, ignored, items.write, reject)
            items.finish()
            if rejected is not None:
                rejected.commit()
        report.bytes_written, report.unused = writer.sent_bytes - sent, dict(items.unused_steps)
        return _push(report, items.due, writer.acknowledged - before, self.target)

    def count(self, work: WorkRange, duplicates: Duplicates, results: Sequence[Any] = ()) -> Pushed:
        """Counts the range's maximum number of items: reads and checks it, but writes nothing."""
        connecting, ignored = (
            self.connecting.fit(results),
            self.connecting.ignored_values(self.conversion.ignored_values),
        )
        predicted, frames = Counter[str](), 0
        key = EpisodeKey(self.reader.dataset, work.split, 0, 0)
        for segment in work.segments:
            for record in self.reader.read(work.split, segment):
                key = record.key
                batches: list[Batch] = []
                check_and_connect(mark_duplicate(record, duplicates), self.check, connecting, ignored, batches.append)
                for batch in batches:
                    items, more = self.conversion.count(batch)
                    predicted[self.target.choose_server(key)] += items
                    frames += more
        if self.conversion.items.across_episodes:
            predicted[self.target.choose_server(key)] += item_count(frames, self.conversion.items)
        return Pushed(predicted=dict(predicted))


@dataclasses.dataclass(frozen=True)
class ItemPusher:
    """Pushes ranges of a converted dataset unchanged. Picklable.

    Attributes:
      dataset: the dataset.
      target: the tables to write to.
    """

    dataset: ConvertedDataset
    target: ReverbTarget

    def push(self, work: ConvertedRange, duplicates: object, writer: Writer, results: object = ()) -> Pushed:
        """Reads and writes one range, and waits until the servers have confirmed it.

        Raises:
          RldsBeamError: the range's file differs from what was written.
          NotVerifiedError: a server did not confirm all items.
        """
        del duplicates, results
        predicted, before, sent = Counter[str](), Counter(writer.acknowledged), writer.sent_bytes
        for items in self.dataset.read_items(work):
            try:
                encoded = writer.encode(items)
            except BadEpisode as bad:  # converted items have no original records to keep
                where = f"{work.path}, in the items starting at byte {items.frames.key.position}"
                raise RldsBeamError(f"{where}: {bad}") from bad
            writer.write(encoded)
            predicted[self.target.choose_server(items.frames.key)] += len(items)
        writer.flush()
        report = Report(bytes_written=writer.sent_bytes - sent)
        return _push(report, predicted, writer.acknowledged - before, self.target)

    def count(self, work: ConvertedRange, duplicates: object, results: object = ()) -> Pushed:
        """Counts the range's items for each server."""
        del duplicates, results
        predicted = Counter[str]()
        for items in self.dataset.read_items(work):
            predicted[self.target.choose_server(items.frames.key)] += len(items)
        return Pushed(predicted=dict(predicted))


Pusher = EpisodePusher | ItemPusher


def _push(report: Report, predicted: Counter[str], acknowledged: Counter[str], target: ReverbTarget) -> Pushed:
    report.items_predicted = predicted.total() * len(target.tables)
    report.items_written = acknowledged.total() * len(target.tables)
    return Pushed(report, dict(+predicted), dict(+acknowledged))


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


_REMEDIES: dict[WriterKind, str] = {
    "stream": tables.RUN_AGAIN,
    "observer": "empty the tables and run the same command again: observers rewrite all items",
}


class Verified(msgspec.Struct, frozen=True):
    """A verified push.

    Attributes:
      pushed: the items sent.
      checks: the items predicted, acknowledged, and found in each table of each server.
    """

    pushed: Pushed
    checks: tuple[TableCheck, ...]

    def lines(self) -> list[str]:
        """The lines for a terminal, one per table."""
        return [f"table     {check}" for check in self.checks]


def verify(pushed: Pushed, target: ReverbTarget, baseline: Baseline) -> Verified:
    """Asks the servers for their items and compares.

    Raises:
      NotVerifiedError: a server is gone or was restarted, or its items differ from the prediction.
    """
    remedy = _REMEDIES[target.writer]
    try:
        after = tables.ask(target.servers, target.timeout)
    except ServerError as error:
        raise NotVerifiedError(
            f"all items were acknowledged, but cannot be verified: {error}. When the server is up, {remedy}"
        ) from error
    return Verified(pushed, tables.compare_tables(baseline, after, pushed.predicted, pushed.acknowledged, remedy))


@dataclasses.dataclass
class PushRanges(Stage):
    """Reads, checks, converts, and writes whole ranges to Reverb tables: what the tables hold at the end (`Verified`).

    A range is one element because sequences across episodes need a whole shard in order.

    Attributes:
      pusher: pushes a range.
      target: the tables to write to.
      baseline: their content before.
      all_ranges: the ranges, in scheduling order.
      rejected: the directory for rejected records, if any. Files of an earlier push there are replaced; others stay.
    """

    pusher: Pusher
    target: ReverbTarget
    baseline: Baseline
    all_ranges: Sequence[Any]
    rejected: str | None
    name = "push"

    def __post_init__(self) -> None:
        self._writer: Writer | None = None  # one for each process

    def ranges(self, totals: Totals) -> Sequence[Any]:
        if self.rejected is not None:
            try:
                directory = storage.below(self.rejected, REJECTED)
                storage.makedirs(directory)
                names = storage.listdir(directory)
                old = [name for name in names if is_rejected_file(name) or storage.is_temporary(name)]
                storage.remove_files(self.rejected, [f"{REJECTED}/{name}" for name in old])
            except OSError as error:
                raise UsageError(f"--rejected={self.rejected} cannot be written to: {error}") from error
        return self.all_ranges

    def describe(self, work: Any) -> str:
        return _describe(work)

    def process(self, work: Any, totals: Totals) -> Pushed:
        if self._writer is None:
            self._writer = new_writer(self.target)
        pushed = self.pusher.push(work, totals.get("duplicates", {}), self._writer, totals.get("fitted", ()))
        worker_status.count(ranges=1)
        return pushed

    def merge(self, partials: Iterable[Pushed]) -> Pushed:
        return Pushed().merge(*partials)

    def finish(self, total: Pushed, totals: Totals) -> Verified:
        return verify(total, self.target, self.baseline)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@dataclasses.dataclass(frozen=True)
class CountItems(Stage):
    """Counts the items for each server: a `Pushed`. The attributes are as in `PushRanges`."""

    pusher: Pusher
    all_ranges: Sequence[Any]
    name = "count"

    def ranges(self, totals: Totals) -> Sequence[Any]:
        return self.all_ranges

    def describe(self, work: Any) -> str:
        return _describe(work)

    def process(self, work: Any, totals: Totals) -> Pushed:
        return self.pusher.count(work, totals.get("duplicates", {}), totals.get("fitted", ()))

    def merge(self, partials: Iterable[Pushed]) -> Pushed:
        return Pushed().merge(*partials)


def _describe(work: WorkRange | ConvertedRange) -> str:
    return f"{work}, {work.path}" if isinstance(work, ConvertedRange) else str(work)


class ReverbRangeWriter:
    """Writes the items of a range's episodes with a writer that ranges share (an `processing.ranges.RangeWriter`).

    Attributes:
      due: the number of items that each server should have received so far, in each table.
    """

    def __init__(self, conversion: ItemConversion, target: ReverbTarget, writer: Writer):
        self._target, self._writer = target, writer
        self._converter: ItemConverter[Any] = conversion.converter(writer.encode)
        self._key: EpisodeKey | None = None
        self.due: Counter[str] = Counter()

    @property
    def predicted(self) -> int:
        return self._converter.predicted

    @property
    def unused_steps(self) -> Mapping[str, UnusedSteps]:
        return self._converter.unused_steps

    def write(self, batch: Batch) -> None:
        before = self._converter.predicted
        for items in self._converter.encode_batch(batch):
            self._writer.write(items)
        self._key = batch.episodes[0].key
        self.due[self._target.choose_server(self._key)] += self._converter.predicted - before

    def write_items(self, items: Items) -> None:
        """Writes items that were converted before, from one episode; all or none of them.

        Raises:
          BadEpisode: they cannot be written.
        """
        self._writer.write(self._converter.encode_items(items))
        self.due[self._target.choose_server(items.key)] += len(items)

    def finish(self) -> None:
        """Writes the items completed by the end of the range, and waits until the servers have confirmed all.

        Raises:
          NotVerifiedError: a server did not confirm all items.
        """
        before = self._converter.predicted
        for items in self._converter.finish():
            self._writer.write(items)
        if self._key is not None:
            self._writer.finish(self._key)
            self.due[self._target.choose_server(self._key)] += self._converter.predicted - before
        self._writer.flush()

    def abort(self) -> None:
        """Items already sent stay; a retry does not write them twice."""
