"""The table of signals: one row for each record read; and the signals of one episode alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.signals import sensors
from rlds_beam.checking.signals.base import MIN_EPISODES, SIGNALS, STATISTICS
from rlds_beam.checking.signals.episodes import Context, Episodes, Layout, join_columns
from rlds_beam.checking.signals.rows import METADATA, Rows
from rlds_beam.encoding.parquet_files import naming_damage, verified_parquet
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

if TYPE_CHECKING:
    import pyarrow as pa

    from rlds_beam.checking.verdicts import Verdict

PLACES = ("@step", "@stop")
"""The ends of the columns that say where the worst is, [step, stop)."""

MAX_CHARACTERS = 1_000
"""Texts in the table are cut after this many."""

_MAX_STEPS, _MAX_EPISODES, _MAX_BYTES = 1 << 13, 2048, 8 << 20


class Block:
    """Collects records and measures them together: the numbers of each are the same in any block.

    Args:
      context: the fields to measure.
    """

    def __init__(self, context: Context):
        self.context = context
        self._keys: list[EpisodeKey] = []
        self._values: list[dict[str, Any]] = []
        self._measured: list[int] = []
        self._lengths: list[int] = []
        self._void: list[bool] = []
        self._hashes: list[int] = []
        self._columns: dict[str, list[Any]] = {path: [] for path in (*context.motion, *context.clocks, "reward")}
        self._repeats: dict[str, list[list[int]]] = {path: [] for path in context.cameras}
        self._pixels: dict[str, list[Sequence[float]]] = {path: [] for path in context.cameras if context.decoded}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def full(self) -> bool:
        """Whether it is time to measure: columns are views of records, which stay in memory until then."""
        return len(self) >= _MAX_EPISODES or sum(self._lengths) >= _MAX_STEPS or self._bytes >= _MAX_BYTES

    def add(self, episode: Episode, verdict: Verdict | None = None) -> None:
        """Adds an episode as read; with its verdict, if it was checked."""
        steps, length = episode.steps, len(episode)
        values = {f"metadata/{name}": _plain(value) for name, value in episode.metadata.items()}
        if verdict is not None and verdict.rejected is not None:
            values |= {"rule": verdict.rejected.rule, "detail": decode_text(verdict.rejected.detail)}
        if length:
            values["instruction"] = _find_instruction(episode, self.context.instructions)
            self._measured.append(len(self))
            self._lengths.append(length)
            last: Any = steps.get("is_last")
            void = last is not None and bool(last[-1]) and not episode.last_action_is_real
            self._void.append(void)
            self._hashes.append(0 if self.context.only is not None else _hash_actions(episode, length - void))
            for path, columns in self._columns.items():
                columns.append(steps.get(path))
            for path in self.context.cameras:
                self._add_camera(path, steps.get(path))
        self._keys.append(episode.key)
        self._values.append({name: value for name, value in values.items() if value is not None})
        self._bytes += len(episode.payload)

    def _add_camera(self, path: str, column: Column | None) -> None:
        repeats = [] if column is None else sensors.find_repeated(column)
        if column is not None and repeats and len(repeats) == len(column) - 1 and sensors.is_uniform(column):
            repeats = []  # padding in place of a camera, which `black_images` shows
        self._repeats[path].append(repeats)
        if self.context.decoded:
            pixels = [] if column is None else sensors.sample_images(column, self.context.decoded)
            table = np.array(pixels, np.float64) if pixels else np.full((1, 3), np.nan)
            self._pixels[path].append((*table[:, :2].mean(axis=0).tolist(), float(np.median(table[:, 2]))))

    def finish(self) -> Rows:
        """Measures the episodes; the block is empty afterward."""
        size = len(self)
        numbers: dict[str, Array] = {"steps": np.zeros(size), "#actions": np.zeros(size, np.uint64)}
        at = np.array(self._measured, np.int64)
        for name, found in self._measure().items() if self._lengths else ():
            if name not in numbers:
                numbers[name] = np.full((size, *found.shape[1:]), np.nan, found.dtype)
            numbers[name][at] = found
        for name in ("shard", "position", "part"):
            numbers[f"#{name}"] = np.array([getattr(key, name) for key in self._keys], np.int64)
        names = sorted({name for values in self._values for name in values})
        values = {name: [of.get(name) for of in self._values] for name in names}
        values |= {"#dataset": [key.dataset for key in self._keys], "#split": [key.split for key in self._keys]}
        self.__init__(self.context)  # type: ignore[misc]
        return Rows(self.context, numbers, values)

    def _measure(self) -> dict[str, Array]:
        """The numbers of the episodes that have steps."""
        context, layout = self.context, Layout.from_lengths(self._lengths, self._void)
        episodes = Episodes(
            context,
            layout,
            {path: join_columns(columns, self._lengths) for path, columns in self._columns.items()},
            self._repeats,
            {path: np.array(pixels) for path, pixels in self._pixels.items()},
            [self._values[row].get("instruction") for row in self._measured],
            self._hashes,
        )
        numbers: dict[str, Array] = {"steps": layout.lengths.astype(np.float64)}
        reward = episodes.concatenate("reward")
        if reward is not None and len(reward) == 1:
            reward[:, layout.void] = 0
            numbers["return"] = layout.sum(reward[0].astype(np.float64))
        for signal in SIGNALS.values():
            if not signal.relative and (context.only is None or signal.name in context.only):
                numbers |= signal.columns(episodes)
        for measure in STATISTICS if context.only is None else ():
            numbers |= measure(episodes)
        return numbers


def decode_text(value: Any) -> str:
    """A text of a dataset, as a str of at most `MAX_CHARACTERS`."""
    data = value if isinstance(value, bytes) else str(value).encode(errors="replace")
    return data.decode(errors="replace")[:MAX_CHARACTERS]


def _plain(value: Any) -> Any:
    """A number, flag, or text of the metadata that fits in a table; None for others."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.shape == ()):
        value = value.item()
    if isinstance(value, (bytes, str)):
        return decode_text(value)
    return value if isinstance(value, (bool, int, float)) else None


