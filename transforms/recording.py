"""One range of trajectories rolled out, and one finished file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from rlds_beam.checking.report import Report
from rlds_beam.output.commits import RangeCommit
from rlds_beam.recording.ranges import RangeRecorder, RolloutRange
from rlds_beam.transforms.metrics import RangeMetrics
from rlds_beam.worker_status import at_work


class RecordRanges(beam.PTransform):
    """Rolls out and writes whole ranges: a PCollection of `RangeCommit`.

    Without Beam: `recording.ranges.RangeRecorder`.

    Args:
      recorder: what to do with a range.
    """

    def __init__(self, recorder: RangeRecorder):
        super().__init__()
        self._recorder = recorder

    def expand(self, ranges: Any) -> Any:
        return ranges | "Record" >> beam.ParDo(_RecordRangeFn(self._recorder))


class _RecordRangeFn(beam.DoFn):
    def __init__(self, recorder: RangeRecorder):
        self._recorder = recorder
        self._metrics = RangeMetrics()

    def process(self, work: RolloutRange) -> Iterator[RangeCommit]:
        self._metrics.begin()
        with at_work(work):
            commit = self._recorder.record(work)
        self._metrics.end(Report.from_json(commit.report))
        yield commit
