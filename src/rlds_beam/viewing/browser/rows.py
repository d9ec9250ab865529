"""Items and columns that `convert` wrote, as episodes of the browser."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from rlds_beam import storage
from rlds_beam.datasets.dataset import Dataset
from rlds_beam.datasets.opening import open_dataset
from rlds_beam.encoding.base import Damage, Headers, Record
from rlds_beam.episodes.episode import EPISODE_KEY, Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import BadEpisode, RldsBeamError, Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.output.directory import is_output, is_rlds
from rlds_beam.output.files import MANIFEST
from rlds_beam.output.manifest import read_manifest
from rlds_beam.reading.base import Shard, Source, Split

_IDS = ("eps_id", "episode_id", "episode_index", "episode_key", "id")
"""Columns that name the episode of a row."""
_ENDS = ("terminateds", "truncateds", "dones")
"""Columns that are true in an episode's last row."""
_PAGE = 100
"""Rows of a page, if the episodes are unknown."""
_MAX_BYTES = 1 << 28
"""Maximum size of a dataset whose rows are all read to find the episodes, unless its columns can be read one by one."""


@dataclasses.dataclass(frozen=True)
class _Groups:
    """The rows of one split.

    Attributes:
      rows: the rows.
      starts: the first row of each group, then the total number of rows.
    """

    rows: Dataset
    starts: Any


@dataclasses.dataclass(frozen=True)
class RowsFormat:
    """Groups of rows by number (`encoding.base.RecordFormat`); the decoder reads them."""

    name: str = "rows"
    unit: str = "rows"

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Record | Damage]:
        del path
        for position in range(start, start if stop is None else stop):
            yield Record(position, b"")

    def scan(self, path: str, start: int = 0, stop: int | None = None) -> Headers:
        return Headers.of(self.read(path, start, stop))

    def is_splittable(self, path: str) -> bool:
        del path
        return True

    def end(self, path: str, size: int) -> int:
        del path
        return size

    def positions(self, path: str, low: int, high: int) -> tuple[int, int | None]:
        del path
        return low, high


@dataclasses.dataclass(frozen=True)
class RowsDecoder:
    """Reads a group of rows as an episode (`reading.base.Decoder`).

    Attributes:
      splits: the rows of each split.
      schema: the fields of a row.
      items: whether each group is one item, whose frames are its steps.
    """

    splits: Mapping[str, _Groups]
    schema: Schema
    items: bool

    def decode(self, payload: bytes, key: EpisodeKey) -> Episode:
        groups = self.splits[key.split]
        if not 0 <= key.position < len(groups.starts) - 1:
            raise BadEpisode(Violation("corrupt_record", f"there are only {len(groups.starts) - 1:,} of them"))
        try:
            if self.items:
                values: Mapping[str, Any] = groups.rows[int(key.position)]
            else:
                values = groups.rows[int(groups.starts[key.position]) : int(groups.starts[key.position + 1])]
        except RldsBeamError as error:
            raise BadEpisode(Violation("corrupt_record", str(error))) from error
        return Episode(key, {path: _column(values[path], field) for path, field in self.schema.steps.items()})


