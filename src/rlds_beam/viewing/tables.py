"""Datasets, reports, and statistics as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlds_beam.checking.rules import ADVICE, RULES
from rlds_beam.datasets.dataset import Dataset
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.episodes.schema import Schema, fields_text, named_dimension, schema_tree, shown_dimensions
from rlds_beam.errors import RldsBeamError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.thumbnails import Thumbnail, spread, thumbnail
from rlds_beam.processing.report import Report, RuleCount, describe_outcomes
from rlds_beam.reading.base import Source
from rlds_beam.terminal.tables import table_lines
from rlds_beam.text import count, format_size, join_lines, printable, tree
from rlds_beam.viewing import html
from rlds_beam.viewing.facts import find_instruction_path

_FIRST_FRAMES, _HEIGHT = 6, 96
_MAX_CAMERAS = 4
_MAX_TEXT = 80
_COLUMNS = ("mean", "std", "min", "q01", "q50", "q99", "max")


def schema_html(schema: Schema) -> str:
    """The fields as a tree."""
    return html.card("schema", html.preformatted(schema_tree(schema)))


def source_html(source: Source) -> str:
    """A dataset: its fields and splits, and what is wrong with it."""
    splits = [(s.name, _number(s.episodes), len(s.shards), format_size(s.size)) for s in source.splits]
    return html.card(
        source.describe(),
        html.line("" if source.fps is None else f"{source.fps:g} frames per second"),
        *(html.line(str(violation), fault=True) for violation in source.violations),
        html.preformatted(schema_tree(source.schema)),
        html.table(splits, ("split", "episodes", "shards", "size")),
    )


def dataset_html(dataset: Dataset, name: str) -> str:
    """A dataset with random access: its fields, and the first image of some rows."""
    title = f"{name}: {count(len(dataset), 'row')}"
    fields = html.preformatted(tree({"row": fields_text(dataset.fields)}))
    return html.card(title, fields, *_first_frames(dataset))


def report_html(report: Report, title: str = "", *lines: str) -> str:
    """The counts of a report, and its rules with an example each; `lines` come after them."""
    rows = [(rule, report.rules[rule]) for rule in RULES if rule in report.rules]
    table = [(rule, describe_outcomes(counts), RULES[rule], _example(counts), ADVICE[rule]) for rule, counts in rows]
    header = ("rule", "records", "meaning", "for example", "what to do")
    text = "\n".join([report.summary(), join_lines(lines)])
    return html.card(
        title or report.line(),
        html.line(report.line() if title else ""),
        html.table(table, header),
        html.section("report", html.preformatted(text), is_open=bool(lines)),
    )


def statistics_html(content: Mapping[str, Any]) -> str:
    """The table of `DatasetStatistics.to_json()`: a row for each dimension."""
    return html.card(_count(content), html.table(_statistics(content), ("field", *_COLUMNS)))


def statistics_text(content: Mapping[str, Any]) -> str:
    """The same table as text."""
    rows = [
        [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row] for row in _statistics(content)
    ]
    return "\n".join([_count(content), *table_lines(("", *_COLUMNS), rows)])


def _count(content: Mapping[str, Any]) -> str:
    return f"{count(content['episodes'], 'episode')}, {count(content['transitions'], 'transition')}"


def _statistics(content: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    leaves = dict(content["fields"])
    leaves |= {name: content[name] for name in ("episode_length", "episode_return") if content.get(name)}
    for path, leaf in leaves.items():
        yield from _dimensions(path, leaf)


def _dimensions(path: str, leaf: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    values = [np.reshape(leaf[name], -1) for name in _COLUMNS]
    size, shape = len(values[0]), np.shape(leaf["mean"])
    shown = shown_dimensions(size)
    for i in range(shown):
        yield (named_dimension(path, shape, i, leaf.get("names", ())), *(float(column[i]) for column in values))
    if size > shown:
        yield (f"{path}: {size - shown:,} more", *[""] * len(_COLUMNS))


def _first_frames(dataset: Dataset) -> Iterator[str]:
    """The first image of some rows, for each camera, with the length and the instruction of the row."""
    cameras = [path for path, field in dataset.fields.items() if field.holds_image_files]
    texts = [find_instruction_path(path for path, field in dataset.fields.items() if field.dtype == "string")]
    rows = spread(len(dataset), _FIRST_FRAMES)
    for path in cameras[:_MAX_CAMERAS] if rows else ():
        paths = [path, *filter(None, texts)]
        try:
            columns = dataset._rows.read(np.array(rows), paths)
        except RldsBeamError as error:
            yield html.line(str(error), fault=True)
            return
        images, *others = (columns[path] for path in paths)
        if isinstance(images, EncodedImages):
            values = [_values(image) for image in images.data]
            said = [_text(value) for value in others[0]] if others else [""] * len(rows)
            yield html.pictures(path, map(_frame, rows, values, said))


def _values(value: Any) -> list[Any]:
    """A value of a row, or the values of its steps."""
    several: list[Any] = [value] if isinstance(value, (bytes, str)) else objects(list(value)).ravel().tolist()
    return several


def _text(value: Any) -> str:
    first = (_values(value) or [b""])[0]
    return printable(first, _MAX_TEXT) if isinstance(first, (bytes, str)) else ""


def _frame(row: int, images: list[Any], text: str) -> tuple[str, Thumbnail]:
    """The first image, with a caption: `row 3, 44 steps: put the red block on the left tray`."""
    steps = f", {count(len(images), 'step')}" if len(images) > 1 else ""
    return f"row {row}{steps}{f': {text}' if text else ''}", thumbnail(images[0] if images else b"", _HEIGHT)


def _example(counts: RuleCount) -> str:
    return "" if not counts.samples else f"{counts.samples[0][0]} ({counts.samples[0][1]})"


def _number(number: int | None) -> object:
    return "?" if number is None else number
