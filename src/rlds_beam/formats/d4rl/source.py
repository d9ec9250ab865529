"""D4RL's HDF5 files as a source: `--from=d4rl`.

All steps of all episodes are in a few flat arrays. An episode ends if `terminals` or `timeouts` says so. In files with
`next_observations`, it also ends if these differ from the next row's observation: in some files timeouts are missing.
How the last row is read depends on what D4RL stored:

    terminals                 the observation after it is that of next_observations, or zeros, which no learner uses
    timeouts, next known      the observation after it is that of next_observations
    timeouts, next not known  the last row is the last step: its action and reward are void

Rows after the last end are an episode without an end: it is rejected as `missing_is_last`;
--repair=missing_is_last makes it a truncated one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.base import Damage
from rlds_beam.episodes.columns import find_changed, is_number
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field, Schema, episode_flags
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.formats.arrays.array_episodes import (
    FLAG_FIELDS,
    ArrayDecoder,
    ArrayFormat,
    Arrays,
    discounts,
    number_field,
    with_last,
)
from rlds_beam.formats.arrays.array_files import SourceOfFiles, find_files, no_features, splits_of_files
from rlds_beam.formats.arrays.hdf5_reader import (
    ENDINGS,
    UNREADABLE,
    DatasetReader,
    check_stored,
    has_objects,
    list_datasets,
    open_hdf5,
    read_array,
)
from rlds_beam.text import join_texts
from rlds_beam.typing import Array

_NAMES = {
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
    "infos/action_log_probs": "action_logp",
}
_REQUIRED = ("observations", "actions", "rewards", "terminals")
_NEXT = "next_observations"
_WRONG = "wrong flags"
_ROWS = 65536  # rows compared at a time
_NOISE = 0.5  # if a larger fraction of next observations differ, they do not mark ends


@dataclasses.dataclass(frozen=True)
class FileEpisodes:
    """The episodes of a file.

    Attributes:
      starts: int64 [episodes + 1], the first row of each, then the number of rows.
      terminal, ended: bool [episodes], whether each terminated, and whether it ended at all.
      wrong: for some episodes, the first flag that is neither 0 nor 1, so does not mark an end.
    """

    starts: Array
    terminal: Array
    ended: Array
    wrong: Mapping[int, str]


def boundaries(path: str) -> FileEpisodes:
    """The episodes of a file. Raises the errors of `ArrayFormat.count`."""
    return _boundaries(path, storage.stamp(path))


@functools.lru_cache(maxsize=64)
def _boundaries(path: str, stamp: storage.Stamp | None) -> FileEpisodes:
    del stamp  # another content is another entry of the cache
    with open_hdf5(path) as file:
        if missing := [name for name in _REQUIRED if name not in file]:
            raise OSError(f"{path} is not a D4RL file: it has no {missing[0]}")
        for name in (*_REQUIRED, *(name for name in ("timeouts", _NEXT) if name in file)):
            if not check_stored(file[name]).shape:
                raise OSError(f"{path}: {name} has no rows")
        rows = len(file["rewards"])
        for name in ("observations", "actions", "terminals"):
            if len(file[name]) != rows:
                raise OSError(f"{path}: {name} has {len(file[name])} rows, but rewards has {rows}")
        wrong: list[tuple[str, Array, Array]] = []
        terminal = _flag(file, "terminals", rows, wrong)
        cut = _flag(file, "timeouts", rows, wrong) | _jumps(file, rows) if rows else terminal
    ends = np.flatnonzero(terminal | cut)
    starts = np.unique(np.concatenate([[0], ends + 1, [rows]]))
    last = starts[1:] - 1
    told: dict[int, str] = {}
    for name, bad, values in wrong:
        episodes, first = np.unique(np.searchsorted(starts, bad, side="right") - 1, return_index=True)
        for episode, i in zip(episodes.tolist(), first.tolist(), strict=True):
            told.setdefault(episode, f"{name} is {values[i]} at row {bad[i]}, expected 0 or 1")
    return FileEpisodes(starts, terminal[last], (terminal | cut)[last], told)


def _flag(file: Any, name: str, rows: int, wrong: list[tuple[str, Array, Array]]) -> Array:
    """A flag of each row, bool [rows]. D4RL stores bools, bytes or floats, sometimes with an axis of size 1.

    Args:
      wrong: a list to append to: the name, the rows with a flag other than 0 or 1 (read as False), and these flags.
    """
    if name not in file or not rows:
        return np.zeros(rows, bool)
    values: Array = read_array(file[name]).reshape(len(file[name]), -1)[:rows, 0]
    if not is_number(values.dtype):
        raise OSError(f"{name} holds {values.dtype.name} values, expected 0 or 1")
    flags = values.astype(bool)
    bad = np.flatnonzero(find_changed(values, flags))
    if len(bad):
        wrong.append((name, bad, values[bad]))
        flags[bad] = False
    return np.concatenate([flags, np.zeros(rows - len(values), bool)])


def _jumps(file: Any, rows: int) -> Array:
    """bool [rows]: whether the next observation differs from the next row's observation."""
    jumps = np.zeros(rows, bool)
    if _NEXT not in file or file[_NEXT].shape != file["observations"].shape:
        return jumps
    for start in range(0, rows - 1, _ROWS):
        stop = min(start + _ROWS, rows - 1)
        after = read_array(file[_NEXT], slice(start, stop))
        following = read_array(file["observations"], slice(start + 1, stop + 1))
        jumps[start:stop] = (after != following).reshape(stop - start, -1).any(axis=1)
    return jumps if jumps.mean() <= _NOISE else np.zeros(rows, bool)


