"""The table of signals: one row for each record read; and the signals of one episode alone."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.signals import texts
from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.checking.signals.context import Context
from rlds_beam.checking.signals.dataset import DatasetFinding, find_findings
from rlds_beam.checking.signals.measurement import Block
from rlds_beam.checking.signals.repeats import Repeats, find_repeats
from rlds_beam.checking.signals.rows import Columns, SignalRows
from rlds_beam.checking.signals.scores import score_episodes
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.typing import Array

if TYPE_CHECKING:
    import pyarrow as pa

    from rlds_beam.checking.verdicts import Verdict


PLACES = ("@step", "@stop")
"""The ends of the columns that say where the worst is, [step, stop)."""

_MAX_PARTS = 32
_MAX_ROWS = 4096
"""Rows that are kept in memory if there is a directory for files: about 6 MB."""


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
        self._parts: list[SignalRows] = []
        self._files: list[str] = []
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
            self._compact()

    def _compact(self) -> None:
        if self.directory is not None and sum(map(len, self._parts)) >= _MAX_ROWS:
            self._spill()
        if len(self._parts) > _MAX_PARTS:
            self._parts = [SignalRows.concatenate(self._parts).loaded()]

    def _spill(self) -> None:
        """Moves the rows from memory to a file."""
        if self._parts and self.directory is not None:
            self._files.append(storage.join(self.directory, f"{uuid.uuid4().hex}.rows"))
            SignalRows.concatenate(self._parts).write(self._files[-1])
            self._parts = []

    def __getstate__(self) -> dict[str, Any]:
        self._flush()
        self._spill()
        return self.__dict__

    def finish(self) -> pa.Table:
        """The table, sorted by key, with the signals that compare episodes."""
        rows = self._rows()
        scores = score_episodes(rows, self.context, self._find_repeats(rows))
        columns = Columns([*rows.numbers, *scores], lambda name: scores[name] if name in scores else rows.numbers[name])
        return _table(rows, columns)

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
        parts = [*self._parts, *map(SignalRows.read, self._files)]
        return SignalRows.concatenate(parts or [Block(self.context).finish()]).in_order()


def make_row(episode: Episode, context: Context) -> dict[str, Any]:
    """The row of one episode, without the signals that compare it with others (None)."""
    block = Block(context)
    block.add(episode)
    rows = block.finish()
    found: dict[str, Any] = {name: values[0] for name, values in rows.values.items()}
    found |= {"key": str(episode.key), "split": episode.key.split, "shard": episode.key.shard}
    found |= {"position": episode.key.position, "part": episode.key.part, "steps": int(rows.numbers["steps"][0])}
    found["return"] = _plain(rows.numbers.get("return"))
    for signal in SIGNALS if context.only is None else context.only:
        for name, values in signal_columns(signal, rows.numbers, 1).items():
            value = values[0] if isinstance(values, list) else _plain(values)
            found[name] = int(value) if value is not None and name.endswith(PLACES) else value
    return found


def _plain(values: Array | None) -> float | None:
    return None if values is None or np.isnan(values[0]) else float(values[0])


def _table(rows: SignalRows, columns: Mapping[str, Array]) -> pa.Table:
    import pyarrow as pa

    found: dict[str, Any] = {
        "key": pa.array((str(EpisodeKey(*key)) for key in rows.keys), pa.string(), size=len(rows)),
        "split": pa.array((key[1] for key in rows.keys), pa.string(), size=len(rows)),
        **{
            name: pa.array((key[place] for key in rows.keys), pa.int64(), size=len(rows))
            for place, name in enumerate(("shard", "position", "part"), 2)
        },
        "steps": pa.array(columns["steps"].astype(np.int64)),
        "return": _numbers(columns.get("return", np.full(len(rows), np.nan))),
        **{name: _texts(rows.values.get(name), len(rows)) for name in ("instruction", "rule", "detail")},
        **{name: _values(rows.values[name]) for name in rows.values if name.startswith("metadata/")},
    }
    for signal in SIGNALS:
        for name, values in signal_columns(signal, columns, len(rows)).items():
            found[name] = _texts(values, len(rows)) if isinstance(values, list) else _numbers(values, name)
        if (other := columns.get(f"{signal}@other")) is not None:
            names = [None if row != row else str(EpisodeKey(*rows.keys[int(row)])) for row in other.tolist()]
            found[f"{signal}@field"] = _texts(names, len(rows))
    return pa.table({texts.decode_text(name): column for name, column in found.items()})  # names may be no valid UTF-8


def signal_columns(signal: str, columns: Mapping[str, Array], size: int) -> dict[str, Array | list[str | None]]:
    """The columns of one signal: the worst of its fields, where it is, and each field; NaN if it was not measured."""
    missing = np.full(size, np.nan)
    fields = sorted(name for name in columns if name.startswith(f"{signal}/") and not name.endswith(PLACES))
    if not fields:
        known = {f"{signal}{place}": columns.get(f"{signal}{place}", missing) for place in PLACES}
        return {signal: columns.get(signal, missing), f"{signal}@field": [None] * size, **known}
    values = np.stack([columns[name] for name in fields])
    sign = -1.0 if SIGNALS[signal].below else 1.0
    worst = np.where(np.isnan(values), -np.inf, sign * values).argmax(axis=0)
    value = values[worst, np.arange(size)]
    names = [name.partition("/")[2] for name in fields]
    found: dict[str, Array | list[str | None]] = {
        signal: value,
        f"{signal}@field": [None if v != v else names[w] for v, w in zip(value.tolist(), worst.tolist(), strict=True)],
    }
    for place in PLACES:
        known_places = np.stack([columns.get(f"{name}{place}", missing) for name in fields])
        found[f"{signal}{place}"] = known_places[worst, np.arange(size)]
    return {**found, **{name: columns[name] for name in fields}}


def _numbers(values: Array, name: str = "") -> Any:
    """Numbers as a column: steps as integers, NaN as null."""
    import pyarrow as pa

    missing = np.isnan(values)
    if name.endswith(PLACES):
        return pa.array(np.where(missing, 0, values).astype(np.int64), pa.int64(), mask=missing)
    return pa.array(values.astype(np.float64), pa.float64(), mask=missing)


def _texts(values: list[Any] | None, size: int) -> Any:
    import pyarrow as pa

    return pa.nulls(size, pa.string()) if values is None else pa.array(values, pa.string())


def _values(values: list[Any]) -> Any:
    """A column of metadata: flags, integers, numbers, or texts; mixed kinds become texts."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    known = {bool: pa.bool_(), int: pa.int64(), str: pa.string()}
    kind = known.get(next(iter(kinds), str)) if len(kinds) <= 1 else None
    if kind is None and kinds <= {int, float}:
        kind = pa.float64()
    try:
        if kind is not None:
            return pa.array(values, kind)
    except (OverflowError, pa.ArrowException):  # an integer above 2^63
        pass
    return pa.array([None if value is None else str(value) for value in values], pa.string())


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
