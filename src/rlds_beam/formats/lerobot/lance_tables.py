"""The Lance tables of a LeRobot dataset whose info.json says `"storage_format": "lance"`.

They replace the Parquet files and the videos; `meta/` is as in other datasets of v3.0:

    frames.lance    a row for each frame, in order; `observation.state` is the column `observation_state`
    videos.lance    a row for each video file: its camera and numbers, its bytes, and the places of its key frames
    meta.lance      a row for each file of meta/, for those who read a remote dataset

A table is a directory of data files, and a manifest that lists them. Videos are blobs: files, or parts of files.

    frames.lance/_versions/18446744073709551614.manifest        version 1
    frames.lance/data/chunk-000-file-003.lance                  the rows of a range
    videos.lance/data/chunk-000-file-003.lance
    videos.lance/data/chunk-000-file-003/10000000000000000000000000000000.blob      the video of its first row
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlds_beam import naming, storage, watchdog
from rlds_beam.encoding.parquet_files import UNREADABLE, naming_damage
from rlds_beam.errors import UsageError, needs
from rlds_beam.formats.lerobot import layout
from rlds_beam.output.scratch import ScratchDirectory
from rlds_beam.text import shorten

if TYPE_CHECKING:
    import pyarrow as pa

    from rlds_beam.formats.lerobot.features import LerobotFeature

LANCE = "lance"
"""The `storage_format` in info.json."""

FRAMES, VIDEOS, META = "frames.lance", "videos.lance", "meta.lance"

PLACE = ("video_key", "chunk_index", "file_index")
"""The columns of `VIDEOS` that say which video a row is."""

BLOB = "video_bytes"

_INLINE, _PACKED, _DEDICATED = range(3)
"""Where the bytes of a blob are: in the data file, with others in a file, or in their own file."""

_MAX_EPISODE_BYTES = 1 << 30
"""Maximum bytes of an episode's rows in memory, unless the files of the table are larger."""

_MAX_VIDEOS = 1_000_000

_BATCH_ROWS, _BATCH_BYTES = 1024, 64 << 20
"""Rows to read at once, and the bytes that these may take."""


def import_lance() -> Any:
    """The package `lance`, with its modules. Raises MissingExtraError if it is not installed."""
    with needs("lance", "LeRobot datasets stored as Lance need pylance"):
        import lance
        import lance.blob
        import lance.file
        import lance.fragment
    return lance


def column_name(feature: str) -> str:
    """The column of a feature, as LeRobot names it."""
    return feature.replace(".", "_")


def shared_columns(features: Sequence[str]) -> tuple[str, str] | None:
    """Two features that would have the same column; None if there are none."""
    known: dict[str, str] = {}
    for name in features:
        if known.setdefault(column_name(name), name) != name:
            return known[column_name(name)], name
    return None


def data_file(table: str, number: int) -> str:
    """The name of the data file of the range with this number."""
    return f"{table}/data/{layout.LANCE_FILE.format(**layout.place(number))}"


def blob_file(data: str, blob: int) -> str:
    """The name of a data file's blob with this number: Lance spells the number in bits, the lowest first."""
    return f"{data.removesuffix('.lance')}/{f'{blob:032b}'[::-1]}.blob"


def manifest_file(table: str, version: int) -> str:
    """The name of a table's manifest: the latest version comes first."""
    return f"{table}/_versions/{2**64 - 1 - version:020d}.manifest"


@contextlib.contextmanager
def reading_lance(path: str) -> Iterator[None]:
    """Raises ValueError for what Lance raises in the block; it panics for some damaged files."""
    try:
        with watchdog.reading(path, "Lance"):
            yield
    except (ArithmeticError, RuntimeError, NotImplementedError, *UNREADABLE) as error:
        raise ValueError(shorten(str(error).split("\n")[0])) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(shorten(str(error).split("\n")[0])) from error


class _Fragment(NamedTuple):
    """Rows of a table, and the first of their data files, relative to the dataset; `whole` if no other says more."""

    file: str
    rows: int
    whole: bool


