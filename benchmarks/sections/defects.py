"""Recall and false alarms of each signal, on three kinds of data with defects in three strengths."""

from __future__ import annotations

import defects as benchmark
from measuring import Figure, Sizes, table

from rlds_beam.checking.signals import SIGNALS


def defects(sizes: Sizes) -> list[Figure]:
    """Prints the table; `docs/signal_recall.json` keeps it for the reference of signals."""
    results = benchmark.measure(range(sizes.of(10, 1)))
    known, rows = {defect.name: defect for defect in benchmark.DEFECTS}, []
    order = [*SIGNALS]
    for (signal, name, kind), result in sorted(results.items(), key=lambda item: order.index(item[0][0])):
        recall = " / ".join(f"{100 * share:.0f}" for share in result.recall)
        strengths = " / ".join(f"{s:g}" for s in known[name].strengths) if name else ""
        unit = known[name].unit if name else ""
        rows.append([signal, name, kind, f"{strengths} {unit}", recall, f"{100 * result.false_alarms:.1f}"])
    head = ["signal", "defect", "kind", "strengths", "found, %", "false alarms, %"]
    table("defects in 5 of 50 episodes", head, *rows)
    return []
