"""The table of a dataset's episodes, which `rlds-beam check` wrote or a job in the background measures.

Only the columns that a query needs are read, and only the row groups of the episodes that are shown.
"""

from __future__ import annotations

import functools
import io
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.checking.signals.conditions import Condition, check_known
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.datasets.base import Cache
from rlds_beam.encoding.parquet_files import UNREADABLE, verified_parquet
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.processing.job import Stage, Totals, process_here, run_stages
from rlds_beam.processing.report import Report
from rlds_beam.text import did_you_mean, shorten
from rlds_beam.viewing.browser.index import EpisodeIndex
from rlds_beam.viewing.facts import json_value, scalar
from rlds_beam.viewing.report.dataset import Gathered
from rlds_beam.viewing.report.report_file import Input

if TYPE_CHECKING:
    import pyarrow as pa

Numbers = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

PLACE = ("split", "shard", "position", "part")
"""The columns that make a key."""
LISTED = ("steps", "return", "instruction", "rule", "detail")
METADATA = "metadata/"
_HELD = 4
"""Answers held, to page through them."""
_MAX_TEXT_CHARACTERS = 300
_ALL = 1 << 62
_HELD_BYTES = 256 << 20  # of columns
_MAX_GROUPS = 2  # row groups of which only the rows shown are read; beyond, whole columns, which are held


class Query(NamedTuple):
    """The filter, order, and range of the list.

    Attributes:
      sort: a column; empty for the dataset's order.
      descending: whether the largest values come first; missing ones are always last.
      filters: all must hold; each is a choice of conditions, of which one must.
      text: words that the instruction or key must contain.
      split, rule: a split; a rule, `accepted`, or `rejected`; empty for all.
    """

    sort: str = ""
    descending: bool = False
    filters: tuple[tuple[Condition, ...], ...] = ()
    text: str = ""
    split: str = ""
    rule: str = ""


class TableFile:
    """The Parquet file that `rlds-beam check` writes, a row per record. Reads what is asked for; thread-safe.

    Args:
      file: the open file.
      path: its name in errors.

    Raises:
      UsageError: it is damaged, or not such a table.
    """

    def __init__(self, file: BinaryIO, path: str):
        self._path, self._lock, self._columns = path, threading.Lock(), Cache[Any](_HELD_BYTES)
        try:
            self._file = verified_parquet(file)
        except UNREADABLE as error:
            raise self._damaged(error) from error
        self.schema: pa.Schema = self._file.schema_arrow
        self.names: list[str] = self.schema.names
        groups = [self._file.metadata.row_group(i) for i in range(self._file.num_row_groups)]
        self._ends = np.cumsum([group.num_rows for group in groups], dtype=np.int64)
        if not {*PLACE, "key", "steps"} <= {*self.names} or len({*self.names}) < len(self.names):
            raise UsageError(f"{path} is not a table of rlds-beam check: it lacks {', '.join(('key', *PLACE))}")

    @classmethod
    def open(cls, path: str) -> TableFile:
        return cls(storage.open_read(path), path)

    @classmethod
    def from_table(cls, table: pa.Table) -> TableFile:
        """A table in memory."""
        import pyarrow.parquet as pq

        file = io.BytesIO()
        pq.write_table(table, file, row_group_size=1 << 16)
        return cls(file, "the table")

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    @functools.cached_property
    def known(self) -> frozenset[str]:
        """The columns that have a value, by the statistics of the file, or by their values if it has none."""
        metadata, known = self._file.metadata, set()
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        leaves = [metadata.schema.column(i).path.partition(".list.")[0] for i in range(metadata.num_columns)]
        for i, name in enumerate(leaves):
            counts = [(group.num_rows, group.column(i).statistics) for group in groups]
            if any(stats is None or not stats.has_null_count for _, stats in counts):
                column = self.column(name)
                missing = column.null_count == len(column)
            else:
                missing = all(stats.null_count == number for number, stats in counts)
            if not missing:
                known.add(name)
        return frozenset(known)

    def is_text(self, name: str) -> bool:
        import pyarrow as pa

        kind = self.schema.field(name).type
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))

    def column(self, name: str) -> Any:
        """A column as a ChunkedArray."""
        if (found := self._columns.get(name)) is None:
            found = self._read(None, [name])[name]
            self._columns.put(name, found, found.nbytes)
        return found

    def columns(self, names: Sequence[str]) -> pa.Table:
        import pyarrow as pa

        return pa.table({name: self.column(name) for name in names})

    def rows(self, rows: Numbers, names: Sequence[str]) -> list[dict[str, Any]]:
        """Some of the columns of some rows, in their order."""
        wanted = np.asarray(rows, np.int64)
        groups, own = np.unique(np.searchsorted(self._ends, wanted, side="right"), return_inverse=True)
        if len(groups) > _MAX_GROUPS:
            return self.columns(names).take(wanted).to_pylist()  # type: ignore[no-any-return]
        if not len(groups):
            return []
        sizes = np.diff(self._ends, prepend=0)
        first = (self._ends - sizes)[groups]  # the first row of each group, in the file and in what is read
        read = np.cumsum(sizes[groups]) - sizes[groups]
        found: list[dict[str, Any]] = self._read(groups.tolist(), names).take(wanted - (first - read)[own]).to_pylist()
        return found

    def _read(self, groups: list[int] | None, names: Sequence[str]) -> pa.Table:
        try:
            with self._lock:
                if groups is None:
                    return self._file.read(columns=[*names], use_threads=False)
                return self._file.read_row_groups(groups, columns=[*names], use_threads=False)
        except UNREADABLE as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> UsageError:
        return UsageError(f"{self._path} is not a table of rlds-beam check: {shorten(error)}")

    def dataset(self) -> str | None:
        """The dataset of the first key; None without rows."""
        return self.rows(np.arange(min(1, len(self))), ["key"])[0]["key"].partition(":")[0] if len(self) else None