def _find_instruction(episode: Episode, fields: Sequence[str]) -> str | None:
    """The first text of the task that is not blank."""
    for path in fields:
        column: Any = episode.steps.get(path)
        value = episode.metadata.get(path)
        values = dict.fromkeys(column.tolist()) if column is not None else () if value is None else (value,)
        for text in map(decode_text, values):
            if text.strip():
                return text
    return None


def _hash_actions(episode: Episode, steps: int) -> int:
    """A hash of all actions; 0 if they are constant, so that two idle episodes are no duplicates."""
    import xxhash

    parts, constant = [], True
    for path, column in episode.steps.items():
        if path.partition("/")[0] not in ("action", "actions"):
            continue
        if not isinstance(column, EncodedImages) and column.dtype != object:
            data = column[:steps].tobytes()
            parts.append(data)
            constant = constant and data == data[: len(data) // max(steps, 1)] * steps
    return 0 if constant else xxhash.xxh3_64_intdigest(b"".join(parts)) or 1


class EpisodeTable:
    """Measures episodes, an accumulator: `add` records one by one and `merge` in any order, with the same result.

    After `write`, its rows are in a Parquet file, and it is small.

        table = EpisodeTable(Context.from_schema(source.schema, fps=source.fps, decoded=4))
        for episode in reader.read("train", segment):
            table.add(episode, validate_episode(episode, options))
        table.finish()                     # a pyarrow.Table, by key

    Columns: `key`, `split`, `shard`, `position`, `part`, `steps`, `return`, `instruction`, `metadata/<name>`, `rule`
    and `detail` (null if accepted), and for each signal `<signal>` (the worst of its fields), `<signal>/<field>`, and
    `<signal>@field`, `<signal>@step`, `<signal>@stop` (where the worst is; null if unknown). For signals that count
    episodes, `@field` is the key of the first of them. Picklable.

    Args:
      context: the fields to measure.
    """

    def __init__(self, context: Context):
        self.context = context
        self._block = Block(context)
        self._parts: list[pa.Table] = []
        self._files: list[str] = []

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
            merged._files += table._files
        return merged

    def _flush(self) -> None:
        if len(self._block):
            self._parts.append(self._block.finish().to_arrow())

    def write(self, path: str) -> None:
        """Moves the rows to a Parquet file, which must exist until they are read."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._flush()
        if self._parts:
            table = pa.concat_tables(self._parts, promote_options="permissive")
            with storage.writing(path) as file:
                pq.write_table(table, file, compression="zstd", write_page_checksum=True)
            self._files, self._parts = [*self._files, path], []

    def rows(self) -> Rows:
        """All rows by key."""
        self._flush()
        parts = [*self._parts, *map(read_table, self._files)]
        return Rows.join(self.context, parts or [self._block.finish().to_arrow()])

    def finish(self) -> pa.Table:
        """The table of all rows."""
        return make_table(self.rows())


def read_table(path: str) -> pa.Table:
    """A Parquet file; raises RldsBeamError if it is damaged."""
    with storage.open_read(path) as file, naming_damage(path):
        return verified_parquet(file).read(use_threads=False)


def make_table(rows: Rows) -> pa.Table:
    """The table, with the signals that compare episodes; its columns are those of `EpisodeTable`."""
    import pyarrow as pa

    return pa.table({decode_text(name): column for name, column in _columns(rows)})


def _columns(rows: Rows) -> Iterator[tuple[str, Any]]:
    """The columns of the table; names may be no valid UTF-8."""
    import pyarrow as pa

    size, missing = len(rows), np.full(len(rows), np.nan)
    yield "key", pa.array(rows.keys(range(size)), pa.string())
    yield "split", pa.array(rows.values["#split"], pa.string())
    for name in ("shard", "position", "part"):
        yield name, pa.array(rows.numbers[f"#{name}"])
    yield "steps", pa.array(rows.numbers["steps"].astype(np.int64))
    yield "return", _to_arrow(rows.numbers.get("return", missing))
    for name in ("instruction", "rule", "detail"):
        yield name, pa.array(rows.values.get(name, [None] * size), pa.string())
    for name, values in rows.values.items():
        if name.startswith(METADATA):
            yield name, _make_values(values)
    for signal in SIGNALS.values():
        columns = _own_columns(rows, signal.name)
        if signal.relative and size >= MIN_EPISODES:
            columns |= signal.columns(rows)
        other = columns.pop(f"{signal.name}@other", None)
        made = signal_columns(signal.name, columns, size)
        if other is not None:
            known = ~np.isnan(other)
            made[f"{signal.name}@field"][known] = rows.keys(other[known].astype(np.int64).tolist())
        yield from ((name, _to_arrow(column, name)) for name, column in made.items())


def _own_columns(rows: Rows, signal: str) -> dict[str, Array]:
    """What was measured for a signal before episodes were compared."""
    return {name: of for name, of in rows.numbers.items() if re.split("[/@]", name, maxsplit=1)[0] == signal}


def signal_columns(signal: str, columns: Mapping[str, Array], size: int) -> dict[str, Array]:
    """The columns of one signal: the worst of its fields, where it is, and each field; NaN if it was not measured."""
    fields = sorted(name for name in columns if name.startswith(f"{signal}/") and not name.endswith(PLACES))
    known = [np.array(columns[name]) for name in fields or [signal] if name in columns] or [np.full(size, np.nan)]
    table = np.stack(known)
    worst = np.where(np.isnan(table), -np.inf, table).argmax(axis=0)
    value = table[worst, np.arange(size)]
    names = np.array([name.partition("/")[2] for name in fields] + [None], object)
    found = {signal: value, f"{signal}@field": names[np.where(np.isnan(value), len(fields), worst)]}
    for place in PLACES:
        found[f"{signal}{place}"] = places = np.full(size, np.nan)
        for number, name in enumerate(fields or [signal]):
            if f"{name}{place}" in columns:
                np.copyto(places, columns[f"{name}{place}"], where=worst == number)
    return found | {name: columns[name] for name in fields}


def _to_arrow(values: Array, name: str = "") -> Any:
    """Numbers as a column: steps as integers, NaN as null; or texts."""
    import pyarrow as pa

    if values.dtype == object:
        return pa.array(values, pa.string())
    missing = np.isnan(values)
    if name.endswith(PLACES):
        return pa.array(np.where(missing, 0, values).astype(np.int64), pa.int64(), mask=missing)
    return pa.array(values.astype(np.float64), pa.float64(), mask=missing)


def _make_values(values: list[Any]) -> Any:
    """A column of metadata: flags, integers, numbers, or texts; mixed kinds become texts."""
    import pyarrow as pa

    kinds = {type(value) for value in values} - {type(None)}
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


def measure(episode: Episode, context: Context) -> dict[str, Any]:
    """The row of one episode, without the signals that compare it with others. `EpisodeTable` is faster for many."""
    block = Block(context)
    block.add(episode)
    rows, key = block.finish(), episode.key
    found: dict[str, Any] = {name: values[0] for name, values in rows.values.items() if not name.startswith("#")}
    found |= {"key": str(key), "split": key.split, "shard": key.shard, "position": key.position, "part": key.part}
    found |= {"steps": len(episode), "return": _number(rows.numbers.get("return", np.array([np.nan])))}
    for signal in SIGNALS if context.only is None else context.only:
        for name, values in signal_columns(signal, _own_columns(rows, signal), 1).items():
            value = values[0] if values.dtype == object else _number(values)
            found[name] = int(value) if value is not None and name.endswith(PLACES) else value
    return found


def _number(values: Array) -> float | None:
    return None if np.isnan(values[0]) else float(values[0])
