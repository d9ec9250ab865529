"""Recall and false alarms of each signal, on three kinds of data with defects in three strengths."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from defects import DEFECTS
from measuring import Figure, Sizes, table
from recall import BROKEN, EPISODES, Result, measure

from rlds_beam.checking.signals import SIGNALS

RECALL = Path(__file__).resolve().parents[2] / "docs" / "signal_recall.json"
SEEDS = 10


def defects(sizes: Sizes) -> list[Figure]:
    """Prints the table. A full run keeps it in `docs/signal_recall.json`, for the reference of signals."""
    seeds = sizes.of(SEEDS, 1)
    found = rows(measure(range(seeds)))
    title = f"defects in {BROKEN} of {EPISODES} episodes, {seeds} seed(s)"
    table(title, [*found[0]], *([*row.values()] for row in found))
    if not sizes.quick:
        about = {"date": datetime.date.today().isoformat(), "seeds": seeds}
        lines = ",\n".join(f"    {json.dumps(row)}" for row in found)
        RECALL.write_text(json.dumps(about)[:-1] + f', "rows": [\n{lines}\n]}}\n')
    return []


def rows(results: dict[tuple[str, str, str], Result]) -> list[dict[str, str]]:
    """The results as text, in the order of `SIGNALS`."""
    order, known = [*SIGNALS], {defect.name: defect for defect in DEFECTS}
    found = []
    for (signal, defect, kind), result in sorted(results.items(), key=lambda item: order.index(item[0][0])):
        unit = known[defect].unit if defect else ""
        found.append(
            {
                "signal": signal,
                "defect": defect,
                "data": kind,
                "strength": " / ".join(f"{s:g}" for s in known[defect].strengths) + f" {unit}" if unit else "",
                "found": " / ".join(f"{100 * share:.0f}" for share in result.recall) + " %" * bool(result.recall),
                "false alarms": f"{100 * result.false_alarms:.1f} %",
            }
        )
    return found
