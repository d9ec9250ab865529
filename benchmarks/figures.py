"""Keeps what a benchmark measured in `docs/figures.json`, from which `make docs` makes the page and the charts.

A row is known by its command and its figure's name. A full run replaces the rows that it measured and adds new ones;
those of a peer that is not installed here keep their last values. If a figure no longer exists, remove its row by hand.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from measuring import Figure

PATH = Path(__file__).resolve().parent.parent / "docs" / "figures.json"

Rows = dict[str, list[dict[str, Any]]]
"""Command (`run.py state`) -> its rows."""


def save(command: str, figures: Iterable[Figure], path: Path = PATH) -> None:
    """Updates the rows of a command (`run.py state`) with what a full run of it measured today."""
    measured = [row(figure) for figure in figures if figure.what or figure.target is not None]
    known: Rows = json.loads(path.read_text())
    rows = {one["name"]: one for one in known.get(command, [])} | {one["name"]: one for one in measured}
    if rows:
        path.write_text(text({**known, command: list(rows.values())}))


def row(figure: Figure) -> dict[str, Any]:
    """A figure as JSON: only what is known of it, numbers with three digits."""
    what, _, against = figure.name.rpartition(": ") if ": " in figure.name else (figure.name, "", "")
    shown = {
        "name": figure.name,
        "what": figure.what or what,
        "against": figure.against or ("" if figure.what else against.removeprefix("times ").removeprefix("of ")),
        "value": rounded(figure.measured),
        "unit": figure.unit,
        "less_is_better": not figure.higher_is_better,
        "peer": figure.peer,
        "front": figure.front,
        "range": [rounded(min(figure.runs)), rounded(max(figure.runs))] if len(figure.runs) > 1 else None,
        "runs": len(figure.runs) or None,
        "date": datetime.date.today().isoformat(),
    }
    return {key: value for key, value in shown.items() if value not in ("", None, False)}


def rounded(value: float) -> float:
    """Three digits; integers above 100."""
    return round(value) if abs(value) >= 100 else float(f"{value:.3g}")


def text(rows: Rows) -> str:
    """The file's content: one row a line."""
    parts = []
    for command, some in rows.items():
        lines = ",\n".join(f"    {json.dumps(one, ensure_ascii=False)}" for one in some)
        parts.append(f"  {json.dumps(command)}: [\n{lines}\n  ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"
