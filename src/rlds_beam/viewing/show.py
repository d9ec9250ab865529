"""`rlds_beam.show`: objects and datasets to look at."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.signals import Context, findings, measure
from rlds_beam.checking.validation import find_violations
from rlds_beam.datasets.dataset import Dataset
from rlds_beam.datasets.opening import open_dataset
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.inputs import open_input
from rlds_beam.formats.options import InputOptions
from rlds_beam.formats.registry import COLUMNS, TRAJECTORIES
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.thumbnails import spread, thumbnail
from rlds_beam.reading.base import Source
from rlds_beam.reading.reader import episode_at, read_episode
from rlds_beam.viewing.episodes import ShownEpisode, View, of_row, strip

_ROWS, _CAMERAS, _HEIGHT = 6, 4, 96


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
        value = open_viewed(os.fspath(value), options)
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
    images = dataset._rows.read(np.array(rows), cameras) if cameras else {}
    for path, column in images.items():
        if isinstance(column, EncodedImages):
            firsts = [value if isinstance(value, bytes) else next(iter(value), b"") for value in column.data]
            yield strip(
                path, [(f"row {row}", thumbnail(first, _HEIGHT)) for row, first in zip(rows, firsts, strict=True)]
            )


def of_episode(episode: Episode, source: Source | None = None) -> ShownEpisode:
    """An episode with the rules that it breaks, and its signals. Images are not decoded for that."""
    fps = None if source is None else source.fps
    context = Context.of_episode(episode, fps=fps) if source is None else Context.of(source.schema, fps=fps)
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
        return of_row(dataset[number], f"{dataset._name}: row {number}")
    except IndexError as error:
        raise UsageError(str(error)) from None


def open_viewed(path: str, options: Mapping[str, Any]) -> Source | Dataset:
    """Opens a path: as the source that `from_` names, or by default in its recognized format.

    Raises:
      UsageError: the dataset does not exist or cannot be read.
    """
    config = InputOptions.create(path, **options)
    found = config.recognized
    if found is not None and found.problem is not None and found.format in (COLUMNS, TRAJECTORIES):
        return open_dataset(path, config.split)
    return open_input(config)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
