"""The table of signals: one row for each record read; and the signals of one episode alone."""

from __future__ import annotations

import dataclasses
import itertools
import mmap
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.signals import texts
from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.checking.signals.context import Context
from rlds_beam.checking.signals.dataset import DatasetFinding, find_findings
from rlds_beam.checking.signals.measurement import Block
from rlds_beam.checking.signals.repeats import Repeats, find_repeats
from rlds_beam.checking.signals.rows import RowPart, SignalRows
from rlds_beam.checking.signals.scores import EpisodeScores
from rlds_beam.episodes.episode import Episode
from rlds_beam.typing import Array

if TYPE_CHECKING:
    import pyarrow as pa

    from rlds_beam.checking.verdicts import Verdict


PLACES = ("@step", "@stop")
"""The ends of the columns that say where the worst is, [step, stop)."""

_MAX_PARTS = 32
_MAX_ROWS, _MAX_BYTES = 4096, 16 << 20
"""Rows and their bytes that are kept in memory if there is a directory for files."""
_MAX_TABLE = 1 << 15
"""Rows of a table that is kept in memory even if there is a directory for files."""
_CHUNK = 1 << 16
"""Rows of a chunk of a column: as many as of a row group of the file of `check`."""


class EpisodeTable:
    """Measures episodes, an accumulator: `add` records one by one and `merge` in any order, with the same result.

        table = EpisodeTable(Context.of(source.schema, fps=source.fps, decoded=4))
        for episode in reader.read("train", segment):
            table.add(episode, validate_episode(episode, options))
        table.finish()                     # a pyarrow.Table, by key

    Columns: `key`, `split`, `shard`, `position`, `part`, `steps`, `return`, `instruction`, `metadata/<name>`, `rule`
    and `detail` (null if accepted), and for each signal `<signal>` (the worst of its fields), `<signal>/<field>`, and
    `<signal>@field`, `<signal>@step`, `<signal>@stop` (where the worst is; null if unknown). For signals that count
    episodes, `@field` is the key of the first of them. Picklable.

    Args:
      context: the fields to measure.
      directory: a directory for files with the rows, which must outlive the table. Then only the files' names are
        pickled, and `finish` loads one column at a time. None keeps all rows in memory.
    """

    def __init__(self, context: Context, directory: str | None = None):
        self.context, self.directory = context, directory
        self._block = Block(context)
        self._parts: list[RowPart] = []
        self._files: list[str] = []
        self._joined: SignalRows | None = None
        self._repeats: Repeats | None = None

    def add(self, episode: Episode, verdict: Verdict | None = None) -> EpisodeTable:
        """Measures one record as read, in place; returns itself, as a Beam CombineFn requires.

        Args:
          verdict: the result of its check: what rule rejected it.
        """
        self._block.add(episode, verdict)
        if self._block.full:
            self._flush()
        return self

    def merge(self, *others: EpisodeTable) -> EpisodeTable:
        """The rows of all tables, as a new one; order and grouping do not matter."""
        merged = EpisodeTable(self.context, self.directory)
        for table in (self, *others):
            table._flush()
            merged._parts += table._parts
            merged._files += table._files
        merged._compact()
        return merged

    def _flush(self) -> None:
        if len(self._block):
            self._parts.append(self._block.finish())
            self._joined = None
            self._compact()

    def _compact(self) -> None:
        if self.directory is not None and (
            sum(map(len, self._parts)) >= _MAX_ROWS or sum(part.bytes for part in self._parts) >= _MAX_BYTES
        ):
            self._spill()
        if len(self._parts) > _MAX_PARTS:
            self._parts = [RowPart.join(self._parts)]

    def _spill(self) -> None:
        """Moves the rows from memory to a file."""
        if self._parts and self.directory is not None:
            self._files.append(storage.join(self.directory, f"{uuid.uuid4().hex}.rows"))
            RowPart.join(self._parts).write(self._files[-1])
            self._parts = []

    def __getstate__(self) -> dict[str, Any]:
        self._flush()
        self._spill()
        return {**self.__dict__, "_joined": None}

    def finish(self) -> pa.Table:
        """The table, sorted by key, with the signals that compare episodes."""
        return self.store().table

    def store(self, *, repeats: bool = True, whole: bool = True) -> StoredTable:
        """The table of `finish`; if there is a directory for files, mapped from one without a name.

        Args:
          repeats: whether to compare the motion of all episodes, which needs about 1 KB each; otherwise
            `near_duplicate` and `split_leakage` are not measured.
          whole: whether to make all columns, instead of those that `summarize` and `list_beyond` need.
        """
        rows = self._rows()
        columns = ColumnWriter(self.directory if len(rows) > _MAX_TABLE else None)
        for name, column in _columns(rows, self.context, self._find_repeats(rows) if repeats else None):
            if whole or name in ("key", "steps", "instruction") or name.partition("@")[0] in SIGNALS:
                columns.add(texts.decode_text(name), column)  # names may be no valid UTF-8
        return columns.finish()

    def dataset_findings(self) -> list[DatasetFinding]:
        """Findings about the dataset as a whole: constant metadata, normalized values, mixed scales, ..."""
        rows = self._rows()
        return find_findings(rows, self._find_repeats(rows), self.context.names)

    def _find_repeats(self, rows: SignalRows) -> Repeats:
        if self._repeats is None or len(self._repeats.motion) != len(rows):
            self._repeats = find_repeats(rows, self.context.states)
        return self._repeats

    def _rows(self) -> SignalRows:
        self._flush()
        if self._joined is None:
            self._joined = SignalRows([*self._parts, *map(RowPart.read, self._files)] or [Block(self.context).finish()])
        return self._joined


