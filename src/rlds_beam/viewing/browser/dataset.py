"""A dataset of the browser, the answers about it as JSON, and the same episodes of another dataset."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.checking.signals.results import findings
from rlds_beam.encoding.metadata import load_json
from rlds_beam.episodes.episode import EPISODE_KEY, EpisodeKey
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.formats.registry import LEROBOT
from rlds_beam.images.headers import UndecodableImageError, read_image_header
from rlds_beam.output.directory import holding
from rlds_beam.output.files import REPORT
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source, VideoSpan
from rlds_beam.reading.reader import find_shard, read_episode
from rlds_beam.viewing.browser.episodes import EpisodeCache, OpenedEpisode, find_cameras
from rlds_beam.viewing.browser.index import EpisodeIndex
from rlds_beam.viewing.browser.learner_view import ItemMaker
from rlds_beam.viewing.browser.table import LISTED, METADATA, DatasetTable, Query, TableRows
from rlds_beam.viewing.episode_view import BROWSED, make_view, rule_mark, signal_mark
from rlds_beam.viewing.facts import json_value
from rlds_beam.viewing.report.dataset import Settings, make_summary
from rlds_beam.viewing.report.report_file import Input

Json = dict[str, Any]


class MissingError(LookupError):
    """There is no such episode, step, camera, or dataset; the message says which."""


class Compared(NamedTuple):
    """The dataset that was made from a dataset, or from which it was made.

    Attributes:
      dataset: the other dataset.
      find: from an episode's key to the key of the same episode there (None if unknown), and how it was found.
    """

    dataset: BrowsedDataset
    find: Callable[[EpisodeKey], tuple[EpisodeKey | None, str]]


@dataclasses.dataclass
class BrowsedDataset:
    """A dataset of the browser. Thread-safe.

    Attributes:
      id: its number on the command line.
      path: the path as given.
      format: its format.
      source: the dataset, with all of its fields.
      check: what to do with episodes that break a rule.
      options: the options of a conversion, for `made`.
      compared: the dataset that was converted to or from this one.
    """

    id: str
    path: str
    format: str
    source: Source
    check: CheckOptions
    options: Any
    compared: Compared | None = None

    @functools.cached_property
    def readable(self) -> Source:
        """The dataset without its videos, which the server never decodes."""
        steps = self.source.schema.steps
        videos = [path for path in self.source.details.videos if steps[path].dtype == "uint8"]  # not of depth
        return self.source.without(videos, "played by the web browser") if videos else self.source

    @functools.cached_property
    def index(self) -> EpisodeIndex:
        return EpisodeIndex(self.source)

    @functools.cached_property
    def cache(self) -> EpisodeCache:
        return EpisodeCache(self.readable, self.check)

    @functools.cached_property
    def table(self) -> DatasetTable:
        """Sorts and filters; `open_datasets` has opened or started it."""
        settings = Settings(self.path, self.format, self.check, decode=0)
        settings = dataclasses.replace(
            settings,
            convert=(*settings.convert, self.path, "OUTPUT"),
            list_command=(*settings.list_command, self.path),
        )
        return DatasetTable(Input(self.readable, settings, Report()), self.index)

    @functools.cached_property
    def maker(self) -> ItemMaker:
        return ItemMaker(self.readable, self.options, self.check)

    def about(self) -> Json:
        """The dataset in `/api/datasets`."""
        schema, rows, other = self.source.schema, self.table.rows, self.readable.schema.steps
        videos = {path: field.shape for path, field in schema.steps.items() if path not in other}
        images = {field.path: field.shape for field in find_cameras(self.readable.schema)}
        return {
            "id": self.id,
            "name": self.source.dataset,
            "path": self.path,
            "format": self.format,
            "episodes": len(self.index),
            "splits": [{"name": name, "episodes": count} for name, count in self.index.split_sizes().items()],
            "fps": self.source.fps,
            "cameras": [
                {"path": path, "kind": kind, "width": (*shape, None)[1], "height": shape[0]}
                for kind, cameras in (("image", images), ("video", videos))
                for path, shape in cameras.items()
            ],
            "fields": {
                "steps": list(map(_field, schema.steps.values())),
                "metadata": list(map(_field, schema.metadata.values())),
            },
            "columns": [] if rows is None else list_columns(rows),
            "rules": {} if rows is None else rows.rules,
            "signals": [] if rows is None else [name for name in SIGNALS if rows.is_known(name)],
            "outlined": rows is not None and "outline" in rows.names,
            "scan": self.table.progress(),
            "scanned": self.table.complete,
            "summary": self.table.gathered is not None,
            "problems": [str(violation) for violation in self.source.details.violations],
            "compare_to": None if self.compared is None else self.compared.dataset.id,
        }

    def summary(self) -> Json:
        """`/api/summary`: that of a report. Raises MissingError before all episodes were measured."""
        if (gathered := self.table.gathered) is None:
            raise MissingError("the summary needs the results of all episodes, which are not known yet")
        return make_summary(self.source, gathered, self.table.settings)

    def rows(self, query: Query, offset: int, limit: int) -> Json:
        """`/api/episodes`. Raises UsageError if the query needs a column or a table that there is not."""
        table, complete = self.table.rows, self.table.complete
        if (found_key := self._find_episode(query.text)) is not None:
            return {"total": 1, "offset": 0, "rows": [self._shown_key(*found_key)][offset:], "scanned": complete}
        if query != Query(split=query.split):
            if table is None:
                raise UsageError("sorting and filtering need the signals of the episodes, which are not known yet")
            found = table.select(query)
            rows = self._rows_json(table, found[offset : offset + limit])
            return {"total": len(found), "offset": offset, "rows": rows, "scanned": complete}
        first, stop = self.index.split_range(query.split) if query.split else (0, len(self.index))
        start, end = min(first + offset, stop), min(first + offset + limit, stop)
        if table is not None and len(known := table.rows_between(start, end)):
            rows = self._rows_json(table, known)
        else:
            rows = [self._shown_key(start + i, key) for i, key in enumerate(self.index.keys(start, end))]
        return {"total": stop - first, "offset": offset, "rows": rows, "scanned": complete}

    def _find_episode(self, text: str) -> tuple[int, EpisodeKey] | None:
        """The number and key of the episode whose key is `text`."""
        try:
            key = EpisodeKey.parse(text)
            number = self.index.number(key)
        except (OverflowError, ValueError):
            return None
        return None if number is None else (number, key)

    def _rows_json(self, table: TableRows, rows: Any) -> list[Json]:
        shown = table.show(rows, self.source.dataset, SIGNALS)
        return [{"index": int(table.numbers[row]), **entry} for row, entry in zip(rows, shown, strict=True)]

    def _shown_key(self, number: int, key: EpisodeKey) -> Json:
        """A row of the list, from the table if it has the episode."""
        table = self.table.rows
        if table is not None and len(row := table.rows_between(number, number + 1)):
            return self._rows_json(table, row)[0]
        return _row(number, key)

    def episode(self, key: EpisodeKey) -> Json:
        """`/api/episode`."""
        opened, number = self._open(key), self.index.number(key)
        if number is None:
            raise MissingError(f"{key}: there is no such episode")
        before = self.index.keys(number - 1, number) if number else []
        after = self.index.keys(number + 1, number + 2)
        videos = (_video_camera(*item) for item in self._spans(key).items())
        cameras = (*_image_cameras(opened), *videos)
        table = self.table.rows
        row = None if table is None else table.row(number)
        marks = (*map(rule_mark, opened.violations), *map(signal_mark, findings(row or {})))
        view = make_view(
            opened.episode, BROWSED, marks, fps=self.source.fps, names=self.source.schema.names, cameras=cameras
        )
        return {
            **view,
            "steps": max([len(opened), *(camera["frames"] for camera in cameras)]),
            "rejected": opened.rejected,
            "index": number,
            "version": self.version(key),
            "previous": str(before[0]) if before else None,
            "next": str(after[0]) if after else None,
        }

    def made(self, key: EpisodeKey, offset: int, limit: int) -> Json:
        """`/api/made`."""
        try:
            return self.maker.make(read_episode(self.readable, key), offset, limit)
        except UsageError as error:
            raise MissingError(str(error)) from error

    def counterpart(self, key: EpisodeKey) -> Json:
        """`/api/counterpart`."""
        if self.compared is None:
            raise MissingError(f"no other dataset was made from {self.path}")
        other, how = self.compared.find(key)
        found = None if other is None else str(other)
        return {"dataset": self.compared.dataset.id, "key": found, "how": how}

    def step(self, key: EpisodeKey, step: int) -> Json:
        """`/api/step`."""
        opened = self._open(key)
        if not 0 <= step < len(opened):
            raise MissingError(f"{key}: there is no step {step}; it has {len(opened)}")
        values = []
        for path, field in self.readable.schema.steps.items():
            if path in opened.frames:
                image = {"image": field.encoding, "bytes": opened.frames[path].size(step)}
                value: tuple[Any, bool] = image, False
            elif path in opened.episode.steps:
                value = json_value(opened.episode.steps[path][step])
            else:
                continue
            values.append(
                {"path": path, "dtype": field.dtype, "shape": field.shape, "value": value[0], "cut": value[1]}
            )
        return {"step": step, "values": values}

    def image(self, key: EpisodeKey, camera: str, step: int) -> bytes:
        """`/image`: the stored bytes."""
        try:
            return self.cache.image(key, camera, step)
        except (LookupError, UsageError) as error:
            raise MissingError(f"{key}: there is no image of {camera} at step {step}") from error

    def videos(self, key: EpisodeKey) -> list[Json]:
        """`/api/videos`."""
        return [_video_camera(*item) for item in self._videos(key).items()]

    def video(self, key: EpisodeKey, camera: str) -> VideoSpan:
        """`/video`: the file with a camera's video."""
        span = self._videos(key).get(camera)
        if span is None:
            raise MissingError(f"{key}: there is no video of {camera}")
        return span

    def version(self, key: EpisodeKey) -> str:
        """Changes with the content of the episode's file."""
        try:
            return hashlib.sha256(f"{self.path}\n{key}\n{self.cache.stamp(key)}".encode()).hexdigest()[:16]
        except UsageError as error:
            raise MissingError(str(error)) from error

    def _spans(self, key: EpisodeKey) -> Mapping[str, VideoSpan]:
        """The videos of an episode; raises UsageError if there is no such shard."""
        media = self.source.media(find_shard(self.source, key), key.position) if self.source.details.videos else {}
        decoded = self.readable.schema.steps
        return {path: span for path, span in media.items() if isinstance(span, VideoSpan) and path not in decoded}

    def _videos(self, key: EpisodeKey) -> Mapping[str, VideoSpan]:
        try:
            return self._spans(key)
        except UsageError as error:
            raise MissingError(str(error)) from error

    def _open(self, key: EpisodeKey) -> OpenedEpisode:
        try:
            return self.cache.open(key)
        except UsageError as error:
            raise MissingError(str(error)) from error


