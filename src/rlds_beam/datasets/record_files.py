"""Random access to the rows of files that `convert` wrote: TFRecord, ArrayRecord, and Parquet."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import google_crc32c
import numpy as np

from rlds_beam import storage
from rlds_beam.datasets.base import Cache, Indices, PerThread, by_file
from rlds_beam.datasets.image_index import PlaceReader, find_images
from rlds_beam.datasets.step_index import PLACE
from rlds_beam.encoding.arrayrecord import num_records, open_reader
from rlds_beam.encoding.arrow_columns import from_arrow
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.encoding.example.row_decoder import objects
from rlds_beam.encoding.parquet_files import byte_chunks, leaf_paths, naming_damage, verified_parquet
from rlds_beam.encoding.tfrecord.framing import FOOTER, HEADER, OVERHEAD, masked_crc, record_header
from rlds_beam.episodes.columns import concatenate
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Span
from rlds_beam.typing import Array

_TOGETHER = 1 << 16
"""The largest gap in bytes between two TFRecord records that is read instead of skipped."""


RecordFile = tuple[str, int | None]
"""The path of a file, and its number of records; None if unknown."""


class RecordFiles:
    """The records of several files, in order, by index. Picklable, with its indices of the files.

    A TFRecord file is indexed by its framing when its first record is read, which takes 8 bytes of memory per record
    and one pass over the file. An ArrayRecord file has its own index.
    """

    def __init__(self, files: Sequence[RecordFile], format: RecordFormat):
        self._files, self._format = tuple(files), format
        self._positions: dict[int, Indices] = {}
        self._readers = PerThread(open_reader, close=_close)
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def __len__(self) -> int:
        return int(self.starts[-1])

    @functools.cached_property
    def starts(self) -> Indices:
        """The index of each file's first record, then the total number of records."""
        counts = [self._count(i) if records is None else records for i, (_, records) in enumerate(self._files)]
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def read(self, indices: Indices) -> list[bytes]:
        """Reads records by index.

        Raises:
          RldsBeamError: a record is damaged, or a file has an unexpected number of records.
        """
        records: list[bytes] = [b""] * len(indices)
        for i, which, numbers in by_file(indices, self.starts):
            order = np.argsort(numbers, kind="stable")
            try:
                payloads = self._read(i, numbers[order])
            except OSError as error:
                raise RldsBeamError(f"cannot read {self._files[i][0]}: {error}") from error
            for place, payload in zip(which[order].tolist(), payloads, strict=True):
                records[place] = payload
        return records

    def place(self, index: int) -> tuple[str, int]:
        """The file of a record and its number in the file."""
        ((i, _, numbers),) = by_file(np.array([index]), self.starts)
        return self._files[i][0], int(numbers[0])

    def _count(self, i: int) -> int:
        if self._format.name == "tfrecord":
            return len(self._index(i)) - 1
        return num_records(self._files[i][0])

    def _read(self, i: int, numbers: Indices) -> list[bytes]:
        """Reads records of one file; their numbers ascend."""
        path = self._files[i][0]
        if self._format.name == "tfrecord":
            return _read_tfrecord(path, self._index(i), numbers)
        try:
            return list(self._readers[path].read(numbers.tolist()))
        except (RuntimeError, IndexError) as error:
            raise _damage_error(path, f"cannot read records {numbers[0]} to {numbers[-1]}: {error}") from None

    def _index(self, i: int) -> Indices:
        """The offset of each record of a TFRecord file, and the file's end."""
        if i not in self._positions:
            with self._lock:
                if i not in self._positions:
                    self._positions[i] = _offsets(*self._files[i], self._format)
        return self._positions[i]


