"""EnvLogger's Riegeli logs as a source: `--from=envlogger`, through the package `envlogger` (Linux, Python 3.11).

    LOG/metadata.riegeli
    LOG/<timestamp>/steps.riegeli  step_offsets.riegeli  episode_metadata.riegeli  episode_index.riegeli

Each timestamp's directory is a shard. EnvLogger stores with a step the action, reward and discount that led to it; RLDS
stores those that lead out of it, with zeros at the last step:

    logged   o0 --   o1 a0 r0 d0   o2 a1 r1 d1        RLDS   o0 a0 r0 d0   o1 a1 r1 d1   o2 (void)

EnvLogger's own reader finds the steps through the index files of a shard; of a log whose writer was killed, it reads
what was flushed. A shard that it cannot open is one `corrupt_record`. An episode with an unreadable step is
`corrupt_record`, an episode without a last step `missing_is_last`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.base import Damage, Record
from rlds_beam.episodes.columns import exact_cast, zeros_like
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import FIRST, LAST, Field, Schema, text_field
from rlds_beam.errors import BadEpisode, UsageError, needs
from rlds_beam.formats.arrays.array_episodes import (
    FLAG_FIELDS,
    ArrayDecoder,
    ArrayFormat,
    Arrays,
    SourceOfFiles,
    make_shard,
    no_features,
    number_field,
    select_splits,
    unpack,
)
from rlds_beam.reading.base import Shard
from rlds_beam.reading.meaning import Meaning
from rlds_beam.typing import Array

LOG_METADATA = "metadata.riegeli"
STEPS, OFFSETS = "steps.riegeli", "step_offsets.riegeli"
EPISODES, METADATA = "episode_index.riegeli", "episode_metadata.riegeli"
FILES = (STEPS, OFFSETS, EPISODES, METADATA)


@dataclasses.dataclass(frozen=True)
class EnvLoggerFormat(ArrayFormat):
    """One shard of a log; its path is `steps.riegeli`. A payload holds the steps as EnvLogger stored them."""

    name = "envlogger"

    def count(self, path: str) -> int:
        return _count(path, tuple(storage.stamp(storage.join(os.path.dirname(path), name)) for name in FILES))

    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        position = start
        while position < stop:  # after an error, a reader reads nothing more: continue with another one
            with _open_shard(path) as reader:
                while position < stop:
                    episode = _read(reader, position)
                    yield episode
                    position += 1
                    if isinstance(episode, Damage):
                        break


@functools.lru_cache(maxsize=64)
def _count(path: str, stamps: tuple[storage.Stamp | None, ...]) -> int:
    """The number of episodes of a shard. Raises OSError if it is damaged."""
    with _open_shard(path) as reader:
        episodes = int(reader.num_episodes)
        if not episodes or reader.episode(0).start:
            raise OSError(f"{os.path.dirname(path)} is damaged: {EPISODES} does not list its first episode")
        return episodes


@contextlib.contextmanager
def _open_shard(path: str) -> Iterator[Any]:
    """EnvLogger's reader of one shard, whose path is that of its steps. Raises OSError if it cannot be opened."""
    with needs("envlogger", f"reading {path} needs the package envlogger"):
        from envlogger.backends.python import riegeli_dataset_reader
    shard = os.path.dirname(os.path.abspath(path))
    for name in FILES:
        storage.open_read(storage.join(shard, name)).close()  # its error names the file
    with tempfile.TemporaryDirectory(prefix="rlds-beam-") as alone:  # a damaged shard makes the whole log unreadable
        os.symlink(shard, os.path.join(alone, "shard"))
        os.symlink(os.path.join(os.path.dirname(shard), LOG_METADATA), os.path.join(alone, LOG_METADATA))
        reader = riegeli_dataset_reader.RiegeliDatasetReader()
        try:
            reader.init(alone)
        except RuntimeError as error:
            where = str(error).replace(os.path.join(alone, "shard"), shard).replace(alone, os.path.dirname(shard))
            raise OSError(f"EnvLogger cannot open {shard}: {where}") from error
        try:
            yield reader
        finally:
            reader.close()