def list_columns(rows: TableRows) -> list[Json]:
    """The columns that the list can be sorted and filtered by."""
    columns = []
    for name in rows.names:
        signal, metadata = SIGNALS.get(name), name.startswith(METADATA)
        if not rows.is_known(name) or (signal is None and not metadata and name not in LISTED):
            continue
        columns.append(
            {
                "name": name,
                "label": name.removeprefix(METADATA).replace("_", " "),
                "kind": "text" if rows.is_text(name) else "number",
                "unit": signal.unit if signal else None,
                "summary": signal.summary if signal else None,
                "threshold": signal.threshold if signal else None,
            }
        )
    return columns


def _row(number: int, key: EpisodeKey) -> Json:
    return {
        "index": number,
        "key": str(key),
        "split": key.split,
        "steps": None,
        "return": None,
        "instruction": None,
        "rule": None,
        "detail": None,
        "metadata": {},
        "signals": {},
        "outline": None,
    }


def _field(field: Field) -> Json:
    return {"path": field.path, **field.to_json()}


def _image_cameras(opened: OpenedEpisode) -> Iterator[Json]:
    for path, frames in opened.frames.items():
        height = width = None
        if len(frames):
            with contextlib.suppress(OSError, UndecodableImageError):  # the page shows that it is damaged
                height, width = read_image_header(frames.image(0))
        yield {"path": path, "kind": "image", "frames": len(frames), "width": width, "height": height}