class LanceTable:
    """A table of a dataset on a local disk.

    Args:
      root: the directory of the dataset.
      name: the name of the table.

    Attributes:
      path: the directory of the table.
      version: its version.
      fragments: its rows, in order.

    Raises:
      UsageError: it is missing or damaged, or names files outside of it.
    """

    def __init__(self, root: str, name: str):
        self.path, lance = storage.join(root, name), import_lance()
        if storage.scheme(root) is not None:
            raise UsageError(f"{self.path}: Lance tables are read from local disks: copy the dataset to one first")
        if not storage.isdir(self.path):
            raise UsageError(f"{self.path} is missing, but {layout.INFO} says that the dataset is stored as Lance")
        try:
            with reading_lance(self.path):
                self._dataset = lance.dataset(self.path)
                self.version: int = self._dataset.version
                self._schema = self._dataset.schema
                parts = [(part.count_rows(), part.metadata.to_json()) for part in self._dataset.get_fragments()]
            self._size = 0
            self.fragments = [self._fragment(name, root, rows, entry) for rows, entry in parts]
        except ValueError as error:
            raise UsageError(f"{self.path} is damaged: {error}") from None

    def _fragment(self, name: str, root: str, rows: int, entry: dict[str, Any]) -> _Fragment:
        for about in entry["files"]:
            file = f"{name}/data/{about['path']}"
            if not naming.is_file_path(file) or storage.is_outside(root, file) or about.get("base_id") is not None:
                raise ValueError(f"its data file {shorten(repr(about['path']), 80)} is outside of it")
            path = storage.join(root, *file.split("/"))
            self._size += storage.size(path) if storage.exists(path) else 0
        files = [f"{name}/data/{about['path']}" for about in entry["files"]]
        return _Fragment(files[0], rows, len(files) == 1 and entry["deletion_file"] is None)

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        names: list[str] = self._schema.names
        return names

    def rows(self, columns: Sequence[str], first: int, length: int) -> pa.Table:
        """Reads consecutive rows. Raises ValueError if they are damaged, or much larger than the files."""
        import pyarrow as pa

        batches, total = [], 0
        width = sum(_least_bytes(self._schema.field(name).type) for name in columns)
        if width > _BATCH_BYTES:
            raise ValueError(f"a row takes {width:,} bytes")
        batch_rows = min(_BATCH_ROWS, _BATCH_BYTES // max(1, width))
        with reading_lance(self.path):
            scanner = self._dataset.scanner(list(columns), offset=first, limit=length, batch_size=batch_rows)
            for batch in scanner.to_batches():
                total += batch.nbytes
                if total > max(_MAX_EPISODE_BYTES, 4 * self._size):
                    raise ValueError(f"{length:,} rows take more than {total:,} bytes")
                batches.append(batch)
            return pa.Table.from_batches(batches, scanner.projected_schema)


def _least_bytes(kind: pa.DataType) -> int:
    """The least bytes of a value, without what lists of any length hold."""
    import pyarrow as pa

    if isinstance(kind, pa.FixedSizeListType):
        return int(kind.list_size) * _least_bytes(kind.value_type)
    return max(1, int(kind.bit_width) // 8) if pa.types.is_primitive(kind) else 1


class LanceTables:
    """The tables of a dataset.

    Args:
      root: the directory of the dataset.
      features: its features by name, from info.json.

    Attributes:
      frames: the table of frames.

    Raises:
      UsageError: a table is missing or damaged, or lacks a column.
    """

    def __init__(self, root: str, features: dict[str, Any]):
        stored = [name for name, feature in features.items() if feature["dtype"] not in ("video", "image")]
        if (shared := shared_columns(stored)) is not None:
            raise UsageError(f"{root}: the features {shared[0]} and {shared[1]} would be the same column of Lance")
        self._root, self._columns = root, {column_name(name): name for name in stored}
        self.frames = LanceTable(root, FRAMES)
        if missing := [name for name in self._columns if name not in self.frames.columns]:
            raise UsageError(f"{self.frames.path} has no column {missing[0]}, but {layout.INFO} has this feature")

    @functools.cached_property
    def _videos(self) -> dict[tuple[str, int, int], str]:
        table, videos = LanceTable(self._root, VIDEOS), dict[tuple[str, int, int], str]()
        first = 0
        try:
            for file, rows, whole in table.fragments:
                if not whole or first + rows > _MAX_VIDEOS:
                    raise ValueError("rows or columns were removed or added later, or it has too many rows")
                for row in table.rows([*PLACE, BLOB], first, rows).to_pylist():
                    videos[tuple(row[name] for name in PLACE)] = _blob_path(file, row[BLOB])
                first += rows
        except UNREADABLE as error:
            raise UsageError(f"{table.path} is damaged: {shorten(error)}") from None
        return videos

    @property
    def versions(self) -> list[int]:
        """The versions of the tables that are read."""
        return [self.frames.version]

    def video(self, key: str, place: dict[str, int]) -> str:
        """The path of a video, relative to the dataset: a file, or a part of one (`storage.part`).

        Raises:
          UsageError: the table is damaged, or does not have it.
        """
        wanted = (key, *place.values())
        if wanted not in self._videos:
            raise UsageError(f"{storage.join(self._root, VIDEOS)} has no video {wanted}, which meta/ names")
        return self._videos[wanted]  # type: ignore[index]

    def files(self, lengths: Sequence[int]) -> list[str]:
        """The data file with the first frame of each episode, for the lengths of all episodes."""
        files, ends, end = [], [], 0
        for file, rows, _ in self.frames.fragments:
            end += rows
            files.append(file)
            ends.append(end)
        if not files and lengths:
            raise UsageError(f"{self.frames.path} has no rows, but meta/ has episodes")
        named, number, first = [], 0, 0
        for length in lengths:
            while number + 1 < len(files) and first >= ends[number]:
                number += 1
            named.append(files[number])
            first += length
        return named

    def episode(self, number: int, first: int, length: int) -> pa.Table:
        """The frames of an episode, with the columns and names that a Parquet file would have.

        Raises:
          ValueError: they are damaged, or some are of another episode.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = [column for column in self._columns if column not in ("index",)]
        table = self.frames.rows(columns, first, length)
        numbers = table["episode_index"]
        if table.num_rows and not pc.all(pc.equal(numbers, pa.scalar(number, numbers.type))).as_py():
            raise ValueError(f"rows {first} to {first + length - 1} are not those of episode {number}")
        return table.drop_columns(["episode_index"]).rename_columns(
            [self._columns[name] for name in table.column_names if name != "episode_index"]
        )


def _blob_path(data: str, blob: Any) -> str:
    """The path of a blob, relative to the dataset. Raises ValueError if it is outside of the table."""
    kind, number, start, size = (blob[name] for name in ("kind", "blob_id", "position", "size"))
    if blob["blob_uri"] or kind not in (_INLINE, _PACKED, _DEDICATED):
        raise ValueError(f"a video is outside of it: {shorten(repr(blob['blob_uri']), 80)}")
    if kind == _DEDICATED:
        return blob_file(data, number)
    return storage.part(data if kind == _INLINE else blob_file(data, number), start, start + size)


def column_type(feature: LerobotFeature) -> pa.DataType:
    """The type of a feature's column: as in Parquet, but arrays are flat, and texts are in lists of any length."""
    import pyarrow as pa

    from rlds_beam.formats.lerobot.frames import arrow_type, is_single

    kind = arrow_type(feature)
    if feature.kind == "number" and len(feature.shape) > 1:
        return pa.list_(pa.from_numpy_dtype(feature.dtype), feature.size)
    return pa.list_(pa.string()) if feature.kind == "text" and not is_single(feature) else kind


def read_data_file(path: str, columns: Sequence[str]) -> pa.Table:
    """Reads the columns of features from one of our data files of `FRAMES`, also from a bucket.

    Raises:
      RldsBeamError: it is damaged.
    """
    import pyarrow as pa

    stored = {column_name(name): name for name in columns}
    with ScratchDirectory() as scratch, naming_damage(path):
        local = path
        if storage.scheme(path) is not None:
            local = storage.join(scratch, "frames.lance")
            with storage.open_read(path) as file, open(local, "wb") as copy:
                shutil.copyfileobj(file, copy)
        with reading_lance(path):
            table = import_lance().file.LanceFileReader(local, columns=list(stored)).read_all().to_table()
    return pa.Table.from_arrays([table[column] for column in stored], names=list(stored.values()))
