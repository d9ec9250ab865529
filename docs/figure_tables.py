"""Writes the tables of `reference/figures.md` from `figures.json`.

    python docs/figure_tables.py

`make docs` runs it, and a test fails if the page differs from what it writes. A table follows each comment
`<!-- figures: SECTION -->` of the page.
"""

import json
import re
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parent / "figures.json"
PAGE = Path(__file__).parent / "reference" / "figures.md"

_TABLE = re.compile(r"(<!-- figures: (\w+) -->\n)(?:\|.*\n)*")


def page() -> str:
    """The page with its tables up to date."""
    sections = json.loads(FIGURES.read_text())
    return _TABLE.sub(lambda found: found[1] + table(sections[found[2]]), PAGE.read_text())


def table(figures: list[dict[str, Any]]) -> str:
    rows = ["| what | compared with | ratio | benchmark |", "|---|---|---|---|"]
    for figure in figures:
        result = figure.get("ratio") or figure["value"]
        if "ours" in figure:
            result += f" ({figure['ours']:,} vs. {figure['theirs']:,} {figure['unit']})"
        benchmark = f"`{figure['benchmark']}`" if figure["benchmark"] else "measured once"
        cells = [figure["what"], figure.get("against", ""), result, benchmark]
        rows.append("| " + " | ".join(cells).replace("|  |", "| |") + " |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
