"""Files of rows: their columns in the manifest, and a writer for each format. A file gets its name when complete."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict

from rlds_beam import storage
from rlds_beam.encoding.arrow_columns import METADATA, arrow_schema, to_arrow
from rlds_beam.encoding.example.rows import RowEncoder
from rlds_beam.encoding.metadata import Count, FileName, convert
from rlds_beam.encoding.parquet_files import ShardSink, leaf_paths
from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import ColumnsFormat
from rlds_beam.output.files import MANIFEST
from rlds_beam.output.shards import ArrayRecordFileWriter, ShardInfo, ShardWriter
from rlds_beam.reading.meaning import KEY, Meaning
from rlds_beam.text import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_BYTES = 4 << 20
"""Size of a Parquet row group, which a reader must decode to read one row."""


class TFRecordRows:
    """A TFRecord file of tf.Examples."""

    def __init__(self, path: str, fields: Sequence[Field]):
        self._encoder, self._shard = RowEncoder(fields), ShardWriter(path)

    def prepare(self, columns: Mapping[str, Column], rows: int) -> Iterator[tuple[memoryview | bytes, int]]:
        """Encodes rows, for `add`.

        Raises:
          BadEpisode: they cannot be written.
          ValueError: a column does not have its field's dtype and shape.
        """
        return self._encoder.encode_framed(columns, rows)

    def add(self, prepared: Any, key: object) -> None:
        """Writes prepared rows of the episode `key`. Every error in them was raised before."""
        for buffer, records in prepared:
            self._shard.write([buffer], records, key)

    def commit(self) -> ShardInfo:
        """Completes the file and gives it its name. Returns what was counted while writing."""
        return self._shard.commit()

    def abort(self) -> None:
        """Removes what was written so far. Does nothing after `commit`."""
        self._shard.abort()


class ArrayRecordRows:
    """An ArrayRecord file of tf.Examples, with the members of `TFRecordRows`."""

    def __init__(self, path: str, fields: Sequence[Field]):
        self._encoder, self._file = RowEncoder(fields), ArrayRecordFileWriter(path)

    def prepare(self, columns: Mapping[str, Column], rows: int) -> Iterator[bytes]:
        return self._encoder.payloads(columns, rows)

    def add(self, prepared: Any, key: object) -> None:
        for payload in prepared:
            self._file.add(payload, key)

    def commit(self) -> ShardInfo:
        return self._file.commit()

    def abort(self) -> None:
        self._file.abort()


class ParquetRows:
    """A Parquet file, with the members of `TFRecordRows`.

    Rows of several episodes share a row group of `ROW_GROUP_BYTES`. PNGs and JPEGs are not compressed again, so
    that a reader finds them in the file as they are.
    """

    def __init__(self, path: str, fields: Sequence[Field], meaning: Meaning):
        import pyarrow.parquet

        self._fields, self._shard = fields, ShardWriter(path)
        known = meaning.entry()
        self._schema = arrow_schema(fields).with_metadata({METADATA: json.dumps(known).encode()} if known else None)
        leaves = {field.path: leaf_paths(field.path, self._schema.field(field.path).type)[0] for field in fields}
        compression = {leaves[field.path]: "none" if field.holds_image_files else "snappy" for field in fields}
        self._sink = ShardSink(self._shard)
        self._writer = pyarrow.parquet.ParquetWriter(
            self._sink,
            self._schema,
            write_page_checksum=True,
            use_dictionary=[leaves[field.path] for field in fields if field.dtype == "string"] or False,
            compression=compression,
        )
        self._held: list[tuple[pa.Table, object]] = []
        self._bytes = 0

    def prepare(self, columns: Mapping[str, Column], rows: int) -> pa.Table:
        import pyarrow as pa

        arrays = [to_arrow(field, columns[field.path], rows) for field in self._fields]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def add(self, prepared: Any, key: object) -> None:
        self._held.append((prepared, key))
        self._bytes += prepared.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._held:
            table = pa.concat_tables([table for table, _ in self._held])
            each = max(1, table.num_rows * ROW_GROUP_BYTES // max(1, table.nbytes))
            self._writer.write_table(table, row_group_size=each)
        for table, key in self._held:
            self._shard.write((), table.num_rows, key)
        self._held, self._bytes = [], 0

    def commit(self) -> ShardInfo:
        self._flush()
        self._writer.close()
        self._sink.flush()
        return self._shard.commit()

    def abort(self) -> None:
        self._shard.abort()
        self._sink.discards = True  # the writer writes a footer when closed
        self._writer.close()


RowFile: TypeAlias = TFRecordRows | ArrayRecordRows | ParquetRows


def open_row_file(kind: ColumnsFormat, path: str, fields: Sequence[Field], meaning: Meaning) -> RowFile:
    """Opens a writer of a file with these columns; only Parquet holds the meaning."""
    if kind == "parquet":
        return ParquetRows(path, fields, meaning)
    return TFRecordRows(path, fields) if kind == "tfrecord" else ArrayRecordRows(path, fields)


class _Column(TypedDict):
    path: str
    dtype: Literal[tuple(DTYPES)]  # type: ignore[valid-type]
    shape: list[Count | None]
    encoding: Literal["none", "bytes", "zlib", "text", "png", "jpeg"]
    names: NotRequired[list[str]]


class _Content(TypedDict):
    format: ColumnsFormat
    modules: dict[FileName, list[_Column]]


@dataclasses.dataclass(frozen=True)
class ColumnsManifest:
    """The columns of an output.

    Attributes:
      format: the file format.
      modules: the columns of each module.
      meaning: what is known of the dataset.
    """

    format: str
    modules: Mapping[str, tuple[Field, ...]]
    meaning: Meaning = dataclasses.field(default_factory=Meaning)

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], path: str) -> ColumnsManifest:
        """Reads the columns of the output at `path`.

        Raises:
          UsageError: the manifest is not one that rlds-beam writes.
        """
        convert(manifest, _Content, storage.join(path, MANIFEST))
        modules = {
            module: tuple(
                Field(f["path"], f["dtype"], tuple(f["shape"]), f["encoding"]).with_meaning(f) for f in fields
            )
            for module, fields in manifest["modules"].items()
        }
        meaning = Meaning.from_json(manifest.get(KEY, {}), storage.join(path, MANIFEST))
        return cls(manifest["format"], modules, meaning)

    def choose(self, module: str | None, path: str) -> str:
        """The module with this name; by default the only one.

        Raises:
          UsageError: there is no such module, or none is named and there are several.
        """
        known = ", ".join(self.modules)
        if module is None and len(self.modules) != 1:
            raise UsageError(f"{path} holds the columns of {known}: choose one with module=...")
        if module is not None and module not in self.modules:
            hint = did_you_mean(module, self.modules, otherwise=f"it has {known}")
            raise UsageError(f"{path} has no module {module}{hint}")
        return next(iter(self.modules)) if module is None else module
