"""A line chart as SVG, without a drawing library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 380, 300, 46, 34, 12, 44
COLORS = ("#c0392b", "#2c6fbb", "#2e8b57", "#8e44ad", "#d68910")

Lines = Mapping[str, Sequence[tuple[float, float]]]


def chart(panels: Mapping[str, Lines], x_label: str, y_label: str) -> str:
    """Panels side by side, each with lines by name; both axes are logarithmic, the y axis starts at 1."""
    points = [point for lines in panels.values() for line in lines.values() for point in line]
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    top = max(2.0, max(y for _, y in points)) * 1.05
    parts = [
        _panel(name, lines, i * WIDTH, (low, high), top, x_label) for i, (name, lines) in enumerate(panels.items())
    ]
    names = list(next(iter(panels.values())))
    legend = "".join(_legend(name, i) for i, name in enumerate(names))
    label = f'<text x="12" y="{TOP - 16}">{escape(y_label)}</text>'
    size = f'width="{WIDTH * len(panels)}" height="{HEIGHT + 24}"'
    style = "text{font:11px sans-serif;fill:#333}polyline{fill:none;stroke-width:1.8}.axis{stroke:#ddd}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{label}{"".join(parts)}{legend}</svg>\n'
    )


def _panel(name: str, lines: Lines, left: float, span: tuple[float, float], top: float, x_label: str) -> str:
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(value: float) -> float:
        return left + LEFT + wide * math.log(value / span[0]) / math.log(span[1] / span[0])

    def y(value: float) -> float:
        return TOP + high * (1 - math.log(max(value, 1)) / math.log(top))

    parts = [f'<text x="{left + LEFT + wide / 2}" y="{TOP - 16}" text-anchor="middle">{escape(name)}</text>']
    for tick in _ticks(top):
        parts.append(
            f'<line class="axis" x1="{left + LEFT}" x2="{left + LEFT + wide}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        )
        parts.append(f'<text x="{left + LEFT - 5}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for value in sorted({point[0] for line in lines.values() for point in line}):
        parts.append(f'<text x="{x(value):.1f}" y="{TOP + high + 15}" text-anchor="middle">{value:g}</text>')
    parts.append(
        f'<text x="{left + LEFT + wide / 2}" y="{TOP + high + 30}" text-anchor="middle">{escape(x_label)}</text>'
    )
    for colour, line in zip(COLORS, lines.values(), strict=False):
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line)
        parts.append(f'<polyline stroke="{colour}" points="{path}"/>')
    return "".join(parts)


def _ticks(top: float) -> list[float]:
    steps = (1, 1.1, 1.2, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100)
    return [tick for tick in steps if tick <= top and (top < 4 or tick not in (1.1, 1.2))]


def _legend(name: str, index: int) -> str:
    x, y = 60 + index * 230, HEIGHT + 10
    return (
        f'<polyline stroke="{COLORS[index]}" points="{x},{y - 4} {x + 20},{y - 4}"/>'
        f'<text x="{x + 26}" y="{y}">{escape(name)}</text>'
    )
