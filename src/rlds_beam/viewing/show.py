"""`rlds_beam.show`: objects and datasets to look at, as text with sparklines, and pictures that a notebook displays."""

from __future__ import annotations

import base64
import dataclasses
import html
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from rlds_beam.checking.rules import ADVICE, CheckOptions
from rlds_beam.checking.signals import SIGNALS, Context, Finding, findings, measure
from rlds_beam.checking.validation import find_violations
from rlds_beam.datasets.base import STEPS
from rlds_beam.datasets.dataset import Dataset
from rlds_beam.datasets.opening import open_dataset
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey, kind_of_column, kind_of_value
from rlds_beam.episodes.schema import FLAGS
from rlds_beam.errors import RldsBeamError, UsageError, Violation
from rlds_beam.formats.inputs import open_input
from rlds_beam.formats.options import InputOptions
from rlds_beam.formats.registry import COLUMNS, TRAJECTORIES
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.thumbnails import find_image, spread, thumbnail
from rlds_beam.output.directory import holding
from rlds_beam.reading.base import Source
from rlds_beam.reading.reader import episode_at, read_episode
from rlds_beam.terminal.tables import sparkline
from rlds_beam.text import count, duration, printable
from rlds_beam.viewing.facts import (
    Curve,
    compute_return,
    find_curves,
    find_flags,
    find_instruction,
    format_range,
    is_text_column,
)
from rlds_beam.viewing.pictures import find_cameras

_ROWS, _CAMERAS, _PICTURES, _HEIGHT = 6, 4, 8, 96


def show(value: Any, episode: int | str | None = None, **options: Any) -> View:
    """Shows an episode or a dataset: as text, with pictures in a notebook.

        rlds_beam.show("data/point_mass/1.0.0", 3)
        rlds_beam.show(rlds_beam.open_dataset("columns")[7])
        print(rlds_beam.show("data/point_mass/1.0.0"))

    Args:
      value: an `Episode`, a `Dataset` or one of its rows, a `Source`, or the path of a dataset.
      episode: the number of an episode of the dataset, from 0; negative numbers count from its end. Or its key.
      options: how to read a path: `from_`, `split`, `features`, and the options of the format.

    Raises:
      UsageError: there is no such dataset or episode, or the value cannot be shown.
    """
    if isinstance(value, (str, os.PathLike)):
        value = open_for_viewing(InputOptions.create(os.fspath(value), **options))
    elif options:
        raise UsageError(f"{next(iter(options))} is for the path of a dataset, not for {_kind(value)}")
    if episode is None:
        return _make_view(value)
    if isinstance(value, Source):
        return shown_episode(value, episode).view()
    if isinstance(value, Dataset) and isinstance(episode, int):
        return shown_row(value, episode).view()
    raise UsageError(f"episode={episode!r}: {_kind(value)} has no episodes with keys or numbers")


def _make_view(value: Any) -> View:
    if isinstance(value, Episode):
        return of_episode(value).view()
    if isinstance(value, Dataset):
        try:
            return View(repr(value), "".join(_first_frames(value)))
        except RldsBeamError as error:
            return View(f"{value!r}\n{error}")
    if isinstance(value, Source):
        return View(str(value))
    if isinstance(value, Mapping):
        return of_row(dict(value), "row").view()
    raise UsageError(f"{_kind(value)} cannot be shown; expected an episode, a dataset, or the path of one")


def _first_frames(dataset: Dataset) -> Iterator[str]:
    """The first image of some rows, for each camera."""
    rows = spread(len(dataset), _ROWS)
    cameras = [path for path, field in dataset.fields.items() if field.holds_image_files][:_CAMERAS] if rows else []
    images = dataset.rows.read(np.array(rows), cameras) if cameras else {}
    for path, column in images.items():
        if isinstance(column, EncodedImages):
            firsts = [value if isinstance(value, bytes) else next(iter(value), b"") for value in column.data]
            yield strip(
                path, [(f"row {row}", thumbnail(first, _HEIGHT)) for row, first in zip(rows, firsts, strict=True)]
            )


def of_episode(episode: Episode, source: Source | None = None) -> ShownEpisode:
    """An episode with the rules that it breaks, and its signals. Images are not decoded for that."""
    fps = None if source is None else source.fps
    context = Context.of_episode(episode, fps=fps) if source is None else Context.from_schema(source.schema, fps=fps)
    found = findings(measure(episode, context)) if len(episode) else []
    names = {} if source is None else source.schema.names
    violations = find_violations(episode, CheckOptions(), names=names)
    return ShownEpisode(episode, str(episode.key), fps, violations, tuple(found), names)