@dataclasses.dataclass(frozen=True)
class D4rlFormat(ArrayFormat):
    """D4RL's HDF5 files."""

    name = "d4rl"

    def count(self, path: str) -> int:
        return len(boundaries(path).ended)

    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        bounds = boundaries(path)
        with open_hdf5(path) as file:
            names = [name for name, dataset in _columns(file)]
            for i in range(start, stop):
                first, last = (int(row) for row in bounds.starts[i : i + 2])
                try:
                    read = DatasetReader().read
                    arrays = {name: read(file[name], slice(first, last)) for name in names}
                    if _NEXT in file:
                        arrays[_NEXT] = read(file[_NEXT], slice(last - 1, last))
                except UNREADABLE as error:
                    yield Damage(i, i + 1, f"rows {first} to {last} cannot be read: {error}", b"")
                else:
                    if i in bounds.wrong:
                        arrays[_WRONG] = np.array([bounds.wrong[i].encode()], object)
                    yield {**arrays, "end": np.array([bounds.terminal[i], bounds.ended[i]])}


def _columns(file: Any) -> Iterator[tuple[str, Any]]:
    """The arrays with a row for each step, except the flags."""
    rows = len(file["rewards"])
    for name, dataset in list_datasets(file):
        is_step = name in ("observations", "actions", "rewards") or name.startswith("infos/")
        if is_step and dataset.shape and dataset.shape[0] >= rows and dataset.dtype.kind in "biuf":
            yield name, check_stored(dataset)


@dataclasses.dataclass(frozen=True)
class D4rlDecoder(ArrayDecoder):
    """Decodes rows into episodes. Attributes: see `ArrayDecoder`."""

    def convert_arrays(self, arrays: Arrays) -> tuple[Mapping[str, Column], Mapping[str, Any]]:
        if _WRONG in arrays:
            raise BadEpisode(Violation("wrong_dtype_or_shape", arrays[_WRONG][0].decode(), "is_terminal"))
        terminal, ended = (bool(flag) for flag in arrays["end"])
        steps: dict[str, Column] = {}
        for name, values in arrays.items():
            if name not in ("end", _NEXT):
                path = field_path(name)
                steps[path] = values.reshape(len(values), *self.schema.steps[path].closed_shape)
        rows = len(steps["reward"])
        after = arrays.get(_NEXT)
        if after is not None or terminal:
            last = {"observation": after} if after is not None else {}
            steps = {path: with_last(column, last.get(path)) for path, column in steps.items()}
            rows += 1
        marks = episode_flags(rows, last=ended, terminal=terminal)
        return {**steps, **marks, "discount": discounts(marks["is_terminal"])}, {}


def field_path(name: str) -> str:
    """The step field of an array: `info/qpos` for `infos/qpos`."""
    return _NAMES.get(name) or name.replace("infos/", "info/", 1)


@dataclasses.dataclass(frozen=True)
class D4rlSource(SourceOfFiles):
    """D4RL's files. Attributes: see `Source`."""

    last_action = "void"
    told_by_files = True

    @classmethod
    def recognize(cls, path: str) -> str | None:
        name = has_objects(path, _REQUIRED)
        return None if name is None else f"{join_texts(_REQUIRED)} in {name}"

    @classmethod
    def open(cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None) -> D4rlSource:
        no_features("d4rl", features)
        paths = find_files(input, ENDINGS, "d4rl")
        files = D4rlFormat()
        splits = splits_of_files(files, paths, split)
        path = next(shard.path for split in splits for shard in split.shards)
        try:
            with open_hdf5(path) as file:
                if missing := [name for name in _REQUIRED if name not in file]:
                    raise UsageError(f"{path} is not a D4RL file: it has no {missing[0]}")
                fields = [_field(name, dataset) for name, dataset in _columns(file)]
        except UsageError:
            raise
        except UNREADABLE as error:
            raise UsageError(f"{path} cannot be read: {error}") from error
        steps = {field.path: field for field in fields} | {"discount": Field("discount", "float32"), **FLAG_FIELDS}
        schema = Schema(steps)
        return cls(f"{paths.name}/1.0.0", schema, D4rlDecoder(schema), splits, files)


def _field(name: str, dataset: Any) -> Field:
    shape = tuple(dataset.shape[1:])
    return number_field(field_path(name), dataset.dtype.name, () if name == "rewards" else shape)
