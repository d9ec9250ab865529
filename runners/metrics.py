"""Reads the metrics of a finished job."""

from __future__ import annotations

from typing import Any

from rlds_beam.worker_status import METRICS_NAMESPACE


def read_metrics(result: Any) -> dict[str, Any]:
    """This package's counters (int), distributions (`.min`, `.max`, `.sum`), and string sets, over all steps."""
    values: dict[str, Any] = {}
    metrics = result.metrics().query()
    for kind in ("counters", "distributions", "string_sets"):
        for metric in metrics.get(kind, ()):
            if metric.key.metric.namespace == METRICS_NAMESPACE:
                name, value = metric.key.metric.name, metric.committed
                if name not in values:
                    values[name] = value
                elif kind == "counters":
                    values[name] += value
                elif kind == "string_sets":
                    values[name] = values[name] | value
                else:
                    values[name] = values[name].data.combine(value.data)
    return values