def _offsets(path: str, records: int | None, format: RecordFormat) -> Indices:
    if not format.is_splittable(path):
        raise UsageError(
            f"{path} is compressed as a whole, so random access is impossible: decompress it, or convert the "
            "dataset first"
        )
    headers = format.scan(path)
    positions = np.append(
        headers.positions, headers.positions[-1] + headers.lengths[-1] + OVERHEAD if len(headers.positions) else 0
    )
    if positions[-1] != storage.size(path) or (np.diff(positions) != headers.lengths + OVERHEAD).any():
        raise _damage_error(path, "some of its bytes are not records")
    if records not in (None, len(positions) - 1):
        raise _damage_error(path, f"it holds {len(positions) - 1} records, but {records} are expected")
    return positions


def _read_tfrecord(path: str, offsets: Indices, numbers: Indices) -> list[bytes]:
    """Reads records whose numbers ascend; reads nearby ones together."""
    starts, stops = offsets[numbers], offsets[numbers + 1]
    groups = np.split(np.arange(len(numbers)), np.flatnonzero(starts[1:] - stops[:-1] > _TOGETHER) + 1)
    bounds = [(int(starts[group[0]]), int(stops[group[-1]])) for group in groups]
    payloads: list[bytes] = []
    for group, (first, _), data in zip(groups, bounds, _read_bounds(path, bounds), strict=True):
        for start, stop in zip(starts[group] - first, stops[group] - first, strict=True):
            payloads.append(_payload(data[start:stop], path, first + int(start)))
    return payloads