class TableRows:
    """Rows of episodes. Thread-safe.

    Args:
      table: a row per record.
      index: the episodes of the dataset.

    Attributes:
      numbers: the number of each row's episode in the dataset's order; -1 for episodes that are not shown.
    """

    def __init__(self, table: TableFile, index: EpisodeIndex):
        self._table = table
        self.numbers = numbers = find_numbers(table, index)
        shown = np.flatnonzero(numbers >= 0)
        self._rows: Numbers = shown[np.argsort(numbers[shown], kind="stable")]
        self._in_order = numbers[self._rows]
        self._texts: dict[str, tuple[Any, Any]] = {}
        self._answers: OrderedDict[Query, Numbers] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def names(self) -> list[str]:
        """The columns."""
        return self._table.names

    def is_text(self, name: str) -> bool:
        return self._table.is_text(name)

    def is_known(self, name: str) -> bool:
        """Whether any episode has a value in a column."""
        return name in self._table.known

    @functools.cached_property
    def rules(self) -> dict[str, int]:
        """The number of rejected episodes by rule."""
        if not self.is_known("rule"):
            return {}
        with self._lock:
            rules, codes = self._encode_texts("rule")
        counts = np.bincount(codes[self._rows][codes[self._rows] >= 0], minlength=len(rules)).tolist()
        return {rule: count for rule, count in zip(rules.to_pylist(), counts, strict=True) if count}

    def rows_between(self, start: int, stop: int) -> Numbers:
        """The rows of the episodes with these numbers; empty if one is missing."""
        low, high = np.searchsorted(self._in_order, [start, stop])
        rows: Numbers = self._rows[low:high]
        return rows if len(rows) == stop - start else np.empty(0, np.int64)

    def accepted(self) -> Numbers:
        """The numbers of the accepted episodes, ascending."""
        numbers: Numbers = self.numbers[self.select(Query(rule="accepted"))]
        return numbers

    def select(self, query: Query) -> Numbers:
        """The rows that a query shows, in its order.

        Raises:
          UsageError: it names a column that the table does not have.
        """
        with self._lock:
            if query not in self._answers:
                self._answers[query] = self._select(query)
                if len(self._answers) > _HELD:
                    self._answers.popitem(last=False)
            self._answers.move_to_end(query)
            return self._answers[query]

    def _select(self, query: Query) -> Numbers:
        rows = self._rows
        for choice in query.filters:
            rows = rows[np.logical_or.reduce([self._holds(condition) for condition in choice])[rows]]
        if query.split:
            rows = rows[self._equal("split", query.split)[rows]]
        if query.rule in ("accepted", "rejected"):
            rejected = self._encode_texts("rule")[1] >= 0 if self.is_known("rule") else np.zeros(len(self._table), bool)
            rows = rows[(rejected == (query.rule == "rejected"))[rows]]
        elif query.rule:
            rows = rows[self._equal("rule", query.rule)[rows]]
        for word in query.text.split():
            rows = rows[self._equal("instruction", word, within=True)[rows]]
        return self._sort(rows, query) if query.sort else rows

    def _sort(self, rows: Numbers, query: Query) -> Numbers:
        import pyarrow as pa
        import pyarrow.compute as pc

        if query.sort not in self.names:
            raise UsageError(f"there is no column {query.sort!r:.80}{did_you_mean(query.sort, self.names)}")
        if self.is_text(query.sort):
            texts, codes = self._encode_texts(query.sort)
            ranks = np.full(len(texts) + 1, -1)  # the last is that of missing texts
            ranks[pc.sort_indices(texts).to_numpy()] = np.arange(len(texts))
            ranks = ranks[codes[rows]]
            missing = ranks < 0
        else:
            ranks = self._table.column(query.sort).cast(pa.float64(), safe=False).to_numpy()[rows]  # NaN if missing
            missing = np.isnan(ranks)
        there, keys = rows[~missing], ranks[~missing]
        order = np.argsort(-keys if query.descending else keys, kind="stable")
        return np.concatenate([there[order], rows[missing]])

    def _encode_texts(self, name: str) -> tuple[Any, Any]:
        """The different texts of a column, and the number of each row's text; -1 if it has none."""
        if name not in self._texts:
            if len(self._texts) == _HELD:
                self._texts.pop(next(iter(self._texts)))
            array = self._table.column(name).dictionary_encode().unify_dictionaries().combine_chunks()
            codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            self._texts[name] = array.dictionary, codes
        return self._texts[name]

    def _holds(self, condition: Condition) -> Mask:
        """Which rows meet a condition."""
        if condition.name not in self.names:
            check_known([condition], [*self.names, *SIGNALS])
            return np.zeros(len(self._table), bool)  # a signal that was not measured
        if self.is_text(condition.name):
            raise UsageError(f"{condition.name:.60} has texts: conditions compare numbers")
        return np.asarray(condition.find(self._table.columns([condition.name])), bool)

    def _equal(self, name: str, text: str, *, within: bool = False) -> Mask:
        """The rows whose text is this one, or has it `within`, in upper or lower case."""
        import pyarrow.compute as pc

        if not self.is_known(name):
            return np.zeros(len(self._table), bool)
        texts, codes = self._encode_texts(name)
        passed = pc.match_substring(texts, text, ignore_case=True) if within else pc.equal(texts, text)
        found: Mask = np.append(passed.to_numpy(zero_copy_only=False), False)[codes]
        return found

    def show(self, rows: Numbers, dataset: str, signals: Iterable[str]) -> list[dict[str, Any]]:
        """Rows as JSON (`/api/episodes`), without their numbers."""
        listed = (*PLACE, *LISTED, "outline")
        names = [name for name in self.names if name in listed or name.startswith(METADATA)]
        shown = [name for name in signals if self.is_known(name)]
        return [
            {
                "key": str(EpisodeKey(dataset, row["split"], *(row[name] for name in PLACE[1:]))),
                "split": row["split"],
                **{
                    name: scalar(row[name], _MAX_TEXT_CHARACTERS) if row.get(name) is not None else None
                    for name in LISTED
                },
                "metadata": {
                    name.removeprefix(METADATA): scalar(value, _MAX_TEXT_CHARACTERS) if value is not None else None
                    for name, value in row.items()
                    if name.startswith(METADATA)
                },
                "signals": {name: None if row[name] is None else scalar(row[name]) for name in shown},
                "outline": json_value(row.get("outline"))[0],
            }
            for row in self._table.rows(rows, [*names, *shown])
        ]

    def row(self, number: int) -> Mapping[str, Any] | None:
        """All columns of one episode."""
        rows = self.rows_between(number, number + 1)
        return self._table.rows(rows, self.names)[0] if len(rows) else None


