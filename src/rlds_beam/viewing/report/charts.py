"""Charts of a report as inline SVG.

SVG takes the colors of the page, and scales with its column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlds_beam.viewing.report.page_text import compact, number
from rlds_beam.viewing.report.sections import Histogram, NumberDistribution, SignalSection

HEIGHT = 100
"""The height of a chart in its own units; the page stretches it."""
MIN_BAR_HEIGHT = 3
"""The height of a bar that is not empty: one of a million values is still seen."""
GAP = 0.12
"""The space between bars, as a share of their width."""


def bars(histogram: Histogram, label: str, *, beyond: Callable[[float, float], bool] | None = None) -> str:
    """A histogram without axes. `label` describes it; without one, the chart is hidden from screen readers.

    Args:
      histogram: the counts; all bins are drawn with the same width.
      label: what it shows.
      beyond: whether a bin, given its edges, is drawn in the color of what is wrong.
    """
    counts = histogram.counts
    if not counts:
        return ""
    most = max(*counts, 1)
    shapes: dict[str, list[str]] = {"a": [], "fill-bad": []}
    for i, count in enumerate(counts):
        if count:
            edges = histogram.edges[i], histogram.edges[i + 1]
            color = "fill-bad" if beyond is not None and beyond(*edges) else "a"
            shapes[color].append(_bar(i + GAP / 2, 1 - GAP, count / most))
    return _svg(len(counts), _paths(shapes), label)


def paired_bars(first: Histogram, second: Histogram, label: str) -> str:
    """Two histograms with the same edges side by side, as shares of their values."""
    bins = max(len(first.counts), len(second.counts))
    if not bins:
        return ""
    shares = [[count / max(sum(series.counts), 1) for count in series.counts] for series in (first, second)]
    most = max((share for side in shares for share in side), default=0) or 1
    width = (1 - 2 * GAP) / 2
    shapes = {
        name: [_bar(i + GAP + side * width, width, share / most) for i, share in enumerate(shares[side]) if share]
        for side, name in enumerate(("a", "b"))
    }
    return _svg(bins, _paths(shapes), label)


def box(distribution: NumberDistribution, label: str) -> str:
    """Quantiles as a line from q01 to q99, a box from q10 to q90, and the median, between minimum and maximum."""
    at = dict(distribution.quantiles)
    least, most = distribution.least, distribution.most
    low, start, middle, stop, high = (at.get(name) for name in ("q01", "q10", "q50", "q90", "q99"))
    if least is None or most is None or least == most or None in (low, start, middle, stop, high):
        return ""
    places = [
        _number(1000 * (value - least) / (most - least))
        for value in (low, start, middle, stop, high)
        if value is not None
    ]
    a, b, c, d, e = places
    shapes = (
        f'<path class="rule" d="M0 50H1000"/><path class="whisker" d="M{a} 50H{e}"/>'
        f'<path class="a" d="M{b} 25H{d}V75H{b}Z"/><path class="median" d="M{c} 20V80"/>'
    )
    return _svg(1000, shapes, label)


def stacked_bar(parts: Sequence[tuple[str, int]], label: str) -> str:
    """One bar of several parts, each a class of the style sheet and a count."""
    total = sum(count for _, count in parts)
    if not total:
        return ""
    shapes, x = [], 0.0
    for name, count in parts:
        if not count:
            continue
        width = 1000 * count / total
        shapes.append(f'<path class="{name}" d="M{_number(x)} 0h{_number(width)}v{HEIGHT}h-{_number(width)}Z"/>')
        if x:
            shapes.append(f'<path class="gap" d="M{_number(x)} 0v{HEIGHT}"/>')
        x += width
    return _svg(1000, "".join(shapes), label)


def describe_distribution(distribution: NumberDistribution, unit: str = "") -> str:
    """A distribution as a sentence, for readers who cannot see its chart."""
    if not distribution.count:
        return "no values"
    named = ", ".join(f"{name} {number(value)}" for name, value in distribution.quantiles)
    of = f"{distribution.count:,} values{f' in {unit}' if unit else ''}"
    ends = f"from {number(distribution.least)} to {number(distribution.most)}"
    return f"{of} {ends}; mean {number(distribution.mean)}, standard deviation {number(distribution.std)}; {named}"


def beyond(signal: SignalSection) -> Callable[[float, float], bool] | None:
    """Whether the middle of a bin is beyond a signal's threshold; None if it has none."""
    limit = signal.threshold
    if limit is None:
        return None
    return lambda low, high: (low + high) / 2 > limit


def constant(histogram: Histogram) -> str:
    """The only value of a histogram as text; empty if there are several, or none."""
    edges = histogram.edges
    return number(edges[0]) if len(edges) == 2 and edges[0] == edges[1] and not histogram.outside else ""


def ends(histogram: Histogram) -> tuple[str, str]:
    """The smallest and largest value on the x axis as text: bins of whole numbers are named by these."""
    if not histogram.edges:
        return "", ""
    first, last = histogram.edges[0], histogram.edges[-1]
    if _whole(histogram):
        first, last = first + 0.5, last - 0.5
    return compact(first), compact(last)


def bins(histogram: Histogram) -> list[tuple[str, int]]:
    """The bins that are not empty, as text and count."""
    edges, whole = histogram.edges, _whole(histogram)
    return [
        (number(edges[i] + 0.5) if whole else f"{number(edges[i])} to {number(edges[i + 1])}", count)
        for i, count in enumerate(histogram.counts)
        if count
    ]


def _whole(histogram: Histogram) -> bool:
    """Whether each bin holds one whole number: 2.5 to 3.5."""
    edges = histogram.edges
    return len(edges) > 1 and edges[0] % 1 == 0.5 and edges[1] - edges[0] == 1


def _bar(x: float, width: float, share: float) -> str:
    height = max(MIN_BAR_HEIGHT, share * HEIGHT)
    return f"M{_number(x)} {HEIGHT}v-{_number(height)}h{_number(width)}v{_number(height)}Z"


def _paths(shapes: dict[str, list[str]]) -> str:
    return "".join(f'<path class="{name}" d="{"".join(paths)}"/>' for name, paths in shapes.items() if paths)


def _svg(width: float, shapes: str, label: str) -> str:
    from markupsafe import Markup, escape

    from rlds_beam.viewing.report.page_text import visible

    about = f'role="img" aria-label="{escape(visible(label))}"' if label else 'aria-hidden="true"'
    opening = f'<svg class="chart" viewBox="0 0 {_number(width)} {HEIGHT}" preserveAspectRatio="none" {about}>'
    return Markup(f"{opening}{shapes}</svg>")


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
