"""HTML of objects in a notebook: self-contained, without scripts, in the colors of the notebook's theme.

Texts may come from a dataset, so each is escaped here. Styles are inline, because some notebooks remove style elements.
"""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Iterable, Sequence

import numpy as np

from rlds_beam.text import escape_controls, printable
from rlds_beam.typing import Array
from rlds_beam.viewing.episode_view import Series
from rlds_beam.viewing.facts import format_range

_LINE = "1px solid rgba(128,128,128,.35)"
_CARD = f"border:{_LINE};border-radius:6px;margin:4px 0;padding:8px 12px;max-width:64em;font-size:13px;line-height:1.45"
_CELL = f"text-align:left;vertical-align:top;padding:1px 12px 1px 0;border-bottom:{_LINE}"
_MONO = "font-family:ui-monospace,monospace;font-size:12px"
_FAINT = "opacity:.7"
_FAULT = "color:#e5484d"
COLORS = ("#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#ec4899", "#14b8a6", "#84cc16")
"""Colors of curves, readable on white and on black."""

_WIDTH, _HEIGHT = 600, 56


@dataclasses.dataclass(frozen=True)
class View:
    """The result of `rlds_beam.show`: a notebook displays the HTML, `print` prints the text.

    Attributes:
      text: the text for a terminal; control characters are escaped.
      html: the HTML for a notebook.
    """

    text: str
    html: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", escape_controls(self.text))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def escape(text: object, most: int = 500) -> str:
    """Text as HTML; control and invisible characters are shown as escapes."""
    return html.escape(printable(text, most))


def card(title: str, *parts: str) -> str:
    """A box with a title around HTML."""
    heading = f'<div style="font-weight:600;overflow-wrap:anywhere">{escape(title)}</div>'
    return f'<div style="{_CARD}">{heading}{"".join(parts)}</div>'


def line(text: str, *, fault: bool = False) -> str:
    """A line of text."""
    return f'<div style="{_FAULT if fault else _FAINT}">{escape(text)}</div>' if text else ""


def quote(text: str) -> str:
    """An instruction."""
    return f'<div style="font-size:15px;margin:4px 0">“{escape(text)}”</div>' if text else ""


def preformatted(text: str) -> str:
    """Lines of text as they are: a tree, a command."""
    return (
        f'<pre style="{_MONO};margin:6px 0;overflow-x:auto">{html.escape(escape_controls(text))}</pre>' if text else ""
    )


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Rows of text; numbers are right-aligned."""
    lines = [_row("td", row) for row in rows]
    if not lines:
        return ""
    lines[:0] = [_row("th", header)] if header else []
    wrap = "break-word" if header else "anywhere"  # names and values may break anywhere on a narrow screen
    style = f"border-collapse:collapse;margin:6px 0;overflow-wrap:{wrap};{_MONO}"
    return f'<div style="overflow-x:auto"><table style="{style}">{"".join(lines)}</table></div>'


def section(title: str, content: str, *, is_open: bool = True) -> str:
    """A part that can be folded; empty without content."""
    if not content:
        return ""
    summary = f'<summary style="cursor:pointer;margin-top:6px">{escape(title)}</summary>'
    return f"<details{' open' if is_open else ''}>{summary}{content}</details>"


def pictures(label: str, frames: Iterable[tuple[str, bytes]]) -> str:
    """A row of thumbnails, each with a caption; Jupyter's own `max-width` for images would shrink them to a word."""
    style = "display:inline-block;vertical-align:top;width:min-content;margin:0 2px 0 0"
    figures = "".join(
        f'<figure style="{style}"><img alt="{escape(caption)}" style="display:block;max-width:none" '
        f'src="data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"/>'
        f'<figcaption style="{_FAINT};font-size:11px">{escape(caption)}</figcaption></figure>'
        for caption, jpeg in frames
    )
    return f'<div style="{_MONO};margin-top:6px">{escape(label)}</div><div>{figures}</div>' if figures else ""


def plot(curve: Series, marks: Iterable[tuple[int, str]] = ()) -> str:
    """A field's curves over the steps, with its range as text; only text for a constant.

    Args:
      marks: steps to mark, each with a text.
    """
    values = np.array(curve.values, np.float64).T  # None becomes NaN
    size = len(curve.labels)
    shape = f"{size + curve.left_out:,} dimensions, " if size > 1 or curve.left_out else ""
    more = f"; the first {size} shown" if curve.left_out else ""
    note = f"{shape}{format_range(values.ravel())}{more}"
    heading = (
        f'<span style="{_MONO}">{escape(curve.path)}</span> <span style="{_FAINT};font-size:11px">{escape(note)}</span>'
    )
    marks = list(marks)
    drawn = _draw(curve, values, marks) if marks or (values != values[:1]).any() else ""
    return f'<div style="margin-top:4px">{heading}{drawn}</div>'


def _draw(curve: Series, values: Array, marks: Iterable[tuple[int, str]]) -> str:
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
    last = max(1, curve.steps[-1])
    scaled = (values / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)
    ys = _HEIGHT - 2 - scaled * (_HEIGHT - 4)
    lines = "".join(
        f'<polyline fill="none" stroke="{COLORS[i % len(COLORS)]}" stroke-width="1.2" points="{points}">'
        f"<title>{escape(curve.labels[i] or curve.path)}</title></polyline>"
        for i, column in enumerate(ys.T)
        for points in _stretches(np.array(curve.steps) / last * _WIDTH, column)
    )
    for step, text in marks:
        place = f'x1="{step / last * _WIDTH:.1f}" x2="{step / last * _WIDTH:.1f}" y1="0" y2="{_HEIGHT}"'
        lines += f'<line {place} stroke="#e5484d"><title>{escape(text)}</title></line>'
    return (
        f'<svg role="img" aria-label="{escape(curve.path)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'style="display:block;width:100%;max-width:{_WIDTH}px;height:{_HEIGHT}px;border-bottom:{_LINE}" '
        f'preserveAspectRatio="none">{lines}</svg>'
    )


def _row(cell: str, row: Sequence[object]) -> str:
    return f"<tr>{''.join(_cell(cell, value) for value in row)}</tr>"


def _cell(cell: str, value: object) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    align = ";text-align:right" if number else ""
    text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else value
    return f'<{cell} style="{_CELL}{align}">{escape(text)}</{cell}>'


def _stretches(xs: Array, ys: Array) -> Iterable[str]:
    """The points of a line, cut at unknown values; a lone point becomes a short line."""
    known = np.isfinite(ys)
    bounds = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8)))
    for start, stop in bounds.reshape(-1, 2).tolist():
        points = [f"{x:.1f},{y:.1f}" for x, y in zip(xs[start:stop], ys[start:stop], strict=True)]
        if len(points) == 1:
            points.append(f"{xs[start] + 1:.1f},{ys[start]:.1f}")
        yield " ".join(points)
