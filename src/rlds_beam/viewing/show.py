"""`rlds_beam.show`: objects and datasets to look at."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.signals import Context, findings, measure
from rlds_beam.checking.validation import find_violations
from rlds_beam.connectors.statistics.dataset_statistics import DatasetStatistics
from rlds_beam.connectors.statistics.episode_statistics import EpisodeStatistics
from rlds_beam.datasets.dataset import Dataset
from rlds_beam.datasets.opening import open_dataset
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_input
from rlds_beam.formats.options import InputOptions
from rlds_beam.formats.registry import COLUMNS, TRAJECTORIES
from rlds_beam.jobs.inspect import Survey, conversion_lines
from rlds_beam.lazy import Viewable
from rlds_beam.options import check_names
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source
from rlds_beam.reading.reader import episode_at, read_episode
from rlds_beam.viewing.episodes import ShownEpisode, of_row
from rlds_beam.viewing.html import View
from rlds_beam.viewing.tables import (
    dataset_html,
    report_html,
    schema_html,
    source_html,
    statistics_html,
    statistics_text,
)
from rlds_beam.writing.write_rlds import WriteOutcome


@check_names(InputOptions)
def show(value: Any, episode: int | str | None = None, **options: Any) -> View:
    """Shows an episode, a dataset, or the result of a job: as HTML in a notebook, as text with `print`.

        rlds_beam.show("data/point_mass/1.0.0", 3)
        rlds_beam.show(rlds_beam.open_dataset("columns")[7])
        print(rlds_beam.show(rlds_beam.stats("data/point_mass/1.0.0")))

    Args:
      value: an `Episode`, a `Dataset` or one of its rows, a `Source`, a `Schema`, the path of a dataset, or what a job
        returned.
      episode: the number of an episode of the dataset, from 0; negative numbers count from its end. Or its key.
      options: how to read a path: `from_`, `split`, `features`, and the options of the format.

    Raises:
      UsageError: there is no such dataset or episode, or the value cannot be shown.
    """
    if isinstance(value, (str, os.PathLike)):
        value = open_viewed(os.fspath(value), options)
    elif options:
        raise UsageError(f"{next(iter(options))} is for the path of a dataset, not for {_kind(value)}")
    if episode is None:
        return make_view(value)
    if isinstance(value, Source):
        return shown_episode(value, episode).view()
    if isinstance(value, Dataset) and isinstance(episode, int):
        return shown_row(value, episode).view()
    raise UsageError(f"episode={episode!r}: {_kind(value)} has no episodes with keys or numbers")


@functools.singledispatch
def make_view(value: Any) -> View:
    """The view of an object. Classes above this package have their own `_repr_html_`, those below are registered."""
    html = getattr(value, "_repr_html_", None)
    if html is None or (isinstance(value, Viewable) and type(value)._repr_html_ is Viewable._repr_html_):
        raise UsageError(f"{_kind(value)} cannot be shown; expected an episode, a dataset, or the result of a job")
    return View(str(value), html())


@make_view.register
def _(value: Episode) -> View:
    return of_episode(value).view()


@make_view.register
def _(value: Dataset) -> View:
    return View(repr(value), dataset_html(value, value._name))


@make_view.register
def _(value: Source) -> View:
    return View(str(value), source_html(value))


@make_view.register
def _(value: Schema) -> View:
    return View(repr(value), schema_html(value))


@make_view.register
def _(value: Report) -> View:
    return View(str(value), report_html(value))


@make_view.register
def _(value: Survey) -> View:
    report = report_html(value.sampled, value.plan, *conversion_lines(value))
    return View(str(value), source_html(value.source) + report)


@make_view.register
def _(value: WriteOutcome) -> View:
    return View(str(value), report_html(value.report, f"Written to {value.directory}", *value.lines()))


@make_view.register(DatasetStatistics)
@make_view.register(EpisodeStatistics)
def _(value: DatasetStatistics | EpisodeStatistics) -> View:
    content = value.to_json()
    return View(statistics_text(content), statistics_html(content))


@make_view.register(Mapping)
def _(value: Mapping[str, Any]) -> View:
    return of_row(dict(value), "row").view()


def of_episode(episode: Episode, source: Source | None = None) -> ShownEpisode:
    """An episode with the rules that it breaks, and its signals. Images are not decoded for that."""
    fps = None if source is None else source.fps
    context = Context.of_episode(episode, fps=fps) if source is None else Context.of(source.schema, fps=fps)
    found = findings(measure(episode, context).row) if len(episode) else []
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
        return of_row(dataset[number], f"{dataset._name}: row {number}")
    except IndexError as error:
        raise UsageError(str(error)) from None


def open_viewed(path: str, options: Mapping[str, Any]) -> Source | Dataset:
    """Opens a path: as the source that `from_` names, or by default in its recognized format.

    Raises:
      UsageError: the dataset does not exist or cannot be read.
    """
    config = InputOptions.create(path, **options).resolve()
    found = config.recognized
    if found is not None and found.problem is not None and found.format in (COLUMNS, TRAJECTORIES):
        return open_dataset(path, config.split)
    return open_input(config)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
