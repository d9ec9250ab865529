"""Renders a report as one HTML file.

    html = render(document)

The file needs nothing else: style, scripts, images, and data are inside, and its Content-Security-Policy forbids
requests and any script but ours. Equal documents give equal bytes. The viewer of the browser (`viewing/page`) shows the
episodes, whose data are in the page as JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from rlds_beam.viewing.bundle import bundle
from rlds_beam.viewing.episode_view import EpisodeView
from rlds_beam.viewing.report import charts, page_text
from rlds_beam.viewing.report.document import ConversionSection, DatasetPart, ReportDocument
from rlds_beam.viewing.report.sections import FILM_FRAMES, GridCell, SignalSection

if TYPE_CHECKING:
    import jinja2

POLICY = (
    "default-src 'none'; img-src data:; style-src {style}; script-src {scripts}; base-uri 'none'; form-action 'none'"
)


@dataclasses.dataclass(frozen=True)
class PageSection:
    """A section of the page.

    Attributes:
      id: its anchor.
      title: its heading.
      template: the template that fills it.
      count: shown next to the title in the list of contents; empty if nothing is.
      part: the dataset that it is about; None if it is about all.
    """

    id: str
    title: str
    template: str
    count: str = ""
    part: PagePart | None = None


class PagePart:
    """A dataset of the report, and where its episodes are on the page: each is shown once, and linked elsewhere.

    Attributes:
      data: the dataset.
      prefix: begins the anchors of its sections.
      name: begins their titles; empty for the only dataset.
    """

    def __init__(self, data: DatasetPart, prefix: str, name: str) -> None:
        self.data, self.prefix, self.name = data, prefix, name
        self._ids = {key: f"{prefix}e{place}" for place, key in enumerate(sorted(data.episodes))}
        self._shown: set[str] = set()

    def anchor(self, key: str) -> str:
        """The anchor of an episode; empty if the report does not show it."""
        return self._ids.get(key, "")

    def short(self, key: str) -> str:
        """A key without the name of its dataset, which the page says once."""
        return key.removeprefix(f"{self.data.facts.name}:")

    def take(self, keys: list[str]) -> list[EpisodeView]:
        """The episodes among `keys` that no earlier section shows; from now on they are shown."""
        new = [key for key in dict.fromkeys(keys) if key in self._ids and key not in self._shown]
        self._shown.update(new)
        return [self.data.episodes[key] for key in new]

    def signal(self, signal: SignalSection) -> str:
        """The anchor of a signal."""
        return f"{self.prefix}signal-{self.data.signals.index(signal) + 1}"

    def groups(self, beyond: bool) -> list[tuple[str, list[SignalSection]]]:
        """The signals with (or without) episodes beyond their threshold by group, in the order of the document."""
        some = [signal for signal in self.data.signals if bool(signal.beyond) == beyond]
        return [(name, list(own)) for name, own in itertools.groupby(some, lambda signal: signal.group)]

    @property
    def worst_keys(self) -> list[str]:
        """The keys of the worst episodes beyond thresholds."""
        return [worst.key for signal in self.data.signals for worst in signal.worst[: signal.beyond]]

    @property
    def broken(self) -> list[SignalSection]:
        """The signals that have episodes beyond their threshold, the most first."""
        return sorted(
            (signal for signal in self.data.signals if signal.beyond), key=lambda signal: (-signal.beyond, signal.name)
        )


def render(document: ReportDocument) -> str:
    """The report as HTML."""
    from rlds_beam.viewing.report.page_text import digest

    style, theme, scripts = _file("uPlot.min.css") + _file("viewer.css"), _file("theme.js"), list(_scripts())
    policy = POLICY.format(style=digest(style), scripts=" ".join(map(digest, [theme, *scripts])))
    several = len(document.datasets) > 1
    parts = [
        PagePart(data, f"{'ab'[place]}-" if several else "", data.facts.name if several else "")
        for place, data in enumerate(document.datasets)
    ]
    return (
        _environment()
        .get_template("page.html")
        .render(
            document=document,
            policy=policy,
            style=style,
            theme=theme,
            scripts=scripts,
            sections=list(_sections(document, parts)),
            data=_data(document, parts),
        )
    )


def _data(document: ReportDocument, parts: list[PagePart]) -> dict[str, Any]:
    """What `embedded.js` answers from: the datasets, and where each episode is on the page."""
    datasets: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []

    def add(id: str, name: str, path: str, format: str, fps: float | None, other: str | None = None) -> None:
        none: dict[str, Any] = {"cameras": [], "columns": [], "scan": {"state": "none"}}
        datasets.append(
            {"id": id, "name": name, "path": path, "format": format, "fps": fps, "compare_to": other, **none}
        )

    def place(dataset: str, view: EpisodeView, id: str, place: int = 0) -> None:
        index = sum(row["dataset"] == dataset for row in rows)
        shown = {"key": view.key, "steps": view.steps, "instruction": view.instruction[:200]}
        rows.append({"dataset": dataset, "id": id, "place": place, "index": index, **shown})

    for number, part in enumerate(parts):
        facts = part.data.facts
        add(str(number), facts.name, facts.path, facts.format, facts.fps)
        for key, view in part.data.episodes.items():
            place(str(number), view, part.anchor(key))
    changes = document.conversion.examples if document.conversion is not None else ()
    if changes:
        add("before", "before the connectors", "", "", None, "after")
        add("after", "after the connectors", "", "", None, "before")
    for number, change in enumerate(changes, 1):
        place("before", change.before, f"change-{number}")
        place("after", change.after, f"change-{number}", 1)
    return {"datasets": datasets, "rows": rows}


def _sections(document: ReportDocument, parts: list[PagePart]) -> Iterator[PageSection]:
    for part in parts:
        if part.data.grid:
            yield PageSection(f"{part.prefix}frames", "Episodes", "frames.html", f"{len(part.data.grid):,}", part)
    if any(data.rules or data.signals for data in document.datasets):
        yield PageSection("outstanding", "What stands out", "outstanding.html")
    if document.conversion is not None:
        yield PageSection("conversion", "Conversion", "conversion.html")
    if document.comparison is not None:
        yield PageSection("comparison", "Comparison", "comparison.html", f"{len(document.comparison.pairs):,}")
    for part in parts:
        yield from _dataset_sections(part)


def _dataset_sections(part: PagePart) -> Iterator[PageSection]:
    data = part.data

    def section(name: str, title: str, count: int | None = None) -> PageSection:
        text = "" if count is None else f"{count:,}"
        return PageSection(f"{part.prefix}{name}", title, f"{name}.html", text, part)

    yield section("dataset", "Dataset")
    if data.rules:
        some = data.facts.rejected
        yield section("rejected", "Rejected records" if some else "Broken rules", some or len(data.rules))
    if data.signals:
        yield section("signals", "Quality signals", len(part.broken))
    if data.samples:
        yield section("samples", "Sample episodes", len(data.samples))
    distributions = data.distributions
    if distributions.length or distributions.total or distributions.fields:
        yield section("distributions", "Distributions", len(distributions.fields))
    if data.texts:
        yield section("texts", "Instructions and metadata", len(data.texts))


@functools.cache
def _scripts() -> tuple[str, ...]:
    """uPlot, and the viewer with the data of its page instead of a server."""
    return _file("uPlot.iife.min.js"), bundle("report.js", _file, {"source.js": "embedded.js"})


def _file(name: str) -> str:
    """A file of the page, or a vendored one, which may be inside `<style>` and `<script>`."""
    viewing = resources.files("rlds_beam.viewing")
    own = viewing / "page" / name
    content = (own if own.is_file() else viewing / "vendored" / name).read_text(encoding="utf-8")
    assert not re.search("</(script|style)|<!--", content, re.IGNORECASE), f"{name} could end its element"
    return content


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True,
        finalize=page_text.visible,
        loader=jinja2.PackageLoader(__package__),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    filters: Mapping[str, Any] = {
        "code": page_text.code,
        "compact": page_text.compact,
        "film": _film,
        "flow": _flow,
        "duration": page_text.duration,
        "image_data": page_text.image_data,
        "image_size": _image_size,
        "json_data": page_text.json_data,
        "number": page_text.number,
        "one_line": page_text.one_line,
        "ours": Markup,
        "percent": page_text.percent,
        "size": page_text.size,
        "value": page_text.value,
    }
    environment.filters.update(filters)
    environment.globals.update(charts=charts)
    return environment


def _flow(conversion: ConversionSection) -> list[tuple[str, int]]:
    """The records that were read, by what became of them."""
    dropped = [(f"dropped-{place % 3}", row.records) for place, row in enumerate(conversion.dropped)]
    return [("written", conversion.written), ("rejected", conversion.rejected), *dropped]


def _film(cell: GridCell) -> tuple[int, int, int]:
    """The width of a film and of one of its frames, and the height."""
    width, height = _image_size(cell.film.jpeg)
    return width, width // FILM_FRAMES, height


def _image_size(jpeg: bytes) -> tuple[int, int]:
    """Width and height, so that the page does not move while images load; zeros if the header cannot be read."""
    from rlds_beam.images.headers import UndecodableImageError, read_image_header

    try:
        header = read_image_header(jpeg)
    except UndecodableImageError:
        return 0, 0
    return header.width, header.height
