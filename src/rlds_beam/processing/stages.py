"""The stages that come before those of a job: the search for duplicates, and fitting connectors."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rlds_beam.checking.duplicates import (
    Duplicates,
    Fingerprints,
    Hashed,
    Suspects,
    confirm,
    duplicates_among,
    known_fingerprints,
    scan,
    suspects_by_segment,
)
from rlds_beam.connectors.base import Accumulator
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.processing.job import Job, Stage, Totals
from rlds_beam.processing.ranges import RangeFitter
from rlds_beam.reading.base import Segment, Source, WorkRange
from rlds_beam.reading.framing import Framing
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.shard_list import SegmentList
from rlds_beam.worker_status import count


def find_duplicates(source: Source, framing: Framing, name: str = "duplicates") -> Job:
    """The stages whose last result is the `Duplicates` of a dataset.

    Reads the framing of all records, and the payload of records with equal fingerprints. The framing of local files is
    read here, in this process; workers read other files.
    """
    ranges = plan_ranges(source, starts=framing.record_starts)
    segments = SegmentList(ranges)
    known = known_fingerprints(framing, segments)
    suspects = f"suspects of {name}"
    find = Confirm(name, source.dataset, source.files, suspects)
    if known is None:
        return Scan(suspects, source.files, segments), find
    return Known(suspects, list(suspects_by_segment(known, segments))), find


@dataclasses.dataclass(frozen=True)
class Known(Stage):
    """No work: its result is known.

    Attributes:
      result: the result.
    """

    name: str
    result: Any

    def finish(self, total: Any, totals: Totals) -> Any:
        return self.result


@dataclasses.dataclass(frozen=True)
class Scan(Stage):
    """Finds the records whose fingerprint is not unique: the list of `Suspects`."""

    name: str
    files: RecordFormat
    segments: Sequence[tuple[str, Segment]]

    def ranges(self, totals: Totals) -> Iterable[tuple[int, Segment]]:
        return ((i, segment) for i, (_, segment) in enumerate(self.segments))

    def describe(self, work: tuple[int, Segment]) -> str:
        return work[1].shard.path

    def process(self, work: tuple[int, Segment], totals: Totals) -> Fingerprints:
        fingerprints = scan(self.files, *work)
        count(scanned=1)
        return fingerprints

    def merge(self, partials: Iterable[Fingerprints]) -> Fingerprints:
        # 24 bytes per record, all in one place: 60 MB for all episodes of Open X-Embodiment.
        return Fingerprints.concatenate(partials)

    def finish(self, total: Fingerprints, totals: Totals) -> list[Suspects]:
        return list(suspects_by_segment(total, self.segments))


@dataclasses.dataclass(frozen=True)
class Confirm(Stage):
    """Hashes the suspects, and compares them: the `Duplicates`."""

    name: str
    dataset: str
    files: RecordFormat
    suspects: str

    def ranges(self, totals: Totals) -> Iterable[Suspects]:
        found: list[Suspects] = totals[self.suspects]
        return found

    def describe(self, work: Suspects) -> str:
        return work[1].shard.path

    def process(self, work: Suspects, totals: Totals) -> list[Hashed]:
        return [confirm(self.files, *work)]

    def merge(self, partials: Iterable[list[Hashed]]) -> list[Hashed]:
        return [*itertools.chain.from_iterable(partials)]

    def finish(self, total: list[Hashed], totals: Totals) -> Duplicates:
        return duplicates_among(self.dataset, total)


def fit_connectors(
    fitter: RangeFitter,
    ranges: Sequence[WorkRange],
    keep: Callable[[Any], None] | None = None,
    name: str = "fitted",
    duplicates: str = "duplicates",
) -> Job:
    """A stage for each connector that must be fitted: all ranges are read. The last result is that of all of them.

    Args:
      fitter: fits connectors to ranges.
      ranges: all ranges, also those that are already converted.
      keep: called with the results, to save them for another run.
      name: the name of the last stage; it and those before it give the results (`ConnectorRunner.fit`) so far.
      duplicates: the name of the stage that found the duplicates, if any did.
    """
    names = [f"{name} {i}" for i in range(1, fitter.connecting.unfitted)] + [name]
    return tuple(
        FitConnector(name, fitter, ranges, before, duplicates, keep if name == names[-1] else None)
        for before, name in itertools.pairwise(["", *names])
    )


@dataclasses.dataclass(frozen=True)
class FitConnector(Stage):
    """Fits the first connector without a result: the results of the connectors so far.

    Accumulators are merged in the order of the ranges, so the result does not depend on the number of workers.
    """

    name: str
    fitter: RangeFitter
    all_ranges: Sequence[WorkRange]
    before: str
    duplicates: str
    keep: Callable[[Any], None] | None

    def ranges(self, totals: Totals) -> Iterable[WorkRange]:
        return self.all_ranges

    def process(self, work: WorkRange, totals: Totals) -> list[tuple[str, Accumulator]]:
        results = totals.get(self.before, ())
        return [(str(work), self.fitter.gather(work, totals.get(self.duplicates, {}), results))]

    def merge(self, partials: Iterable[list[tuple[str, Accumulator]]]) -> list[tuple[str, Accumulator]]:
        return [*itertools.chain.from_iterable(partials)]

    def finish(self, total: list[tuple[str, Accumulator]], totals: Totals) -> tuple[Any, ...]:
        before = tuple(totals.get(self.before, ()))
        gathered = [accumulator for _, accumulator in sorted(total, key=lambda entry: entry[0])]
        first = gathered[0] if gathered else self.fitter.connecting.fit(before).accumulator()
        results = (*before, first.merge(*gathered[1:]).finish())
        if self.keep is not None:
            self.keep(results)
        return results