def shown_episode(source: Source, episode: int | str) -> ShownEpisode:
    """An episode of a dataset, by its number or key, with what is known about it.

    Raises:
      UsageError: the dataset has no such episode.
    """
    if isinstance(episode, int):
        return of_episode(episode_at(source, episode), source)
    try:
        key = EpisodeKey.parse(episode)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return of_episode(read_episode(source, key), source)


def shown_row(dataset: Dataset, number: int) -> ShownEpisode:
    """A row of a dataset with random access. Raises UsageError if the dataset has no such row."""
    try:
        return of_row(dataset[number], f"{dataset.name}: row {number}")
    except IndexError as error:
        raise UsageError(str(error)) from None


def open_for_viewing(config: InputOptions) -> Source | Dataset:
    """Opens a path: as the source that `from_` names, or by default in its recognized format.

    Raises:
      UsageError: the dataset does not exist or cannot be read.
    """
    held = holding(config.input) if config.from_ is None else None
    if held is not None and held.to in (COLUMNS, TRAJECTORIES):
        return open_dataset(config.input, config.split)
    return open_input(config)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


_MIN_WIDTH_COLUMNS = 16

Row = tuple[str, str, str]
"""A field, a dimension, and a text."""


@dataclasses.dataclass(frozen=True)
class ShownEpisode:
    """An episode to look at.

    Attributes:
      episode: the episode as read.
      title: its key, or the number of a row.
      fps: frames per second; None if unknown.
      violations: the rules that it breaks.
      findings: the signals that are beyond their thresholds.
      names: the names of the values of fields, by path.
    """

    episode: Episode
    title: str
    fps: float | None = None
    violations: tuple[Violation, ...] = ()
    findings: tuple[Finding, ...] = ()
    names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def view(self, width: int = 100) -> View:
        """The episode as text of about `width` columns, with pictures of its cameras."""
        steps, strips = spread(len(self.episode), _PICTURES), []
        for path in find_cameras(self.episode)[:_CAMERAS]:
            made = [thumbnail(find_image(self.episode.steps[path], step), _HEIGHT) for step in steps]
            strips.append(
                strip(path, [(one.fault or f"step {step}", one) for step, one in zip(steps, made, strict=True)])
            )
        return View("\n".join(self.lines(width)), "".join(strips))

    def lines(self, width: int) -> Iterator[str]:
        """The lines of the text."""
        yield self.title
        if len(self.episode) > 1:
            total, steps = compute_return(self.episode), len(self.episode)
            parts = [count(steps, "step")]
            parts += [f"{duration(steps / self.fps)} at {self.fps:g} fps"] if self.fps else []
            parts += [f"return {total:g}"] if total is not None else []
            yield ", ".join(parts)
        instruction = find_instruction(self.episode)
        if instruction:
            yield f'"{instruction}"'
        if self.violations or self.findings:
            yield ""
        yield from map(finding_text, self.findings)
        for violation in self.violations:
            detail = f"{violation.field}: {violation.detail}" if violation.field else violation.detail
            yield f"{violation.rule}: {printable(detail, 500)}"
            if violation.rule in ADVICE:
                yield f"  {ADVICE[violation.rule]}"
        yield from self._fields(width)
        yield from self._metadata(width)

    def _fields(self, width: int) -> Iterator[str]:
        drawn = {curve.path: curve for curve in find_curves(self.episode, names=self.names) if not curve.is_embedding}
        rows = list(self._list_fields(drawn))
        names = max((len(row[0]) for row in rows), default=0)
        labels = max((len(row[1]) for row in rows), default=0)
        ranges = [format_range(c.values[:, i]) for c in drawn.values() for i in range(c.values.shape[1])]
        room = max(_MIN_WIDTH_COLUMNS, width - names - labels - 4 - max(map(len, ranges), default=0))
        marks = {v.field: v for v in self.violations if v.step is not None}
        if rows:
            yield ""
        for path, curve in drawn.items():
            name = f"{printable(path):{names}} "
            for i in range(curve.values.shape[1]):
                label = curve.labels[i] if curve.labels else ""
                line = f"{sparkline(curve.values[:, i], room)}  " if len(self.episode) > 1 else ""
                yield f"{name}{label:{labels}}  {line}{format_range(curve.values[:, i])}"
                name = " " * (names + 1)
            if path in marks:
                mark, steps = marks[path], len(self.episode)
                at = int((mark.step or 0) * min(room, steps) / max(1, steps))
                yield f"{' ' * (names + labels + 3 + at)}▲ {mark.rule}"
        for name, label, text in rows:
            if name not in drawn:
                yield f"{printable(name):{names}} {label:{labels}}  {text}"

    def _list_fields(self, curves: Mapping[str, Curve]) -> Iterator[Row]:
        """All fields: those with curves, which have no text, and the others."""
        flags = dict(find_flags(self.episode))
        for path, column in self.episode.steps.items():
            if path in curves:
                yield path, max(curves[path].labels, key=len, default=""), ""
            elif path not in flags:
                text = kind_of_column(column)
                if is_text_column(column) and len(column):
                    texts = np.asarray(column).tolist()
                    others = len({*texts}) - 1
                    text = f'"{printable(texts[0])}"' + (f" and {count(others, 'other text')}" if others else "")
                yield path, "", text
        for path in FLAGS:
            if path in flags:
                yield path, "", flags[path]

    def _metadata(self, width: int) -> Iterator[str]:
        metadata = self.episode.metadata
        if metadata:
            yield ""
        names = max((len(printable(path)) for path in metadata), default=0)
        for path, value in sorted(metadata.items()):
            yield f"{printable(path):{names}}  {kind_of_value(value, max(20, width - names - 2))}"


