"""What a finished job measured of itself."""

from __future__ import annotations

from typing import Any

from rlds_beam.transforms.metrics import METRICS_NAMESPACE


def read_metrics(result: Any) -> dict[str, Any]:
    """Counters (int) and distributions (with `.min`, `.max`, `.sum`) of this package, by name, over all steps."""
    found: dict[str, Any] = {}
    metrics = result.metrics().query()
    for kind in ("counters", "distributions"):
        for metric in metrics[kind]:
            if metric.key.metric.namespace == METRICS_NAMESPACE:
                name, value = metric.key.metric.name, metric.committed
                if name not in found:
                    found[name] = value
                elif kind == "counters":
                    found[name] += value
                else:
                    found[name] = found[name].data.combine(value.data)
    return found
