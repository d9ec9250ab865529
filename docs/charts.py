"""Draws the pictures of the front page: the measured figures, and the formats.

    python docs/charts.py

`make docs` runs it, and a test fails if the files in `docs/pictures` differ from what it writes.
"""

import json
import math
from pathlib import Path
from typing import NamedTuple

import svg

from rlds_beam.formats.registry import OUTPUTS, SOURCES

FIGURES = Path(__file__).parent / "figures.json"

WIDTH = 560
TIMES = "\N{MULTIPLICATION SIGN}"


class Bar(NamedTuple):
    """A bar of the chart: the task, the program that it is compared with, and how many times as fast rlds-beam is."""

    task: str
    peer: str
    ratio: float


def bars() -> list[Bar]:
    """The figures that have a label for the chart, the largest first."""
    figures = [figure for section in json.loads(FIGURES.read_text()).values() for figure in section]
    found = [Bar(*f["chart"], float(f["ratio"].split(";")[0])) for f in figures if "chart" in f]
    return sorted(found, key=lambda bar: -bar.ratio)


def speed() -> svg.Picture:
    """The measured ratios as bars on a logarithmic scale."""
    shown = bars()
    top, row, left, right = 66, 56, 8, 490
    bottom = top + row * len(shown)
    described = "; ".join(f"{bar.task}: {bar.ratio:g} times as fast as {bar.peer}" for bar in shown)
    picture = svg.Picture(WIDTH, bottom + 34, "Speedup of rlds-beam over other programs", f"{described}.")

    def place(ratio: float) -> float:
        return left + (right - left) * math.log10(ratio) / 3

    picture.text(left, 22, "Speedup of rlds-beam over other programs", size=20, bold=True)
    picture.text(left, 48, "Same data, same machine; logarithmic scale", size=17, color="muted")
    for tick in (1, 10, 100, 1000):
        x = place(tick)
        picture.line((x, top), (x, bottom), dashed=tick > 1)
        picture.text(
            x, bottom + 22, f"{tick:,}{TIMES}", anchor="start" if tick == 1 else "middle", size=17, color="muted"
        )
    for i, bar in enumerate(shown):
        y = top + i * row + 22
        picture.text(left + 6, y, bar.task, size=18, bold=True, aside=f"vs. {bar.peer}")
        picture.box(left, y + 8, place(bar.ratio) - left, 16, fill="accent", stroke="", radius=2)
        picture.text(place(bar.ratio) + 8, y + 23, f"{bar.ratio:g}{TIMES}", size=19, bold=True)
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
    return svg.files("speed", speed()) | svg.files("formats", formats())


if __name__ == "__main__":
    svg.write(pictures())