def _read(reader: Any, position: int) -> Arrays | Damage:
    first = 0
    try:
        info = reader.episode(position, True)
        first, count = int(info.start), int(info.num_steps)
        steps = [_with_sorted_names(reader.serialized_step(step)) for step in range(first, first + count)]
        about = b"" if info.metadata is None else info.metadata.SerializeToString(deterministic=True)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        reason = f"episode {position}: steps from {first} on cannot be read"
        return Damage(position, position + 1, f"{reason} ({type(error).__name__})", b"")
    return {"steps": _objects(steps), "metadata": _objects([about])}


def _objects(values: Sequence[bytes]) -> Array:
    return np.fromiter(values, object, len(values))


@dataclasses.dataclass(frozen=True)
class EnvLoggerDecoder(ArrayDecoder):
    """Decodes logged steps into episodes. Attributes: see `ArrayDecoder`."""

    def convert_arrays(self, arrays: Arrays) -> tuple[Mapping[str, Column], Mapping[str, Any]]:
        steps, metadata = _columns(arrays)
        return steps, {path: metadata[path] for path in self.schema.metadata}


def _columns(arrays: Arrays) -> tuple[dict[str, Column], dict[str, Any]]:
    """The RLDS columns of logged steps, and the episode's own fields."""
    logged = [_decode(step) for step in arrays["steps"]]
    if not logged:
        return {}, {}
    types = np.array([int(timestep[0]) for (timestep, _, _) in logged])
    led_to = {"action": [action for _, action, _ in logged[1:]]}
    led_to |= {name: [timestep[i] for timestep, _, _ in logged[1:]] for name, i in (("reward", 1), ("discount", 2))}
    columns = _stack([timestep[3] for timestep, _, _ in logged], "observation")
    for name, values in led_to.items():
        for path, column in _stack(values, name).items():
            columns[path] = np.concatenate([column, zeros_like(column, 1)])
    customs = [
        custom if isinstance(custom, Mapping) else {} if custom is None else {"custom": custom} for *_, custom in logged
    ]
    for path, column in _stack(customs, "").items():
        columns.setdefault(path, column)
    first, last = types == FIRST, types == LAST
    ended = np.array([False, *(timestep[2] == 0 for timestep, _, _ in logged[1:])])
    columns |= {"is_first": first, "is_last": last, "is_terminal": last & ended}
    about = _decode(arrays["metadata"][0]) if arrays["metadata"][0] else {}
    return columns, {path: _value(value) for path, value in _by_path(about or {}, "").items()}


def _with_sorted_names(data: bytes) -> bytes:
    """The same bytes on every read: EnvLogger's reader encodes dicts again, in random order."""
    from envlogger.proto import storage_pb2

    content: bytes = storage_pb2.Data.FromString(data).SerializeToString(deterministic=True)
    return content


