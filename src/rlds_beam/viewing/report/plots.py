"""What `page.js` draws with uPlot: the curves of one field, with the marks of the episode."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from rlds_beam.viewing.report.numbers import number
from rlds_beam.viewing.report.views import EpisodeView, Mark, Series

COLORS = 8
"""The number of colors; more dimensions repeat them as dashed lines."""
DIGITS = 3
"""Digits of a value relative to the range of its dimension: a plot is 100 pixels high."""


@dataclasses.dataclass(frozen=True)
class Row:
    """The numbers of one dimension as text."""

    label: str
    least: str
    most: str
    first: str
    last: str
    missing: str


@dataclasses.dataclass(frozen=True)
class Plot:
    """A field's curves: `data` for the script, `rows` for readers of the text."""

    series: Series
    data: dict[str, Any]
    rows: tuple[Row, ...]


def plots_of(episode: EpisodeView) -> list[Plot]:
    """The plots of an episode, all with the same x axis."""
    paths = {series.path for series in episode.curves}
    last = max(episode.steps - 1, 0)
    marks = [mark for mark in episode.marks if mark.step is not None]
    marked = {mark.field for mark in marks}
    shown = [series for series in episode.curves if series.path in marked or _changes(series)]
    return [
        _plot(series, last, [_mark(mark, series.path, paths, place == 0) for mark in marks])
        for place, series in enumerate(shown)
    ]


def constants_of(episode: EpisodeView) -> list[tuple[str, str]]:
    """The fields without a plot, because their values stay the same, and these values as text."""
    shown = {plot.series.path for plot in plots_of(episode)}
    return [(series.path, _constant(series)) for series in episode.curves if series.path not in shown]


def plot_of(series: Series) -> Plot:
    """A plot without marks and other plots."""
    return _plot(series, max(series.steps, default=0), [])


def _plot(series: Series, last: int, marks: list[dict[str, Any]]) -> Plot:
    values = [_round_values(row) for row in series.values]
    rows = (_row(label, row) for label, row in zip(series.labels, series.values, strict=True))
    return Plot(series, {"last": last, "marks": marks, "x": list(series.steps), "y": values}, tuple(rows))


def _changes(series: Series) -> bool:
    return any(len(set(values)) > 1 for values in series.values)


def _constant(series: Series) -> str:
    values = [number(row[0]) for row in series.values[:8] if row]
    more = len(series.values) + series.left_out - len(values)
    return ", ".join(values) + (f", and {more:,} more dimensions" if more else "")


def _mark(mark: Mark, path: str, paths: set[str], first: bool) -> dict[str, Any]:
    """A mark is strong and named on the curves of its field; if that has none, strong on all and named on the first."""
    here = mark.field == path
    return {
        "label": here or (first and mark.field not in paths),
        "kind": mark.kind,
        "name": mark.name[:60],
        "step": mark.step,
        "stop": mark.stop,
        "strong": here or mark.field not in paths,
    }


def _row(label: str, values: tuple[float | None, ...]) -> Row:
    finite = [value for value in values if value is not None]
    missing = len(values) - len(finite)
    least, most = (min(finite), max(finite)) if finite else (None, None)
    first, last = (values[0], values[-1]) if values else (None, None)
    return Row(label, number(least), number(most), number(first), number(last), f"{missing:,}" if missing else "")


def _round_values(values: tuple[float | None, ...]) -> list[float | int | None]:
    """Values with as many digits as a plot needs: a report has up to a million of them."""
    finite = [value for value in values if value is not None]
    spread = (max(finite) - min(finite) or max(map(abs, finite))) if finite else 0.0
    if not spread or not math.isfinite(spread):
        return [_short(value) for value in values]
    digits = DIGITS - math.floor(math.log10(spread))
    return [None if value is None else _short(round(value, digits)) for value in values]


def _short(value: float | None) -> float | int | None:
    return int(value) if value is not None and abs(value) < 1e15 and value == int(value) else value
