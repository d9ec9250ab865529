"""Read the data files of a LeRobot dataset: one record per episode."""

from __future__ import annotations

import dataclasses
import functools
import json
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.arrow_columns import ipc_bytes
from rlds_beam.encoding.base import Damage, Headers, Record
from rlds_beam.encoding.parquet_files import UNREADABLE, byte_chunks, verified_parquet
from rlds_beam.formats.lerobot.metadata import EpisodeRow, Meta
from rlds_beam.text import shorten

if TYPE_CHECKING:
    import pyarrow as pa

EPISODE = b"rlds_beam_episode"
"""Schema key of a record: the episode's metadata from meta/, as JSON."""

_NUMBERED = ("index", "episode_index")
"""Left out of a record, so that episodes that differ only in their position are equal."""


@functools.lru_cache(maxsize=4)
def read_meta(root: str, digest: str) -> Meta:
    """The metadata of a dataset, read once per process, and again if they change (`Meta.digest`)."""
    del digest
    return Meta.open(root)


@functools.lru_cache(maxsize=4)
def _rows_of_files(root: str, digest: str) -> dict[str, list[EpisodeRow]]:
    rows: dict[str, list[EpisodeRow]] = {}
    for row in read_meta(root, digest).episodes:
        rows.setdefault(row.file, []).append(row)
    return rows


@dataclasses.dataclass(frozen=True)
class LerobotFiles:
    """Data files with a record for each episode, at its number in the file (`encoding.base.RecordFormat`).

    The payload is an Arrow stream: the frames, their task as text, and the episode's metadata from meta/.

    Attributes:
      root: the directory of the dataset.
      digest: the digest of its metadata.
    """

    root: str
    digest: str

    @property
    def name(self) -> str:
        return "parquet"

    @property
    def unit(self) -> str:
        return "episodes"

    def rows(self, path: str) -> list[EpisodeRow]:
        """The episodes in a file, according to meta/."""
        return _rows_of_files(self.root, self.digest).get(path[len(self.root.rstrip("/")) + 1 :], [])

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Record | Damage]:
        for position, table in self._tables(path, start, stop, images=True):
            if isinstance(table, str):
                yield Damage(position, position + 1, table, b"")
            else:
                yield Record(position, ipc_bytes(table))

    def scan(self, path: str, start: int = 0, stop: int | None = None) -> Headers:
        positions, lengths, checksums = [], [], []
        for position, table in self._tables(path, start, stop, images=False):
            if not isinstance(table, str):
                positions.append(position)
                lengths.append(table.num_rows)
                checksums.append(zlib.crc32(ipc_bytes(table)))
        return Headers(np.array(positions, np.int64), np.array(lengths, np.int64), np.array(checksums, np.uint32))

    def image_chunks(self, path: str, position: int) -> dict[str, list[tuple[int, int]]]:
        """The bytes of an episode's images, (start, stop) of each row group by feature."""
        groups, chunks = _locate_chunks(path, storage.stamp(path) or self.digest)
        own = groups.get(self.rows(path)[position].index, range(0))
        found = {path: [span for group in own if (span := spans[group])] for path, spans in chunks.items()}
        return {path.removesuffix(".bytes"): spans for path, spans in found.items() if path.endswith(".bytes")}

    def is_splittable(self, path: str) -> bool:
        return True

    def end(self, path: str, size: int) -> int:
        return len(self.rows(path))

    def positions(self, path: str, low: int, high: int) -> tuple[int, int | None]:
        return low, high

    def _tables(self, path: str, start: int, stop: int | None, images: bool) -> Iterator[tuple[int, pa.Table | str]]:
        """The frames of each episode, or an error message, with its position."""
        rows = self.rows(path)
        wanted = range(start, len(rows) if stop is None else min(stop, len(rows)))
        if not wanted:
            return
        try:
            file = storage.open_read(path)
        except OSError as error:
            if storage.scheme(path) is not None:
                raise
            yield from ((position, f"the file cannot be read: {shorten(error)}") for position in wanted)
            return
        with file:
            try:
                frames = _Frames(read_meta(self.root, self.digest).open_data(file), images)
            except UNREADABLE as error:
                yield from ((position, f"the file is damaged: {shorten(error)}") for position in wanted)
                return
            for position in wanted:
                try:
                    table = rows[position].fault or self._table(frames, rows[position])
                except UNREADABLE as error:
                    table = f"the file is damaged: {shorten(error)}"
                yield position, table

    def _table(self, frames: _Frames, row: EpisodeRow) -> pa.Table | str:
        import pyarrow as pa

        table = frames.table_of(row.index)
        if table.num_rows != row.length:
            return f"{table.num_rows} frames, but meta/ says {row.length} for episode {row.index}"
        tasks = read_meta(self.root, self.digest).tasks
        numbers = table["task_index"].to_pylist()
        if not all(number in tasks for number in numbers):
            return f"episode {row.index} has a task that is not in meta/"
        texts = pa.array([tasks[number] for number in numbers], pa.string())
        about = {
            "columns": row.columns,
            "videos": {key: dataclasses.astuple(video) for key, video in row.videos.items()},
        }
        table = table.append_column("task", texts)
        return table.replace_schema_metadata({EPISODE: json.dumps(about, default=str).encode()})


