"""The table of a dataset's episodes (`signals.parquet`, or what a scan has found so far): sorting and filtering.

All values stay in Arrow columns, which may be memory-mapped: a query touches only the columns that it needs, and no
episode becomes a Python object unless it is shown.
"""

from __future__ import annotations

import functools
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.signals.conditions import Condition, check_known, mask
from rlds_beam.encoding.parquet_reading import UNREADABLE, open_parquet
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean, shortened
from rlds_beam.viewing.browser.index import EpisodeIndex
from rlds_beam.viewing.browser.values import scalar

if TYPE_CHECKING:
    import pyarrow as pa

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

PLACE = ("split", "shard", "position", "part")
"""The columns that make a key."""
LISTED = ("steps", "return", "instruction", "rule", "detail")
METADATA = "metadata/"
_HELD = 4
"""Answers held, to page through them."""
_MOST_TEXT = 300


class Query(NamedTuple):
    """What the list shows.

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


class EpisodeRows:
    """Rows of episodes. Thread-safe.

    Args:
      table: a row per episode, in any order.
      numbers: the number of each row's episode in the dataset's order; -1 for episodes that are not shown.
    """

    def __init__(self, table: pa.Table, numbers: Numbers):
        self._table, self.numbers = table, numbers
        shown = np.flatnonzero(numbers >= 0)
        self._rows = shown[np.argsort(numbers[shown], kind="stable")]
        self._in_order = numbers[self._rows]
        self._texts: dict[str, tuple[Any, Any]] = {}
        self._answers: OrderedDict[Query, Numbers] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def names(self) -> list[str]:
        """The columns."""
        names: list[str] = self._table.column_names
        return names

    def is_text(self, name: str) -> bool:
        """Whether a column holds text."""
        import pyarrow as pa

        kind = self._table.schema.field(name).type
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))

    @functools.cached_property
    def rules(self) -> dict[str, int]:
        """The number of rejected episodes by rule."""
        with self._lock:
            rules, codes = self._text("rule")
        counts = np.bincount(codes[self._rows][codes[self._rows] >= 0], minlength=len(rules)).tolist()
        return {rule: count for rule, count in zip(rules.to_pylist(), counts, strict=True) if count}

    def rows_of(self, start: int, stop: int) -> Numbers:
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
            check_known(choice, self.names)
            rows = rows[mask(self._table, choice)[rows]]
        if query.split:
            rows = rows[self._equal("split", query.split)[rows]]
        if query.rule in ("accepted", "rejected"):
            rows = rows[((self._text("rule")[1] >= 0) == (query.rule == "rejected"))[rows]]
        elif query.rule:
            rows = rows[self._equal("rule", query.rule)[rows]]
        for word in query.text.split():
            rows = rows[self._contain("instruction", word)[rows]]
        return self._sorted(rows, query) if query.sort else rows

    def _sorted(self, rows: Numbers, query: Query) -> Numbers:
        if query.sort not in self.names:
            raise UsageError(f"there is no column {query.sort!r:.80}{did_you_mean(query.sort, self.names)}")
        if self.is_text(query.sort):
            texts, codes = self._text(query.sort)
            ranks = np.append(_ranks(texts), -1)[codes[rows]]
            missing = ranks < 0
        else:
            ranks = _values(self._table[query.sort])[rows]
            missing = np.isnan(ranks)
        there, keys = rows[~missing], ranks[~missing]
        order = np.argsort(-keys if query.descending else keys, kind="stable")
        return np.concatenate([there[order], rows[missing]])

    def _text(self, name: str) -> tuple[Any, Any]:
        """The different texts of a column, and the number of each row's text; -1 if it has none."""
        if name not in self._texts:
            if len(self._texts) == _HELD:
                self._texts.pop(next(iter(self._texts)))
            array = self._table[name].dictionary_encode().unify_dictionaries().combine_chunks()
            codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            self._texts[name] = array.dictionary, codes
        return self._texts[name]

    def _equal(self, name: str, text: str) -> Mask:
        import pyarrow.compute as pc

        texts, codes = self._text(name)
        return _spread(pc.equal(texts, text), codes)

    def _contain(self, name: str, word: str) -> Mask:
        import pyarrow.compute as pc

        texts, codes = self._text(name)
        return _spread(pc.match_substring(texts, word, ignore_case=True), codes)

    def show(self, rows: Sequence[int], dataset: str, signals: Iterable[str]) -> list[dict[str, Any]]:
        """Rows as JSON (`/api/episodes`), without their numbers."""
        names = [name for name in self.names if name in (*PLACE, *LISTED) or name.startswith(METADATA)]
        shown = [name for name in signals if name in self.names]
        some = self._table.select([*names, *shown]).take(np.asarray(rows, np.int64)).to_pylist()
        return [
            {
                "key": str(EpisodeKey(dataset, row["split"], *(row[name] for name in PLACE[1:]))),
                "split": row["split"],
                **{name: scalar(row[name], _MOST_TEXT) if row.get(name) is not None else None for name in LISTED},
                "metadata": {name.removeprefix(METADATA): scalar(value, _MOST_TEXT) if value is not None else None
                             for name, value in row.items() if name.startswith(METADATA)},
                "signals": {name: None if row[name] is None else scalar(row[name]) for name in shown},
            }
            for row in some
        ]  # fmt: skip

    def row(self, number: int) -> Mapping[str, Any] | None:
        """All columns of one episode."""
        rows = self.rows_of(number, number + 1)
        return None if not len(rows) else self._table.slice(int(rows[0]), 1).to_pylist()[0]


