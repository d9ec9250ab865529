"""d3rlpy's HDF5 files as a source: `--from=d3rlpy`.

Files that `--to=d3rlpy` wrote name the original RLDS fields. In other files, the observation is `observation` (several
arrays: `observation/0`, ...), and one integer per step is a scalar action. d3rlpy neither stores nor uses the
observation after the last action of an episode that terminated: here it is zeros. If an episode did not terminate, its
last observation is the last step's, whose action and reward are void.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.encoding.base import Damage
from rlds_beam.encoding.checked_json import ANY, check_json, parse_json
from rlds_beam.episodes.columns import exact_cast, exact_flags
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
    UNREADABLE,
    DatasetReader,
    check_stored,
    has_objects,
    open_hdf5,
    read_array,
)
from rlds_beam.formats.arrays.leaves import LeafColumn, field_from_json
from rlds_beam.formats.d3rlpy.output import SCHEMA
from rlds_beam.reading.meaning import KEY, Meaning
from rlds_beam.text import shorten
from rlds_beam.typing import Array

_OWN = ("observations", "actions", "rewards")


@dataclasses.dataclass(frozen=True)
class D3rlpyFormat(ArrayFormat):
    """d3rlpy's HDF5 files, version 2.1."""

    name = "d3rlpy"

    def count(self, path: str) -> int:
        with open_hdf5(path) as file:
            return _count(file, path)

    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        with open_hdf5(path) as file:
            for i in range(start, stop):
                try:
                    yield _arrays(file, i)
                except UNREADABLE as error:
                    yield Damage(i, i + 1, f"episode {i} cannot be read: {error}", b"")


def _count(file: Any, path: str) -> int:
    if "num_episodes" not in file or "version" not in file:
        raise OSError(f"{path} is not a d3rlpy ReplayBuffer file: it has no num_episodes")
    count = read_array(file["num_episodes"])
    if count.shape != () or count.dtype.kind not in "iu" or not 0 <= count <= len(file):
        raise OSError(f"{path} has {len(file):,} arrays, but num_episodes is {shorten(count)}")
    return int(count)


def _arrays(file: Any, i: int) -> dict[str, Array]:
    read = DatasetReader().read
    of_transitions = {name: read(file[f"{name}_{i}"]) for name in ("actions", "rewards", "terminated")}
    if f"observations_{i}" in file:
        return {"observations": read(file[f"observations_{i}"]), **of_transitions}
    several: dict[str, Array] = {}
    while f"observations_{i}_{len(several)}" in file:
        several[f"observations/{len(several)}"] = read(file[f"observations_{i}_{len(several)}"])
    if not several:
        raise KeyError(f"there are no observations_{i}")
    return several | of_transitions


@dataclasses.dataclass(frozen=True)
class D3rlpyDecoder(ArrayDecoder):
    """Decodes d3rlpy's arrays into episodes.

    Attributes:
      schema: see `ArrayDecoder`.
      observations: the field path of each observation array.
      action, reward: the field paths.
      own: whether `--to=d3rlpy` wrote the file, with the channels of images first.
    """

    observations: Mapping[str, str]
    action: str
    reward: str
    own: bool

    def convert_arrays(self, arrays: Arrays) -> tuple[Mapping[str, Column], Mapping[str, Any]]:
        terminated = bool(exact_flags(arrays["terminated"], "terminated"))
        rows = len(arrays["rewards"])
        if other := [name for name in (*self.observations, "actions") if len(arrays[name]) != rows]:
            detail = f"{other[0]} has {len(arrays[other[0]])} rows, but rewards has {rows}"
            raise BadEpisode(Violation("corrupt_record", detail))
        fields = self.schema.steps
        steps: dict[str, Column] = {}
        for name, path in self.observations.items():
            column = arrays[name]
            if self.own and LeafColumn(fields[path]).channels_last:
                column = np.moveaxis(column, 1, -1)
            steps[path] = self._cast(path, column)
        steps[self.action] = self._cast(self.action, arrays["actions"].reshape(rows, *fields[self.action].shape))
        steps[self.reward] = self._cast(self.reward, arrays["rewards"].reshape(rows, *fields[self.reward].shape))
        if terminated:
            steps = {path: with_last(column) for path, column in steps.items()}
        marks = episode_flags(rows + terminated, last=True, terminal=terminated)
        return {**steps, **marks, "discount": discounts(marks["is_terminal"])}, {}

    def _cast(self, path: str, column: Array) -> Array:
        """The column in the field's dtype: the first episode's, or the one that `--to=d3rlpy` was given."""
        return exact_cast(column, self.schema.steps[path].numpy_dtype, path)