def finding_text(finding: Finding) -> str:
    """`frozen_camera observation/image: 0.8 share of steps at steps 3 to 9 (above 0.2)`."""
    signal = SIGNALS[finding.signal]
    where = "" if finding.step is None else f" at step {finding.step}"
    if finding.step is not None and finding.stop is not None and finding.stop > finding.step + 1:
        where = f" at steps {finding.step} to {finding.stop - 1}"
    field = "" if finding.field is None else f" {printable(finding.field)}"
    value = f"{finding.value:.3g} ({signal.unit}; above {signal.threshold:g})"
    return f"signal {finding.signal}{field}: {value}{where}; {signal.summary}"


def of_row(row: Mapping[str, Any], title: str) -> ShownEpisode:
    """A row of a `Dataset`: an episode, an item of several frames, or the values of one step."""
    arrays = {path: np.asarray(value) for path, value in row.items()}
    steps = {path: array for path, array in arrays.items() if path.startswith(STEPS)} or arrays
    lengths = {len(array) if array.ndim else 1 for array in steps.values()}
    if len(lengths) != 1 or (steps is arrays and lengths == {1}):
        steps = {path: array[None] for path, array in arrays.items()}
    metadata = {path: value for path, value in row.items() if path not in steps}
    columns = {path.removeprefix(STEPS): _column(array) for path, array in steps.items()}
    return ShownEpisode(Episode(EpisodeKey("dataset/1.0.0", "row", 0, 0), columns, metadata), title)


def _column(values: Any) -> Column:
    """The values of a row's column; encoded images become images again."""
    array = np.asarray(values)
    stored = array.dtype == object and array.ndim == 1 and all(isinstance(value, bytes) for value in array)
    if stored and len(array) and array[0].startswith((b"\xff\xd8\xff", b"\x89PNG\r\n")):
        return EncodedImages(array, (None, None, None))
    return array


@dataclasses.dataclass(frozen=True)
class View:
    """The result of `rlds_beam.show`: a notebook displays the text with pictures, `print` prints the text.

    Attributes:
      text: what `print` shows.
      pictures: the HTML below the text.
    """

    text: str
    pictures: str = ""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f'<pre style="overflow-x:auto">{html.escape(self.text)}</pre>{self.pictures}'


def strip(label: str, pictures: Iterable[tuple[str, bytes]]) -> str:
    """A row of JPEGs, each with a caption; Jupyter's own `max-width` for images would shrink them to a word."""
    style = "display:inline-block;width:min-content;margin:0 2px 0 0;font-size:11px"
    figures = "".join(
        f'<figure style="{style}"><img alt="" style="display:block;max-width:none" '
        f'src="data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"/>'
        f"{html.escape(printable(caption, 500))}</figure>"
        for caption, jpeg in pictures
    )
    return f"<div>{html.escape(printable(label, 500))}</div><div>{figures}</div>" if figures else ""
