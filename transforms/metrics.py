"""The metrics of a range."""

from __future__ import annotations

import resource
import time

from apache_beam.metrics import Metrics

from rlds_beam import worker_status
from rlds_beam.processing.report import Report
from rlds_beam.worker_status import METRICS_NAMESPACE

_COUNTED = ("records", "bytes", "steps", "rejected")


class RangeMetrics:
    """The metrics of a DoFn that works on ranges: time, amount of work, and memory. Picklable."""

    def __init__(self) -> None:
        self._ranges = Metrics.counter(METRICS_NAMESPACE, "ranges")
        self._counters = {name: Metrics.counter(METRICS_NAMESPACE, name) for name in _COUNTED}
        self._began = Metrics.distribution(METRICS_NAMESPACE, "range_began_msec")
        self._ended = Metrics.distribution(METRICS_NAMESPACE, "range_ended_msec")
        self._memory = Metrics.distribution(METRICS_NAMESPACE, "peak_memory_kb")

    def begin(self) -> None:
        """Call before a range."""
        self._began.update(int(time.time() * 1000))

    def end(self, report: Report) -> None:
        """Call after a range, with its report."""
        self._ended.update(int(time.time() * 1000))
        self._ranges.inc()
        for name, counter in self._counters.items():
            counter.inc(getattr(report, name))
        self._memory.update(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        worker_status.count(ranges=1)