def _video_camera(path: str, span: VideoSpan) -> Json:
    return {
        "path": path,
        "kind": "video",
        "frames": span.frames,
        "width": None,
        "height": None,
        "from": span.start,
        "to": span.stop,
    }


def compare(datasets: Sequence[BrowsedDataset]) -> None:
    """Links each output to the dataset that it was made from, if that is shown as well."""
    for output in datasets:
        held = holding(output.path) if storage.isdir(output.path) else None
        for source in datasets:
            if held is not None and source is not output and source.source.dataset == held.dataset:
                comparison = Comparison(source, output)
                for one, other in ((output, source), (source, output)):
                    one.compared = one.compared or Compared(other, functools.partial(comparison.counterpart, one))
                break


class Comparison:
    """A dataset and an output that was made from it."""

    def __init__(self, source: BrowsedDataset, output: BrowsedDataset):
        self.source, self.output = source, output

    def counterpart(self, dataset: BrowsedDataset, key: EpisodeKey) -> tuple[EpisodeKey | None, str]:
        """The same episode in the other dataset (None if unknown), and how it was found, or why not."""
        number = dataset.index.number(key)
        if number is None:
            return None, "there is no such episode"
        if self._keys:
            return self._by_key(dataset, key, number)
        order = self._order
        if order is None:
            return None, f"{self.output.path} keeps no episode keys, and some episodes were left out or split"
        how = "by the order of the accepted episodes"
        if dataset is self.output:
            return self._find_key(self.source, int(order[number]) if number < len(order) else None), how
        at = int(np.searchsorted(order, number))
        if at == len(order) or order[at] != number:
            return None, "the conversion rejected or dropped this episode"
        return self._find_key(self.output, at), how

    def _by_key(self, dataset: BrowsedDataset, key: EpisodeKey, number: int) -> tuple[EpisodeKey | None, str]:
        how = f"by the {EPISODE_KEY} that {self.output.path} keeps"
        if dataset is self.output:
            try:
                return EpisodeKey.parse(self._keys[number]), how
            except (IndexError, ValueError):
                return None, f"its {EPISODE_KEY} is missing or malformed"
        found = self._numbers.get(str(key))
        return self._find_key(self.output, found), how if found is not None else "the output has no such episode"

    @staticmethod
    def _find_key(dataset: BrowsedDataset, number: int | None) -> EpisodeKey | None:
        keys = [] if number is None else dataset.index.keys(number, number + 1)
        return keys[0] if keys else None

    @functools.cached_property
    def _keys(self) -> Sequence[str]:
        """The source key of each episode of the output; empty if the output does not keep it."""
        if self.output.format != LEROBOT:
            return ()
        from rlds_beam.formats.lerobot.source import LerobotSource

        assert isinstance(self.output.source, LerobotSource)
        return self.output.source.source_keys()

    @functools.cached_property
    def _numbers(self) -> Mapping[str, int]:
        """The first episode of the output for each source key."""
        return {key: number for number, key in reversed(list(enumerate(self._keys)))}

    @functools.cached_property
    def _order(self) -> Any:
        """The number in the source of each episode of the output, ascending; None if unknown."""
        made, total = len(self.output.index), len(self.source.index)
        report = load_json(storage.join(self.output.path, REPORT))
        if made == total == report.get("records") and not report.get("rejected") and not report.get("dropped"):
            return np.arange(total)
        rows = self.source.table.rows if self.source.table.complete else None
        accepted = None if rows is None else rows.accepted()
        return accepted if accepted is not None and len(accepted) == made and not report.get("dropped") else None
