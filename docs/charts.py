"""Draws the measured figures, for the front page and for their own, and the formats.

    python docs/charts.py

`make docs` runs it, and a test fails if the files in `docs/pictures` differ from what it writes.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import svg

from rlds_beam.formats.registry import OUTPUTS, SOURCES

FIGURES = Path(__file__).parent / "figures.json"

WIDTH = 560
TIMES = "\N{MULTIPLICATION SIGN}"


class Bar(NamedTuple):
    """A bar of a chart: the task, the program that it is compared with, and how many times as fast rlds-beam is."""

    task: str
    peer: str
    ratio: float

    def __str__(self) -> str:
        return f"{self.task}: {self.ratio:,g} times as fast as {self.peer}"


def measured() -> list[dict[str, Any]]:
    """The figures that compare with another program, the largest first."""
    found = [figure for rows in json.loads(FIGURES.read_text()).values() for figure in rows if "peer" in figure]
    return sorted(found, key=lambda figure: -figure["value"])


def speed() -> svg.Picture:
    """The measured ratios that the front page shows."""
    bars = [Bar(figure["front"], figure["peer"], figure["value"]) for figure in measured() if "front" in figure]
    return _ratios("Speedup of rlds-beam over other programs", bars, row=56, size=18, thick=16)


def all_ratios() -> svg.Picture:
    """All measured ratios to other programs."""
    bars = [Bar(figure["what"].replace("`", ""), figure["peer"], figure["value"]) for figure in measured()]
    return _ratios("All measured ratios to other programs", bars, row=42, size=15, thick=9)


def _ratios(title: str, bars: Sequence[Bar], *, row: float, size: float, thick: float) -> svg.Picture:
    """Ratios as bars on a logarithmic scale, from 1 to the right, or to the left if the other program is faster."""
    top, left, right = 66, 8, 490
    bottom = top + row * len(bars)
    picture = svg.Picture(WIDTH, bottom + 34, title, f"{'; '.join(map(str, bars))}.")
    lowest = min(0, math.floor(math.log10(min(bar.ratio for bar in bars))))
    highest = max(3.0, math.log10(max(bar.ratio for bar in bars)))

    def place(ratio: float) -> float:
        return left + (right - left) * (math.log10(ratio) - lowest) / (highest - lowest)

    picture.text(left, 22, title, size=20, bold=True)
    picture.text(left, 48, "Same data, same machine; logarithmic scale", size=17, color="muted")
    for power in range(lowest, math.floor(highest) + 1):
        x, anchor = place(10**power), "start" if power == lowest else "middle"
        picture.line((x, top), (x, bottom), dashed=power != 0)
        picture.text(x, bottom + 22, f"{10**power:,g}{TIMES}", anchor=anchor, size=17, color="muted")
    for i, bar in enumerate(bars):
        y, first, last = top + i * row + size + 4, *sorted((place(1), place(bar.ratio)))
        picture.text(left + 6, y, bar.task, size=size, bold=True, aside=f"vs. {bar.peer}")
        color = "accent" if bar.ratio >= 1 else "muted"
        picture.box(first, y + thick / 2, last - first, thick, fill=color, stroke="", radius=2)
        label, middle = f"{bar.ratio:,g}{TIMES}", y + thick + size * 0.35
        picture.text(last + 8, middle, label, size=size, bold=True)
    return picture


RECORDED = ("environments",)
"""Where `record` gets its episodes."""
PUSHED = ("Reverb tables",)
"""What `push` fills."""
WORK = ("check every episode", "repair, or set aside", "run connectors", "write in parallel")


def formats() -> svg.Picture:
    """The formats of `--from` on the left, those of `--to` on the right."""
    sources, outputs = (*SOURCES, *RECORDED), (*OUTPUTS, *PUSHED)
    row, top, wide = 32, 36, 150
    rows = max(len(sources), len(outputs))
    bottom = top + rows * row
    picture = svg.Picture(
        WIDTH,
        bottom + 4,
        "Formats that rlds-beam reads and writes",
        f"rlds-beam reads {', '.join(sources)}. It checks every episode, repairs it or sets it aside, and runs "
        f"connectors. It writes {', '.join(outputs)}.",
    )
    middle, half = WIDTH / 2, 98
    center = top + rows * row / 2
    for x, names, label in ((2, sources, "reads"), (WIDTH - wide - 2, outputs, "writes")):
        picture.text(x + wide / 2, 24, label, size=19, anchor="middle", bold=True)
        first = center - len(names) * row / 2
        for i, name in enumerate(names):
            picture.box(x, first + i * row + 2, wide, row - 5, name, mono=name in SOURCES + OUTPUTS, size=17)
    picture.box(middle - half, center - 98, 2 * half, 196, fill="accent-soft", stroke="accent", radius=10)
    picture.text(middle, center - 60, "rlds-beam", size=23, anchor="middle", bold=True, color="accent")
    for i, line in enumerate(WORK):
        picture.text(middle, center - 24 + i * 25, line, size=18, anchor="middle")
    picture.text(middle, center + 82, "local, Flink, Dataflow", size=16, anchor="middle", color="muted")
    for x in (wide + 6, middle + half + 4):
        picture.arrow((x, center), (x + middle - half - wide - 10, center), width=2.5, color="accent")
    return picture


def pictures() -> dict[Path, str]:
    """Path -> content of every file that this script writes."""
    return svg.files("speed", speed()) | svg.files("figures", all_ratios()) | svg.files("formats", formats())


if __name__ == "__main__":
    svg.write(pictures())