def _read_bounds(path: str, bounds: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """The bytes between some offsets of a file; those of a file in a bucket are requested at the same time."""
    if storage.scheme(path) is not None:
        from rlds_beam.remote import request_ranges

        for content in request_ranges(path, bounds):
            yield content()
        return
    with storage.open_read(path) as file:
        for start, stop in bounds:
            file.seek(start)
            yield file.read(stop - start)


def _payload(framed: bytes, path: str, position: int) -> bytes:
    """The data of a record, after verifying its checksums."""
    payload = framed[HEADER.size : -FOOTER.size]
    sound = framed[: HEADER.size] == record_header(len(payload)) and framed[-FOOTER.size :] == FOOTER.pack(
        masked_crc(payload)
    )
    if not sound:
        raise _damage_error(path, f"byte {position}: the record does not match its checksum")
    return payload


def _damage_error(path: str, what: str) -> RldsBeamError:
    return RldsBeamError(f"{path}: {what}; fetch the file again, or convert the dataset again")


def _close(reader: Any) -> None:
    with contextlib.suppress(RuntimeError):
        reader.close()


_CACHED = 256 << 20
"""Bytes of columns cached, by all threads."""


class ParquetRowReader:
    """Rows of Parquet files (`base.Rows`). The columns of a row group are read together, and the last ones are kept.

    Of images that the file holds as they are, only the places are kept, and each is read on its own.

    Args:
      files: the files, in order.
      stored: the columns.
    """

    def __init__(self, files: Sequence[RecordFile], stored: Sequence[Field]):
        self.files = files
        self.fields = {field.path: field for field in stored}
        self._starts: Indices = np.cumsum([0, *(records or 0 for _, records in files)], dtype=np.int64)
        self._open: PerThread[_File] = PerThread(functools.partial(_open, fields=stored))
        self._columns: Cache[Column] = Cache(_CACHED)
        self._places: dict[_Key, Array] = {}
        self._images = PlaceReader([path for path, _ in files])

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetRowReader, (self.files, list(self.fields.values()))

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def is_remote(self) -> bool:
        """Whether the files are in a bucket."""
        return self._images.is_remote

    def prefetch(self, indices: Indices, path: str) -> None:
        """See `base.prefetch`; only images whose places are known by now."""
        for file, _, numbers in by_file(indices, self._starts) if self.is_remote else ():
            groups = [key[1] for key in list(self._places) if key[0] == file and key[2] == path]
            if groups:
                for group, _, rows in by_file(numbers, self._open[self.files[file][0]].starts):
                    if group in groups:
                        self._images.prefetch(self._places[file, group, path][rows].ravel())

    def read(self, indices: Indices, wanted: Sequence[str]) -> dict[str, Column]:
        parts: list[tuple[Indices, dict[str, Array | Column]]] = []
        for i, which, numbers in by_file(indices, self._starts):
            path = self.files[i][0]
            with naming_damage(path):
                for group, some, rows in by_file(numbers, self._open[path].starts):
                    columns = self._group(i, group, wanted)
                    parts.append((which[some], {name: columns[name][rows] for name in wanted}))
        if not parts:
            return {name: from_arrow(self.fields[name], _empty(self.fields[name])) for name in wanted}
        back = np.argsort(np.concatenate([which for which, _ in parts]), kind="stable")
        return {name: self._join(name, [columns[name] for _, columns in parts])[back] for name in wanted}

    def _join(self, name: str, parts: Sequence[Array | Column]) -> Column:
        if all(isinstance(part, np.ndarray) and part.dtype == PLACE for part in parts):
            return self._read(name, np.concatenate(cast("list[Array]", parts)))
        return concatenate(
            [self._read(name, part) if isinstance(part, np.ndarray) and part.dtype == PLACE else part for part in parts]
        )

    def _read(self, name: str, places: Array) -> EncodedImages:
        """The images at these places, [k, ...]."""
        field, data = self.fields[name], objects(self._images.read(places.ravel()))
        return EncodedImages(data.reshape(places.shape), field.shape[-3:], field.dtype)

    def _group(self, file: int, group: int, wanted: Sequence[str]) -> dict[str, Array | Column]:
        """Columns of a row group; those of images may be their places instead, `PLACE` [rows, ...]."""
        columns: dict[str, Array | Column] = {}
        for name in wanted:
            known: Array | Column | None = self._places.get((file, group, name))
            if known is None:
                known = self._columns.get((file, group, name))
            if known is not None:
                columns[name] = known
        missing = [name for name in wanted if name not in columns]
        if missing:
            opened = self._open[self.files[file][0]]
            table = opened.file.read_row_group(group, columns=missing, use_threads=False)
            for name in missing:
                key = file, group, name
                column = from_arrow(self.fields[name], table.column(name).combine_chunks())
                places = self._locate(column, file, opened.chunks.get(name, {}).get(group))
                if places is None:
                    self._columns.put(key, column, table.column(name).nbytes)
                    columns[name] = column
                else:
                    columns[name] = self._places[key] = places
        return columns

    def _locate(self, column: Column, file: int, chunk: tuple[int, int] | None) -> Array | None:
        """The places of images; None if the file does not hold all of them as they are."""
        if chunk is None or not isinstance(column, EncodedImages):
            return None
        path = self.files[file][0]
        found = find_images(column.data.flat, [Span(path, *chunk)])
        places = np.zeros(column.data.size, PLACE)
        for i, image in enumerate(column.data.flat):
            if image:
                if image not in found:
                    return None
                places[i] = (found[image][1], len(image), google_crc32c.value(image), file, 0)
        return places.reshape(column.data.shape)


_Key = tuple[int, int, str]
"""A file, a row group, and a column."""


class _File(NamedTuple):
    """An open file.

    Attributes:
      file: the `ParquetFile`.
      starts: the index of each row group's first row.
      chunks: the bytes of columns of images that are not compressed, by column and row group.
    """

    file: Any
    starts: Indices
    chunks: Mapping[str, Mapping[int, tuple[int, int]]]


def _open(path: str, fields: Sequence[Field]) -> _File:
    file = verified_parquet(storage.open_read(path))
    counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    chunks, plain = {}, byte_chunks(file.metadata, ("UNCOMPRESSED",))
    for field in fields:
        if field.holds_image_files and None not in field.shape[:-3]:
            (leaf,) = leaf_paths(field.path, file.schema_arrow.field(field.path).type)
            found = plain.get(leaf, [])
            chunks[field.path] = {group: span for group, span in enumerate(found) if span is not None}
    return _File(file, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), chunks)


def _empty(field: Field) -> Any:
    from rlds_beam.encoding.arrow_columns import arrow_schema

    return arrow_schema([field]).empty_table().column(0).combine_chunks()