def _decode(data: bytes) -> Any:
    with needs("envlogger", "reading EnvLogger's logs needs the package envlogger"):
        from envlogger.converters import codec
        from envlogger.proto import storage_pb2
    return codec.decode(storage_pb2.Data.FromString(bytes(data)))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The leaves of dicts, tuples and lists by path."""
    if isinstance(value, Mapping):
        named: list[tuple[Any, Any]] = sorted(value.items())
    elif isinstance(value, (tuple, list)):
        named = list(enumerate(value))
    else:
        yield path, value
        return
    for name, spec in named:
        yield from _leaves(spec, f"{path}/{name}" if path else str(name))


def _by_path(value: Any, path: str) -> dict[str, Any]:
    """The leaves by path. Raises ValueError if two have the same path."""
    leaves = [*_leaves(value, path)]
    by_path = dict(leaves)
    if len(by_path) < len(leaves):
        names = [name for name, _ in leaves]
        raise ValueError(f"two fields are named {next(name for name in names if names.count(name) > 1)}")
    return by_path


def _stack(values: Sequence[Any], path: str) -> dict[str, Column]:
    """The values of all steps, by leaf. Raises ValueError if steps have different leaves."""
    rows = [_by_path(value, path) for value in values]
    if not rows:
        return {}
    for row in rows:
        if row.keys() != rows[0].keys():
            raise ValueError(f"steps differ in their fields: {sorted(row.keys() ^ rows[0].keys())[:3]}")
    return {name: _column([row[name] for row in rows], name) for name in rows[0] if rows[0][name] is not None}


def _column(values: Sequence[Any], path: str) -> Column:
    if isinstance(values[0], (str, bytes)):
        return _objects([_value(value) for value in values])
    arrays = [np.asarray(value) for value in values]
    if len({array.dtype for array in arrays}) > 1:  # Python numbers, some int and some float
        dtype = np.result_type(*arrays)
        arrays = [exact_cast(array, dtype, path) for array in arrays]
    stacked: Array = np.stack(arrays)
    return stacked


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else np.asarray(value)


@dataclasses.dataclass(frozen=True)
class EnvLoggerSource(SourceOfFiles):
    """One log, or several. Attributes: see `Source`."""

    def companions(self, shard: Shard) -> list[str]:
        directory = storage.split(shard.path)[0]
        paths = [storage.join(directory, name) for name in storage.sizes(directory) if name[0] != "."]
        return [path for path in paths if path != shard.path]

    @classmethod
    def open(
        cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None
    ) -> EnvLoggerSource:
        no_features("envlogger", features)
        logs = storage.paths_in(input)
        paths = [path for log in logs for path in _shards(log)]
        name = naming.to_name(storage.split(logs[0].rstrip("/"))[1])
        files = EnvLoggerFormat()
        sizes = [storage.size(path) if storage.exists(path) else 0 for path in paths]
        shards = tuple(make_shard(files, i, path, sizes[i]) for i, path in enumerate(paths))
        schema = _schema(files, paths)
        splits = select_splits({"train": shards}, split, name)
        return cls(
            f"{name}/1.0.0", schema, EnvLoggerDecoder(schema), splits, files, meaning=Meaning(last_action="void")
        )


def _shards(log: str) -> list[str]:
    """The step files of a log. Raises UsageError if there are none."""
    if storage.scheme(log) is not None:
        raise UsageError(f"cannot read {log}: EnvLogger's logs are read from local disks only; copy it first")
    folders = [storage.join(log, name) for name in storage.listdir(log)] if storage.isdir(log) else []
    shards = [
        storage.join(folder, STEPS)
        for folder in folders
        if storage.isdir(folder) and any(storage.exists(storage.join(folder, name)) for name in FILES)
    ]
    if not shards and not storage.exists(storage.join(log, LOG_METADATA)):
        raise UsageError(f"{log} is not a log of EnvLogger's Riegeli backend: it has no {LOG_METADATA}")
    if not shards:
        raise UsageError(f"{log} has no steps (DIRECTORY/{STEPS}): was its environment closed?")
    return shards


def _schema(files: EnvLoggerFormat, paths: Sequence[str]) -> Schema:
    """The schema of the first readable episode."""
    for path in paths:
        for record in files.read(path):
            if isinstance(record, Record):
                try:
                    steps, metadata = _columns(unpack(record.payload))
                except (ValueError, BadEpisode):
                    continue
                fields = {name: _field(name, column) for name, column in steps.items()}
                about = {name: _field(name, _column([value], name)) for name, value in metadata.items()}
                return _with_names(Schema(fields | FLAG_FIELDS, about), path)
    raise UsageError(f"{paths[0]} has no readable episode: was its environment closed?")


def _with_names(schema: Schema, path: str) -> Schema:
    """The schema with the names of values in the environment's specs, which dm_control's composer joins by tabs."""
    with _open_shard(path) as reader:
        metadata = reader.metadata()
    try:
        specs = _decode(metadata.SerializeToString())["environment_specs"]
        named = {role: specs.get(f"{role}_spec") for role in ("observation", "action")}
        names = {path: name.split("	") for path, name in _spec_names(named, "") if "	" in name}
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return schema
    steps = {path: field.with_names(names.get(path, ())) for path, field in schema.steps.items()}
    return dataclasses.replace(schema, steps=steps)


def _spec_names(spec: Any, path: str) -> Iterator[tuple[str, str]]:
    """The name of each spec by the path of its field."""
    if isinstance(spec, Mapping) and {"shape", "dtype", "name"} <= spec.keys():
        yield path, str(spec["name"])
    elif isinstance(spec, (Mapping, list, tuple)):
        for name, entry in spec.items() if isinstance(spec, Mapping) else enumerate(spec):
            yield from _spec_names(entry, f"{path}/{name}" if path else str(name))


def _field(path: str, column: Any) -> Field:
    if column.dtype == object:
        return text_field(path)
    return number_field(path, column.dtype.name, column.shape[1:])
