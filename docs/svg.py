"""Pictures as SVG, in a light and a dark version, without a drawing library.

    picture = Picture(560, 120, "An episode", "Three steps; the last holds only an observation.")
    picture.box(20, 20, 120, 40, "step 0")
    picture.arrow((140, 40), (180, 40))
    write(files("episode", picture))

writes `docs/pictures/episode-light.svg` and `episode-dark.svg`, which differ only in their colors. Lengths are in
pixels; y points down. Keep a picture at most 600 pixels wide, and its text at least 15: a phone shows it 360 wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

PICTURES = Path(__file__).parent / "pictures"

SANS = "-apple-system,BlinkMacSystemFont,'Segoe UI','Noto Sans',Helvetica,Arial,sans-serif"
MONO = "ui-monospace,SFMono-Regular,'SF Mono',Menlo,Consolas,'Liberation Mono',monospace"

THEMES: Mapping[str, Mapping[str, str]] = {
    "light": {
        "ink": "#1f2328",
        "muted": "#59636e",
        "line": "#d1d9e0",
        "panel": "#f6f8fa",
        "page": "#ffffff",
        "accent": "#0b6e99",
        "accent-soft": "#dbeef7",
        "ok": "#1a7f37",
        "ok-soft": "#dafbe1",
        "warn": "#9a6700",
        "warn-soft": "#fff8c5",
        "bad": "#cf222e",
        "bad-soft": "#ffebe9",
    },
    "dark": {
        "ink": "#e6edf3",
        "muted": "#9198a1",
        "line": "#3d444d",
        "panel": "#161b22",
        "page": "#0d1117",
        "accent": "#58b8e0",
        "accent-soft": "#12344a",
        "ok": "#3fb950",
        "ok-soft": "#12321d",
        "warn": "#d29922",
        "warn-soft": "#332a12",
        "bad": "#f85149",
        "bad-soft": "#3c1618",
    },
}
"""Theme -> role -> color. Every shape and text names a role; `page` is the color behind the picture."""

Point = tuple[float, float]


def text_width(content: str, size: float = 15, bold: bool = False, mono: bool = False) -> float:
    """A generous estimate of how wide a text is: the fonts differ between systems."""
    return len(content) * size * (0.61 if mono else 0.57 if bold else 0.53)


class Picture:
    """Shapes and text, later ones on top.

    Args:
      width, height: in pixels.
      title: names the picture.
      description: says what it shows, for readers who cannot see it.
    """

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        self.width, self.height = width, height
        self.title, self.description = title, description
        self._parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        content: str,
        *,
        size: float = 15,
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
        color: str = "ink",
        aside: str = "",
    ) -> None:
        """A line of text with its baseline at `y`; `anchor`: which part is at `x`: `start`, `middle`, or `end`.

        `aside` continues the line in muted, regular text.
        """
        classes = " ".join([f"f-{color}", *(["b"] if bold else []), *(["m"] if mono else [])])
        place = f'x="{_number(x)}" y="{_number(y)}" font-size="{_number(size)}"'
        at = "" if anchor == "start" else f' text-anchor="{anchor}"'
        rest = f' <tspan class="f-muted n">{escape(aside, quote=False)}</tspan>' if aside else ""
        self._parts.append(f'<text class="{classes}" {place}{at}>{escape(content, quote=False)}{rest}</text>')

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        label: str = "",
        *,
        fill: str = "panel",
        stroke: str = "line",
        color: str = "ink",
        size: float = 15,
        bold: bool = False,
        mono: bool = False,
        radius: float = 6,
        dashed: bool = False,
    ) -> None:
        """A rounded box; the lines of `label` are centered in it. `stroke=""` draws no border."""
        border = f" s-{stroke}" if stroke else ""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        place = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
        self._parts.append(f'<rect class="f-{fill}{border}" {place} rx="{_number(radius)}"{dash}/>')
        lines = label.split("\n") if label else []
        top = y + height / 2 - (len(lines) - 1) * size * 0.65 + size * 0.35
        for i, line in enumerate(lines):
            baseline = top + i * size * 1.3
            self.text(x + width / 2, baseline, line, size=size, anchor="middle", bold=bold, mono=mono, color=color)

    def line(self, *points: Point, color: str = "line", width: float = 1, dashed: bool = False) -> None:
        """A line through the points."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._parts.append(
            f'<polyline class="s-{color}" fill="none" points="{path}" stroke-width="{_number(width)}"{dash}/>'
        )

    def arrow(self, *points: Point, color: str = "muted", width: float = 1.5, dashed: bool = False) -> None:
        """A line through the points with an arrow head at the last one."""
        (x0, y0), (x, y) = points[-2:]
        length = math.hypot(x - x0, y - y0)
        dx, dy = (x - x0) / length, (y - y0) / length
        back = (x - 8 * dx, y - 8 * dy)
        self.line(*points[:-1], back, color=color, width=width, dashed=dashed)
        corners = [(x, y), (back[0] - 4 * dy, back[1] + 4 * dx), (back[0] + 4 * dy, back[1] - 4 * dx)]
        path = " ".join(f"{_number(a)},{_number(b)}" for a, b in corners)
        self._parts.append(f'<polygon class="f-{color}" points="{path}"/>')

    def svg(self, theme: str) -> str:
        """The picture as the text of an SVG file; `theme`: `light` or `dark`."""
        width, height = _number(self.width), _number(self.height)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'height="{height}" role="img" aria-labelledby="title desc">',
                f'<title id="title">{escape(self.title, quote=False)}</title>',
                f'<desc id="desc">{escape(self.description, quote=False)}</desc>',
                f"<style>{_style(THEMES[theme], self._parts)}</style>",
                *self._background(theme),
                *self._parts,
                "</svg>\n",
            ]
        )

    def _background(self, theme: str) -> list[str]:
        """White behind the light version: a page that shows only this one stays readable in a dark browser."""
        size = f'width="{_number(self.width)}" height="{_number(self.height)}"'
        return [f'<rect {size} fill="{THEMES[theme]["page"]}"/>'] if theme == "light" else []


def _style(colors: Mapping[str, str], parts: Iterable[str]) -> str:
    """The style sheet: the fonts, and the roles that are used."""
    drawn = "".join(parts)
    rules = [f"text{{font-family:{SANS}}}", ".b{font-weight:600}", ".n{font-weight:400}", f".m{{font-family:{MONO}}}"]
    for role, color in colors.items():
        rules += [
            f".{kind}-{role}{{{name}:{color}}}"
            for kind, name in (("f", "fill"), ("s", "stroke"))
            if any(f"{kind}-{role}{end}" in drawn for end in (" ", '"'))
        ]
    return "".join(rules)


def _number(value: float) -> str:
    """A number with at most one decimal, so that files are short and the same on every machine."""
    return f"{value + 0.0:.1f}".removesuffix(".0")


def files(name: str, picture: Picture) -> dict[Path, str]:
    """Path -> content of both versions."""
    return {PICTURES / f"{name}-{theme}.svg": picture.svg(theme) for theme in THEMES}


def write(drawn: Mapping[Path, str]) -> None:
    """Writes files by path."""
    for path, content in drawn.items():
        path.write_text(content)