@dataclasses.dataclass(frozen=True)
class D3rlpySource(SourceOfFiles):
    """Files of d3rlpy's replay buffers. Attributes: see `Source`."""

    last_action = "void"
    notes: tuple[str, ...] = ()
    told_by_files = True

    @classmethod
    def recognize(cls, path: str) -> str | None:
        name = has_objects(path, ("num_episodes", "version"))
        return None if name is None else f"num_episodes and version in {name}"

    @classmethod
    def open(cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None) -> D3rlpySource:
        no_features("d3rlpy", features)
        paths = find_files(input, (".h5", ".hdf5"), "d3rlpy")
        files = D3rlpyFormat()
        splits = splits_of_files(files, paths, split)
        first = next((shard.path for split in splits for shard in split.shards if shard.records), None)
        if first is None:
            for shard in (shard for split in splits for shard in split.shards if shard.records is None):
                try:
                    files.count(shard.path)
                except OSError as error:
                    raise UsageError(str(error)) from error
            raise UsageError(f"{paths.where}: there are no episodes")
        decoder, meaning = _decoder(first)
        readable = [shard for split in splits for shard in split.shards if shard.records is not None]
        notes = tuple(note for shard in readable for note in _notes(shard.path, shard.records))
        return cls(f"{paths.name}/1.0.0", decoder.schema, decoder, splits, files, (), meaning.fps, meaning.robot, notes)


def _notes(path: str, episodes: int | None) -> Iterator[str]:
    """Says that a file has arrays of more episodes than it counts."""
    with open_hdf5(path) as file:
        numbers = {int(match[1]) for name in file if (match := re.fullmatch(r"rewards_(\d{1,18})", name))}
    if more := [number for number in numbers if number >= (episodes or 0)]:
        yield f"{path}: num_episodes is {episodes}, but there are arrays of {len(more):,} more"


def _decoder(path: str) -> tuple[D3rlpyDecoder, Meaning]:
    try:
        with open_hdf5(path) as file:
            if SCHEMA in file:
                content = parse_json(read_array(file[SCHEMA]).item(), f"{path}: {SCHEMA}")
                own = _own_decoder(content, path)
                return own, Meaning.from_json(content.get(KEY, {}), f"{path}: {SCHEMA}")
            arrays = _shapes(file)
    except UNREADABLE as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    names = [name for name in arrays if name.startswith("observations")]
    observations = {name: name.replace("observations", "observation") for name in names}
    fields = {observations[name]: number_field(observations[name], *arrays[name]) for name in names}
    dtype, shape = arrays["actions"]
    action = number_field("action", dtype, () if shape == (1,) and np.dtype(dtype).kind in "iu" else shape)
    steps = {**fields, "action": action, "reward": number_field("reward", arrays["rewards"][0])}
    steps |= {"discount": Field("discount", "float32"), **FLAG_FIELDS}
    return D3rlpyDecoder(Schema(steps), observations, "action", "reward", False), Meaning()


def _shapes(file: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and row shape of each array of the first episode."""
    shapes = {}
    for name in file:
        match = re.fullmatch(r"(observations|actions|rewards)_0(?:_(\d+))?", name)
        if match:
            key = match[1] + (f"/{match[2]}" if match[2] else "")
            array = check_stored(file[name])
            shapes[key] = (array.dtype.name, tuple(array.shape[1:]))
    if not {"actions", "rewards"} <= shapes.keys():
        raise KeyError("there are no actions_0 or rewards_0")
    return dict(sorted(shapes.items()))


def _own_decoder(content: Any, path: str) -> D3rlpyDecoder:
    where = f"{path}: {SCHEMA}"
    check_json(content, {name: [ANY] for name in _OWN}, where)
    fields = {name: [field_from_json(item, where) for item in content[name]] for name in _OWN}
    if not all(fields.values()):
        raise UsageError(f"{where} has no fields of {next(name for name in _OWN if not fields[name])}")
    paths = [field.path for field in fields["observations"]]
    names = ["observations"] if len(paths) == 1 else [f"observations/{i}" for i in range(len(paths))]
    steps = {field.path: _pixels(field) for some in fields.values() for field in some}
    steps |= {"discount": Field("discount", "float32"), **FLAG_FIELDS}
    action, reward = fields["actions"][0].path, fields["rewards"][0].path
    return D3rlpyDecoder(Schema(steps), dict(zip(names, paths, strict=True)), action, reward, True)


def _pixels(field: Field) -> Field:
    """The field with decoded images."""
    if not field.holds_image_files:
        return field
    return dataclasses.replace(field, encoding="none", feature="Tensor" if field.shape else "Scalar")