@dataclasses.dataclass(frozen=True)
class RowsSource(Source):
    """Rows that `convert` wrote; an episode is a run of rows with the same id, a page of rows, or an item of frames.

    Attributes:
      unit: `episode`, `rows`, or `item`. The others: see `Source`.
    """

    dataset: str
    schema: Schema
    decoder: RowsDecoder
    splits: tuple[Split, ...]
    unit: str
    files: RowsFormat = RowsFormat()
    violations: tuple[Violation, ...] = ()

    options_class: ClassVar[Any] = Source.options_class

    @classmethod
    def open(cls, input: Any, *, split: str | None = None, features: str | None = None) -> RowsSource:
        """Opens the output of `convert --to=columns` or `--to=trajectories`.

        Raises:
          UsageError: there is no such output, or it has several modules: name the directory of one.
        """
        del features
        path = str(input)
        whole = open_dataset(path, split, images="encoded")
        directory = path if storage.exists(storage.join(path, MANIFEST)) else storage.split(path.rstrip("/"))[0]
        manifest = read_manifest(directory)
        sizes = {shard["split"]: 0 for shard in manifest["shards"] if shard["records"]}
        wanted = sizes if split is None else split.split("+")
        items = "modules" not in manifest and all(field.shape for field in whole.fields.values())
        groups = {name: _groups(open_dataset(path, name, images="encoded"), manifest, items) for name in wanted}
        schema = Schema({path: _step_field(field, items) for path, field in whole.fields.items()})
        unit = "item" if items else "episode" if all(known for _, known in groups.values()) else "rows"
        splits = tuple(
            Split(name, (Shard(0, storage.join(directory, MANIFEST), len(column.starts) - 1, len(column.starts) - 1),))
            for name, (column, _) in groups.items()
        )
        decoder = RowsDecoder({name: column for name, (column, _) in groups.items()}, schema, items)
        return cls(f"{manifest['name']}/{manifest['version']}", schema, decoder, splits, unit)

    def steps_of(self, key: EpisodeKey) -> int | None:
        """The number of rows of an episode; for an item, of its frames."""
        groups = self.decoder.splits.get(key.split)
        if groups is None or not 0 <= key.position < len(groups.starts) - 1:
            return None
        if self.unit != "item":
            return int(groups.starts[key.position + 1] - groups.starts[key.position])
        return next(iter(groups.rows.fields.values())).shape[0]

    def origins(self) -> list[str]:
        """The text of `episode_key` in the first row of each episode; empty if there is no such column."""
        if EPISODE_KEY not in self.schema.steps:
            return []
        splits = [self.decoder.splits[split.name] for split in self.splits]
        return [
            text.decode(errors="replace")
            for groups in splits
            for text in groups.rows.select(groups.starts[:-1], [EPISODE_KEY])[EPISODE_KEY]
        ]


def _groups(rows: Dataset, manifest: Mapping[str, Any], items: bool) -> tuple[_Groups, bool]:
    """The groups of a split, and whether they are episodes."""
    count = len(rows)
    if items:
        return _Groups(rows, np.arange(count + 1)), True
    if manifest.get("format") == "parquet" or manifest["bytes"] <= _MAX_BYTES:
        for name in _IDS:
            if name in rows.fields and not rows.fields[name].shape:
                ids = rows.columns[name]
                return _Groups(rows, _bounds(ids[1:] != ids[:-1], count)), True
        ends = [
            rows.columns[name].astype(bool) for name in _ENDS if name in rows.fields and not rows.fields[name].shape
        ]
        if ends:
            return _Groups(rows, _bounds(np.logical_or.reduce(ends)[:-1], count)), True
    return _Groups(rows, np.append(np.arange(0, count, _PAGE), count)), False


def _bounds(ends: Any, count: int) -> Any:
    """The first row of each group, then the number of rows.

    Args:
      ends: whether each row but the last ends a group.
    """
    return np.concatenate([[0], np.flatnonzero(ends) + 1, [count]]) if count else np.zeros(1, np.int64)


def _step_field(field: Field, items: bool) -> Field:
    return dataclasses.replace(field, shape=field.shape[1:]) if items else field


def _column(values: Any, field: Field) -> Column:
    if field.holds_image_files:
        data = np.empty(len(values), object)
        data[:] = list(values)
        return EncodedImages(data, field.shape, field.dtype, field.encoding)
    column: Column = np.asarray(values)
    return column


def opens_as_rows(path: str) -> bool:
    """Whether a directory is an output of items or columns, or one of its modules."""
    parent = storage.split(path.rstrip("/"))[0]
    if not any(is_output(directory) and not is_rlds(directory) for directory in (path, parent) if directory):
        return False
    try:
        open_dataset(path)
    except RldsBeamError:
        return False
    return True
