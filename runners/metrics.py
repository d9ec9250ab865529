"""What a finished job measured of itself."""

from __future__ import annotations

from typing import Any

from rlds_beam.transforms.metrics import METRICS_NAMESPACE


def read_metrics(result: Any) -> dict[str, Any]:
    """Counters (int), distributions (`.min`, `.max`, `.sum`) and sets of strings of this package, over all steps."""
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
