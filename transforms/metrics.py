"""The one namespace of every Beam metric of this package, and what a range reports of itself."""

from __future__ import annotations

import resource
import time

from apache_beam.metrics import Metrics

METRICS_NAMESPACE = "rlds_beam"


class RangeMetrics:
    """What a DoFn that works on ranges measures: when, how many steps, how much memory. Pickles."""

    def __init__(self) -> None:
        self._steps = Metrics.counter(METRICS_NAMESPACE, "steps")
        self._began = Metrics.distribution(METRICS_NAMESPACE, "range_began_msec")
        self._ended = Metrics.distribution(METRICS_NAMESPACE, "range_ended_msec")
        self._memory = Metrics.distribution(METRICS_NAMESPACE, "peak_memory_kb")

    def begin(self) -> None:
        """Before a range."""
        self._began.update(int(time.time() * 1000))

    def end(self, steps: int) -> None:
        """After a range of so many steps."""
        self._ended.update(int(time.time() * 1000))
        self._steps.inc(steps)
        self._memory.update(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