def _values(column: Any) -> Any:
    """A column of numbers as float64 [N]; missing ones are NaN."""
    import pyarrow as pa

    return column.cast(pa.float64(), safe=False).to_numpy()


def _ranks(texts: Any) -> Any:
    """The place of each text in alphabetical order."""
    import pyarrow.compute as pc

    ranks = np.empty(len(texts), np.int64)
    ranks[pc.sort_indices(texts).to_numpy()] = np.arange(len(texts))
    return ranks


def _spread(passed: Any, codes: Any) -> Mask:
    """Whether each row's text passed a test of the different texts."""
    spread: Mask = np.append(passed.to_numpy(zero_copy_only=False), False)[codes]
    return spread


def numbers_of(table: pa.Table, index: EpisodeIndex) -> Numbers:
    """The number of each row's episode in the dataset's order; -1 if the index does not show it.

    The table has all records of a shard, or its first ones.
    """
    splits = table["split"].dictionary_encode().unify_dictionaries().combine_chunks()
    names, codes = splits.dictionary.to_pylist(), splits.indices.to_numpy(zero_copy_only=False)
    shards, positions = table["shard"].to_numpy(), table["position"].to_numpy()
    pairs, of_row = np.unique(np.stack([codes, shards]), axis=1, return_inverse=True)
    places = np.array([index.place(names[code], shard) for code, shard in pairs.T.tolist()], np.int64)[of_row.ravel()]
    order = np.lexsort((positions, places))
    sorted_places = places[order]
    begins = np.flatnonzero(np.diff(sorted_places, prepend=-2))
    ranks = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    numbers = np.full(len(order), -1, np.int64)
    numbers[order] = index.numbers(sorted_places, ranks)
    return numbers


def mapped(path: str) -> pa.Table:
    """The table of a Parquet file, memory-mapped from a temporary file, which is already deleted.

    Raises:
      UsageError: it is damaged, or not a table of episodes.
    """
    import pyarrow as pa

    try:
        with storage.open_read(path) as file, tempfile.NamedTemporaryFile(prefix="rlds_beam_", suffix=".arrow") as kept:
            content = open_parquet(file, storage.size(path))
            names = content.schema_arrow.names
            if not {"key", *PLACE, "steps"} <= set(names) or len(set(names)) < len(names):
                raise UsageError(f"{path} is not a table of rlds-beam check: it lacks {', '.join(('key', *PLACE))}")
            with pa.ipc.new_file(kept, content.schema_arrow) as writer:
                for batch in content.iter_batches(batch_size=1 << 16):
                    writer.write_batch(batch)
            kept.flush()
            return pa.ipc.open_file(pa.memory_map(kept.name)).read_all()
    except UNREADABLE as error:
        raise UsageError(f"{path} is damaged: {shortened(error)}") from error