def find_numbers(table: TableFile, index: EpisodeIndex) -> Numbers:
    """The number of each row's episode in the dataset's order; -1 if the index does not show it."""
    if len(table) == len(index) and _in_order(table, index):
        return np.arange(len(table))
    numbers = {str(key): number for number, key in enumerate(index.keys(0, _ALL))}
    return np.array([numbers.get(key, -1) for key in table.column("key").to_pylist()], np.int64)


def _in_order(table: TableFile, index: EpisodeIndex) -> bool:
    """Whether a table with as many rows as there are episodes has them in the dataset's order, by its keys."""
    if not len(table):
        return True
    starts = [index.split_range(split)[0] for split in index.split_sizes()]
    numbers = sorted({*starts, len(table) - 1} - {len(table)})
    keys = [row["key"] for n in numbers for row in table.rows(np.array([n]), ["key"])]
    return [str(key) for n in numbers for key in index.keys(n, n + 1)] == keys


SIGNALS_FILE = "signals.parquet"
_STOP_SECONDS = 10


class StoppedError(Exception):
    """The browser ends."""


class DatasetTable:
    """The table of a dataset, from a file or a job; without either, the list has only keys.

    Args:
      shown: the dataset, without its videos.
      index: its episodes.

    Attributes:
      settings: how its summary is shown.
      rows: the rows; None until they are known.
      gathered: what the job found; None until it ends.
    """

    def __init__(self, shown: Input, index: EpisodeIndex):
        self._shown, self._index, self.settings = shown, index, shown.settings
        self.rows: TableRows | None = None
        self.gathered: Gathered | None = None
        self._state, self._done, self._error = "none", 0, ""
        self._ended, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)

    def open(self, file: str) -> None:
        """Reads a file of `rlds-beam check`. Raises UsageError if it cannot be read, or is about another dataset."""
        table, source = TableFile.open(file), self._shown.source
        if (named := table.dataset()) not in (None, source.dataset):
            raise UsageError(f"{file} is about {shorten(named, 80)}, not about {source.dataset}")
        self.rows, self._state, self._done = TableRows(table, self._index), "table", len(table)

    def start(self) -> None:
        """Starts the job."""
        self._state = "running"
        self._thread.start()

    @property
    def complete(self) -> bool:
        """Whether the table has all episodes."""
        return self.rows is not None and len(self.rows) >= len(self._index)

    def progress(self) -> dict[str, Any]:
        """The `scan` of `/api/datasets`."""
        total = self._done if self._state == "table" else self._shown.source.episodes
        return {"state": self._state, "done": self._done, "total": total, "error": self._error or None}

    def stop(self) -> None:
        """Ends the job after the range that it reads."""
        self._ended.set()
        if self._state != "none" and self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            connecting = ConnectorRunner.for_reading(self._shown.source)
            with tempfile.TemporaryDirectory(prefix="rlds-beam-") as parts:
                totals = run_stages(self._shown.stages(connecting, "measured", parts), self._process)
            gathered: Gathered = totals["measured"]
            self.rows, self.gathered = TableRows(TableFile.from_table(gathered.table), self._index), gathered
            self._state = "done"
        except StoppedError:
            self._state = "stopped"
        except (OSError, RldsBeamError) as error:
            self._state, self._error = "failed", shorten(error)
        except Exception as error:
            self._state, self._error = "failed", shorten(f"{type(error).__name__}: {error}")

    def _process(self, stage: Stage, totals: Totals) -> Iterator[Any]:
        for partial in process_here(stage, totals):
            if self._ended.is_set():
                raise StoppedError
            report = getattr(partial, "report", Report())
            self._done += report.records
            yield partial


def signals_beside(path: str) -> str | None:
    """The `signals.parquet` in a dataset's directory; None if there is none."""
    if not storage.isdir(path):
        return None
    file = storage.join(path, SIGNALS_FILE)
    return file if storage.exists(file) else None
