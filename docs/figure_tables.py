"""Writes the tables of `reference/figures.md` from `figures.json`, which the benchmarks keep up to date.

    python docs/figure_tables.py

`make docs` runs it, and a test fails if the page differs from what it writes. The tables follow the comment
`<!-- figures -->` of the page.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parent / "figures.json"
PAGE = Path(__file__).parent / "reference" / "figures.md"
MARK = "<!-- figures -->\n"

TOPICS: Mapping[str, tuple[str, ...]] = {
    "Convert RLDS": (
        "run.py state",
        "run.py images",
        "run.py workers",
        "run.py cold",
        "flink.py",
    ),
    "Push into Reverb": ("run.py reverb",),
    "Train": ("run.py rllib", "run.py loading", "run.py remote"),
    "Record": ("run.py record",),
    "Robot data and other formats": (
        "run.py rlds",
        "run.py lerobot",
        "run.py hdf5",
        "run.py ros2",
    ),
}
"""Heading -> the commands whose figures are below it. Others follow at the end."""


def page() -> str:
    """The page with its tables up to date."""
    head, mark, _ = PAGE.read_text().partition(MARK)
    measured: dict[str, list[dict[str, Any]]] = json.loads(FIGURES.read_text())
    others = tuple(command for command in measured if command not in {one for some in TOPICS.values() for one in some})
    parts = [head + mark]
    for title, commands in {**TOPICS, "Others": others}.items():
        rows = [row(command, figure) for command in commands for figure in measured.get(command, [])]
        if rows:
            top = ["| what | compared with | ratio | runs | measured by | date |", "|---|---|---|---|---|---|"]
            parts.append("\n".join([f"\n## {title}\n", *top, *rows, ""]))
    return "".join(parts)


def row(command: str, figure: Mapping[str, Any]) -> str:
    between = " to ".join(f"{bound:,}" for bound in figure.get("range", ()))
    between = ": ".join(filter(None, (str(figure.get("runs", "")), between)))
    value = f"{figure['value']:,} {figure.get('unit', '')}".strip() + " ↓" * figure.get("less_is_better", False)
    cells = [figure["what"], figure.get("against", ""), value, between, f"`{command}`", figure["date"]]
    return ("| " + " | ".join(cells) + " |").replace("|  |", "| |").replace("|  |", "| |")


if __name__ == "__main__":
    PAGE.write_text(page())