class StoredTable(NamedTuple):
    """A table, and the file that it is mapped from; None if it is in memory."""

    table: pa.Table
    pages: mmap.mmap | None = None

    def forget(self) -> None:
        """Drops the pages that were read from this process; they are read again when they are needed."""
        if self.pages is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.pages.madvise(mmap.MADV_DONTNEED)


class ColumnWriter:
    """Makes a table column by column.

    Args:
      directory: the directory of a temporary file for the columns, which has no name; None keeps them in memory.
    """

    def __init__(self, directory: str | None):
        self._columns: dict[str, Any] = {}
        self._file = None if directory is None else tempfile.TemporaryFile(dir=directory)  # noqa: SIM115

    def add(self, name: str, chunks: Iterator[Any]) -> None:
        """Adds a column: at least one `pyarrow.Array`.

        Raises:
          OSError: the disk is full.
        """
        import pyarrow as pa

        if self._file is None:
            self._columns[name] = pa.chunked_array([*chunks])
            return
        start, first = self._file.tell(), next(chunks)
        schema = pa.schema([("column", first.type)])
        with pa.ipc.new_stream(self._file, schema) as stream:
            for chunk in itertools.chain([first], chunks):
                stream.write_batch(pa.record_batch([chunk], schema))
        self._columns[name] = start, self._file.tell() - start
        pa.default_memory_pool().release_unused()

    def finish(self) -> StoredTable:
        """The table."""
        import pyarrow as pa

        if self._file is None:
            return StoredTable(pa.table(self._columns))
        with self._file:
            self._file.flush()
            pages = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        whole, stored = pa.py_buffer(pages), StoredTable(pa.table({}), pages)
        for name, place in self._columns.items():
            self._columns[name] = pa.ipc.open_stream(whole.slice(*place)).read_all()[0]
            stored.forget()  # the pages that were read to find the column
        return stored._replace(table=pa.table(self._columns))


def make_row(episode: Episode, context: Context) -> dict[str, Any]:
    """The row of one episode, without the signals that compare it with others (None)."""
    block = Block(context)
    block.add(episode)
    rows = block.finish()
    found: dict[str, Any] = {name: values[0] for name, values in rows.values.items() if not name.startswith("#")}
    found |= {"key": str(episode.key), "split": episode.key.split, "shard": episode.key.shard}
    found |= {"position": episode.key.position, "part": episode.key.part, "steps": int(rows.numbers["steps"][0])}
    found["return"] = _plain(rows.numbers.get("return"))
    for signal in SIGNALS if context.only is None else context.only:
        for name, values in signal_columns(signal, dict(rows.numbers), 1):
            value = values[0] if values.dtype == object else _plain(values)
            found[name] = int(value) if value is not None and name.endswith(PLACES) else value
    return found


def _plain(values: Array | None) -> float | None:
    return None if values is None or np.isnan(values[0]) else float(values[0])


