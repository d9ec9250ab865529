"""The table of signals: one row for each record read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.checking.signals.context import Context
from rlds_beam.checking.signals.measuring import Block
from rlds_beam.checking.signals.rows import Rows
from rlds_beam.checking.signals.scoring import scored
from rlds_beam.checking.verdicts import Verdict
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey

if TYPE_CHECKING:
    import pyarrow as pa

Array: TypeAlias = "np.ndarray[Any, Any]"

_MOST_PARTS = 32


class EpisodeTable:
    """Measures episodes, an accumulator: `add` records one by one and `merge` in any order, with the same result.

        table = EpisodeTable(Context.of(source.schema, fps=source.fps, decoded=4))
        for episode in reader.read("train", segment):
            table.add(episode, validate_episode(episode, options))
        table.finish()                     # a pyarrow.Table, by key

    Columns: `key`, `split`, `shard`, `position`, `part`, `steps`, `return`, `instruction`, `metadata/<name>`, `rule`
    and `detail` (null if accepted), and for each signal `<signal>` (the worst of its fields), `<signal>/<field>`, and
    `<signal>@field`, `<signal>@step`, `<signal>@stop` (where the worst is; null if unknown). Picklable.

    Args:
      context: the fields to measure.
    """

    def __init__(self, context: Context):
        self.context = context
        self._block = Block(context)
        self._parts: list[Rows] = []

    def __len__(self) -> int:
        return len(self._block) + sum(map(len, self._parts))

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
        merged = EpisodeTable(self.context)
        for table in (self, *others):
            table._flush()
            merged._parts += table._parts
        merged._compact()
        return merged

    def _flush(self) -> None:
        if len(self._block):
            self._parts.append(self._block.finish())
            self._compact()

    def _compact(self) -> None:
        if len(self._parts) > _MOST_PARTS:
            self._parts = [Rows.concatenate(self._parts)]

    def __getstate__(self) -> dict[str, Any]:
        self._flush()
        return self.__dict__

    def finish(self) -> pa.Table:
        """The table, sorted by key, with the signals that compare episodes."""
        self._flush()
        rows = Rows.concatenate(self._parts or [Block(self.context).finish()]).in_order()
        columns = {**rows.numbers, **scored(rows, self.context)}
        return _table(rows, columns)


def _table(rows: Rows, columns: dict[str, Array]) -> pa.Table:
    import pyarrow as pa

    keys = [EpisodeKey(*key) for key in rows.keys]
    found: dict[str, Any] = {
        "key": pa.array(map(str, keys), pa.string(), size=len(keys)),
        "split": pa.array([key.split for key in keys], pa.string()),
        "shard": pa.array([key.shard for key in keys], pa.int64()),
        "position": pa.array([key.position for key in keys], pa.int64()),
        "part": pa.array([key.part for key in keys], pa.int64()),
        "steps": pa.array(columns["steps"].astype(np.int64)),
        "return": _floats(columns.get("return"), len(rows)),
        **{name: _texts(rows.values.get(name), len(rows)) for name in ("instruction", "rule", "detail")},
        **{name: _values(values) for name, values in rows.values.items() if name.startswith("metadata/")},
    }
    for signal in SIGNALS:
        found |= _signal_columns(signal, columns, len(rows))
    return pa.table(found)


def _signal_columns(signal: str, columns: dict[str, Array], size: int) -> dict[str, Any]:
    """The columns of one signal; its values are null if it could not be measured."""
    import pyarrow as pa

    fields = [name for name in columns if name.startswith(f"{signal}/") and not re.search(r"@(step|stop)$", name)]
    found: dict[str, Any] = {}
    if fields:
        values = np.stack([columns[name] for name in fields])
        sign = -1.0 if SIGNALS[signal].below else 1.0
        worst = np.where(np.isnan(values), -np.inf, sign * values).argmax(axis=0)
        names = [name.partition("/")[2] for name in fields]
        value = values[worst, np.arange(size)]
        found[signal] = _floats(value, size)
        found[f"{signal}@field"] = pa.array(
            [None if np.isnan(v) else names[w] for v, w in zip(value, worst, strict=True)], pa.string()
        )
        for place in ("step", "stop"):
            known = [columns.get(f"{name}@{place}", np.full(size, np.nan)) for name in fields]
            found[f"{signal}@{place}"] = _integers(np.stack(known)[worst, np.arange(size)])
        found |= {name: _floats(columns[name], size) for name in sorted(fields)}
        return found
    found[signal] = _floats(columns.get(signal), size)
    found[f"{signal}@field"] = pa.nulls(size, pa.string())
    for place in ("step", "stop"):
        found[f"{signal}@{place}"] = _integers(columns.get(f"{signal}@{place}", np.full(size, np.nan)))
    return found


def _floats(values: Array | None, size: int) -> Any:
    import pyarrow as pa

    known = np.full(size, np.nan) if values is None else values.astype(np.float64)
    return pa.array(known, pa.float64(), mask=np.isnan(known))


def _integers(values: Array) -> Any:
    import pyarrow as pa

    missing = np.isnan(values)
    return pa.array(np.where(missing, 0, values).astype(np.int64), pa.int64(), mask=missing)


def _texts(values: list[Any] | None, size: int) -> Any:
    import pyarrow as pa

    return pa.nulls(size, pa.string()) if values is None else pa.array(values, pa.string())


def _values(values: list[Any]) -> Any:
    """A column of metadata: flags, integers, numbers, or texts; mixed kinds become texts."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    kind = {frozenset({bool}): pa.bool_(), frozenset({int}): pa.int64(), frozenset({str}): pa.string()}.get(
        frozenset(kinds)
    )
    if kind is None and kinds <= {int, float}:
        kind = pa.float64()
    try:
        if kind is not None:
            return pa.array(values, kind)
    except (OverflowError, pa.ArrowException):
        pass
    return pa.array([None if value is None else str(value) for value in values], pa.string())