class _Frames:
    """The row groups of a file, with the last one cached."""

    def __init__(self, file: Any, images: bool):
        import pyarrow as pa

        self._file = file
        self.metadata = self._file.metadata
        self._columns = [
            field.name
            for field in self._file.schema_arrow
            if field.name not in _NUMBERED and (images or not pa.types.is_struct(field.type))
        ]
        column = self._file.read(columns=["episode_index"], use_threads=False)["episode_index"]
        if column.null_count or not pa.types.is_integer(column.type):
            raise ValueError(f"episode_index is {column.type} with {column.null_count} nulls, not integers")
        numbers = column.to_numpy()
        starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]]) if len(numbers) else np.empty(0, np.int64)
        stops = np.r_[starts[1:], len(numbers)].astype(np.int64)
        spans = zip(numbers[starts].tolist(), starts.tolist(), stops.tolist(), strict=True)
        self._places: dict[int, tuple[int, int]] = {}
        self._repeated: set[int] = set()
        for number, start, stop in spans:
            if number in self._places:
                self._repeated.add(number)
            self._places[number] = start, stop
        groups = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        self._ends = np.cumsum(groups, dtype=np.int64)
        self._held: tuple[int, Any] = (-1, None)

    def table_of(self, episode: int) -> pa.Table:
        """The frames of an episode; an empty table if the file does not have it.

        Raises:
          ValueError: they are in several places, between those of other episodes.
        """
        import pyarrow as pa

        if episode in self._repeated:
            raise ValueError(f"the frames of episode {episode} are in several places")
        start, stop = self._places.get(episode, (0, 0))
        parts = []
        for group in self.find_groups(episode):
            first = int(self._ends[group - 1]) if group else 0
            low, high = max(start, first), min(stop, int(self._ends[group]))
            if low < high:
                parts.append(self._group(group).slice(low - first, high - low))
        return pa.concat_tables(parts) if parts else self._file.schema_arrow.empty_table().select(self._columns)

    @property
    def episodes(self) -> list[int]:
        return list(self._places)

    def find_groups(self, episode: int) -> range:
        """The row groups with frames of an episode."""
        start, stop = self._places.get(episode, (0, 0))
        first = int(np.searchsorted(self._ends, start, side="right"))
        return range(first, int(np.searchsorted(self._ends, stop)) + 1) if start < stop else range(0)

    def _group(self, group: int) -> pa.Table:
        if self._held[0] != group:
            self._held = group, self._file.read_row_group(group, columns=self._columns, use_threads=False)
        return self._held[1]


@functools.lru_cache(maxsize=16)
def _locate_chunks(path: str, stamp: object) -> tuple[dict[int, range], dict[str, list[tuple[int, int] | None]]]:
    """The row groups of each episode, and the bytes of each column in each row group (`byte_chunks`)."""
    del stamp
    try:
        with storage.open_read(path) as file:
            frames = _Frames(verified_parquet(file), images=False)
            groups = {episode: frames.find_groups(episode) for episode in frames.episodes}
            return groups, byte_chunks(frames.metadata, ("UNCOMPRESSED", "SNAPPY"))
    except UNREADABLE:
        return {}, {}