def _columns(rows: SignalRows, context: Context, repeats: Repeats | None) -> Iterator[tuple[str, Iterator[Any]]]:
    """The columns of the table one by one, in chunks."""
    import pyarrow as pa

    (groups, group), order, size = rows.groups, rows.order, len(rows)

    def chunks(make: Callable[[Array], Any]) -> Iterator[Any]:
        return (make(order[start : start + _CHUNK]) for start in range(0, max(size, 1), _CHUNK))

    in_order = bool((order[1:] > order[:-1]).all())

    def values(name: str, text: bool = False) -> Iterator[Any]:
        column = _make_values(rows, name, text) if name in rows.values else pa.nulls(size, pa.string())
        if in_order:  # without `pyarrow.compute`, whose import takes as long as a small dataset
            yield from chunks(lambda place: column.slice(place[0], len(place)) if size else column)
        else:
            yield from chunks(lambda place: column.take(pa.array(place)))

    def numbers(values: Array, name: str = "") -> Iterator[Any]:
        return chunks(lambda place: _numbers(values[place], name))

    def integers(values: Array) -> Iterator[Any]:
        return chunks(lambda place: pa.array(values[place]))

    def keys(others: Array) -> Iterator[Any]:
        """The keys of these rows; null for NaN."""
        known = ~np.isnan(others)[order]
        found = rows.keys(others[order][known].astype(np.int32))
        for start in range(0, max(size, 1), _CHUNK):
            some = known[start : start + _CHUNK].tolist()
            yield pa.array([str(next(found)) if known else None for known in some], pa.string())

    missing = np.full(size, np.nan)
    yield "key", keys(np.arange(size))
    splits = np.array([split for _, split in groups], object)
    yield "split", chunks(lambda place: pa.array(splits[group[place]], pa.string()))
    for name in ("shard", "position", "part"):
        yield name, integers(rows.numbers[f"#key/{name}"])
    yield "steps", integers(rows.numbers["steps"].astype(np.int64))
    yield "return", numbers(rows.numbers.get("return", missing))
    for name in ("instruction", "rule", "detail"):
        yield name, values(name, text=True)
    for name in rows.values:
        if name.startswith("metadata/"):
            yield name, values(name)
    compared = EpisodeScores(rows, context, repeats)
    for signal in SIGNALS:
        measured = {name: rows.numbers[name] for name in rows.numbers if name.startswith(signal)}
        measured |= compared.score(signal)
        others = measured.pop(f"{signal}@other", None)
        for name, column in signal_columns(signal, measured, size):
            yield name, numbers(column, name) if others is None or name != f"{signal}@field" else keys(others)


def signal_columns(signal: str, columns: dict[str, Array], size: int) -> Iterator[tuple[str, Array]]:
    """The columns of one signal: the worst of its fields, where it is, and each field; NaN if it was not measured.

    Args:
      columns: the measurements; they are removed as soon as they are not needed.
    """
    fields = sorted(name for name in columns if name.startswith(f"{signal}/") and not name.endswith(PLACES))
    worst = np.zeros(size, np.int16)
    value = columns.pop(signal, None) if not fields else columns[fields[0]].copy()
    value = np.full(size, np.nan) if value is None else value
    for number, name in enumerate(fields[1:], 1):
        better = np.isnan(value) & ~np.isnan(columns[name])
        better |= columns[name] > value
        worst[better], value[better] = number, columns[name][better]
    yield signal, value
    names = np.array([name.partition("/")[2] for name in fields] + [None], object)
    yield f"{signal}@field", names[np.where(np.isnan(value), len(fields), worst)]
    for place in PLACES:
        places = np.full(size, np.nan)
        for number, name in enumerate(fields or [signal]):
            if (known := columns.pop(f"{name}{place}", None)) is not None:
                np.copyto(places, known, where=worst == number)
        yield f"{signal}{place}", places
    for name in fields:
        yield name, columns.pop(name)


def _numbers(values: Array, name: str = "") -> Any:
    """Numbers as a column: steps as integers, NaN as null; or texts."""
    import pyarrow as pa

    if values.dtype == object:
        return pa.array(values, pa.string())
    missing = np.isnan(values)
    if name.endswith(PLACES):
        return pa.array(np.where(missing, 0, values).astype(np.int64), pa.int64(), mask=missing)
    return pa.array(values.astype(np.float64), pa.float64(), mask=missing)


def _make_values(rows: SignalRows, name: str, text: bool = False) -> Any:
    """A column of texts, or of metadata: flags, integers, numbers, or texts; mixed kinds become texts."""
    import pyarrow as pa

    kinds: set[type] = {str} if text else {type(value) for values in rows.each(name) for value in values}
    kinds -= {type(None)}
    known = {bool: pa.bool_(), int: pa.int64(), str: pa.string()}
    kind = known.get(next(iter(kinds), str)) if len(kinds) <= 1 else None
    if kind is None and kinds <= {int, float}:
        kind = pa.float64()
    try:
        if kind is not None:
            return pa.chunked_array([pa.array(values, kind) for values in rows.each(name)]).combine_chunks()
    except (OverflowError, pa.ArrowException):  # an integer above 2^63
        pass
    texts = ([None if value is None else str(value) for value in values] for values in rows.each(name))
    return pa.chunked_array([pa.array(values, pa.string()) for values in texts]).combine_chunks()


@dataclasses.dataclass(frozen=True)
class Measures:
    """The signals of one episode, without those that compare it with others.

    Attributes:
      row: its row, with the columns of `EpisodeTable.finish`.
    """

    row: Mapping[str, Any]


def measure(episode: Episode, context: Context) -> Measures:
    """Measures one episode. For many, `EpisodeTable` is several times as fast."""
    return Measures(make_row(episode, context))
