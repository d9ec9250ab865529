"""Minari datasets (HDF5) as a source: `--from=minari`.

A Minari episode of T steps is an RLDS episode of T + 1: the observations unchanged, and the actions and rewards with a
void last step. JPEGs stay as they are. Infos become step fields `info/...`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.base import Damage
from rlds_beam.encoding.checked_json import ANY, COUNT, TEXT, Kind, Maybe, check_json
from rlds_beam.encoding.metadata import load_json, parse_json
from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.episodes.columns import exact_cast, exact_flags
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field, Schema, by_path, text_field
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import (
    FLAG_FIELDS,
    ArrayDecoder,
    ArrayFormat,
    Arrays,
    discounts,
    encoded_images,
    flags,
    number_field,
    with_last,
)
from rlds_beam.formats.arrays.array_files import SourceOfFiles, make_shards, no_features, select_splits
from rlds_beam.formats.arrays.hdf5_reader import (
    UNREADABLE,
    DatasetReader,
    check_readable,
    is_readable,
    is_text,
    list_datasets,
    open_hdf5,
)
from rlds_beam.formats.minari.environments import known_environment
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Shard
from rlds_beam.reading.directory_listing import names_below
from rlds_beam.text import printable, shorten

METADATA, MAIN = "metadata.json", "main_data.hdf5"
_ROLES = {"observations": "observation", "actions": "action", "rewards": "reward", "infos": "info"}
_DTYPE = Kind("a numeric dtype", lambda dtype: isinstance(dtype, str) and dtype in DTYPES)
_SPACE = {"type?": TEXT, "dtype?": Maybe(_DTYPE), "shape?": Maybe([COUNT]), "*": ANY}


@dataclasses.dataclass(frozen=True)
class MinariFormat(ArrayFormat):
    """The `main_data.hdf5` of a Minari dataset."""

    name = "minari"

    def count(self, path: str) -> int:
        with open_hdf5(path) as file:
            return len(file)

    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        with open_hdf5(path) as file:
            for i in range(start, stop):
                try:
                    datasets, reader = list_datasets(file[f"episode_{i}"]), DatasetReader()
                    yield {place: reader.read(dataset) for place, dataset in datasets if is_readable(dataset)}
                except UNREADABLE as error:
                    yield Damage(i, i + 1, f"episode_{i} cannot be read: {error}", b"")


@dataclasses.dataclass(frozen=True)
class MinariField:
    """The place of a field in the file.

    Attributes:
      field: a field of the steps.
      place: the path in the episode's group: `observations/state`.
      of_transitions: whether it has a value for each transition, one less than steps.
    """

    field: Field
    place: str
    of_transitions: bool

    def column(self, arrays: Arrays, steps: int) -> Column:
        """The values, one for each step.

        Raises:
          KeyError: there are no values.
          BadEpisode: the values do not fit the field's dtype.
        """
        array = arrays[self.place]
        column: Column
        if self.field.encoding == "jpeg":
            column = EncodedImages(encoded_images(array, self.field.path), self.field.shape, self.field.dtype)
        else:
            column = exact_cast(array, self.field.numpy_dtype, self.field.path)
        return with_last(column) if self.of_transitions or len(column) == steps - 1 else column


@dataclasses.dataclass(frozen=True)
class MinariDecoder(ArrayDecoder):
    """Decodes Minari's arrays into episodes.

    Attributes:
      schema: see `ArrayDecoder`.
      fields: the location of each field.
    """

    fields: tuple[MinariField, ...]

    def convert_arrays(self, arrays: Arrays) -> tuple[Mapping[str, Column], Mapping[str, Any]]:
        terminated, truncated = (exact_flags(arrays[name], name) for name in ("terminations", "truncations"))
        steps = len(terminated) + 1
        marks = flags(terminated | truncated, terminated)
        columns: dict[str, Column] = {"discount": discounts(marks["is_terminal"])}
        columns |= {field.field.path: field.column(arrays, steps) for field in self.fields}
        return {**columns, **marks}, {}


@dataclasses.dataclass(frozen=True)
class MinariSource(SourceOfFiles):
    """A Minari dataset. Attributes: see `Source`."""

    last_action = "void"
    notes: tuple[str, ...] = ()

    @classmethod
    def recognize(cls, path: str) -> str | None:
        for folder in ((), ("data",)):
            names = names_below(path, *folder)
            if {METADATA, MAIN} <= {*names}:
                return "/".join((*folder, METADATA))
        return None

    @classmethod
    def open(cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None) -> MinariSource:
        no_features("minari", features)
        if not isinstance(input, str):
            raise UsageError("--from=minari takes one dataset directory")
        folder = _folder(input)
        about, path = _metadata(folder), storage.join(folder, MAIN)
        files = MinariFormat()
        shards = make_shards(files, [path])
        name = naming.to_name(str(about.get("dataset_id", "minari")).replace("/", "-"))
        fields = _fields(path, about)
        of_steps = by_path((field.field for field in fields), folder)
        of_steps.setdefault("discount", Field("discount", "float32"))
        schema, notes = Schema(of_steps | FLAG_FIELDS, {}), tuple(_notes(folder, about, shards))
        known = known_environment(about.get("env_spec"))
        notes += () if known is None else (f"the rate is that of {known.name}",)
        chosen = select_splits({"train": shards}, split, name)
        fps = None if known is None else known.fps
        return cls(f"{name}/1.0.0", schema, MinariDecoder(schema, fields), chosen, files, (), fps, notes=notes)


def _notes(folder: str, about: Mapping[str, Any], shards: Sequence[Shard]) -> Iterator[str]:
    """Says that there are fewer or more episodes than the metadata count."""
    said, found = about.get("total_episodes"), sum(shard.records or 0 for shard in shards)
    if said not in (None, found) and all(shard.records is not None for shard in shards):
        yield f"{storage.join(folder, METADATA)}: total_episodes is {printable(said, 40)}, but there are {found:,}"


def _folder(input: str) -> str:
    """The directory with metadata.json: `input` itself, or `data` in it."""
    if not storage.isdir(input):
        raise UsageError(f"{input}: no such directory")
    for folder in (input, storage.join(input, "data")):
        if storage.exists(storage.join(folder, METADATA)):
            return folder
    raise UsageError(f"{input} is not a Minari dataset: there is no {METADATA} in it, or in its data directory")


def _metadata(folder: str) -> dict[str, Any]:
    path = storage.join(folder, METADATA)
    content = load_json(path)
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not valid Minari metadata: fetch the dataset again")
    if (kind := content.get("data_format", "hdf5")) != "hdf5":
        raise UsageError(f"{folder}: its data is stored as {shorten(kind)}, but --from=minari reads HDF5")
    if not storage.exists(storage.join(folder, MAIN)):
        raise UsageError(f"{folder} has no {MAIN}: fetch the dataset again")
    return content


def _fields(path: str, about: Mapping[str, Any]) -> tuple[MinariField, ...]:
    """The fields of the first episode."""
    where = storage.join(storage.split(path)[0], METADATA)
    jpeg, spaces = bool(about.get("jpeg_encoding", True)), _spaces(about, where)
    try:
        with open_hdf5(path) as file:
            datasets = [*list_datasets(file["episode_0"])]
            for place, dataset in datasets:
                if place.partition("/")[0] in _ROLES and dataset.shape is not None:
                    check_readable(dataset)
            fields = [_field(place, dataset, jpeg, spaces) for place, dataset in datasets]
    except UNREADABLE as error:
        raise UsageError(f"{path} cannot be read: {shorten(error)}") from error
    return tuple(field for field in fields if field is not None)


def _field(place: str, dataset: Any, jpeg: bool, spaces: Mapping[str, Any]) -> MinariField | None:
    role, _, rest = place.partition("/")
    if role not in _ROLES or not dataset.shape:
        return None
    parts = [part.removeprefix("_index_") for part in rest.split("/") if part]
    name = "/".join([_ROLES[role], *parts])
    of_transitions = role in ("actions", "rewards")
    space = spaces.get(place, {})
    if jpeg and space.get("type") == "Box" and _is_image(np.dtype(space["dtype"]), tuple(space["shape"])):
        shape = tuple(space["shape"])
        return MinariField(
            Field(name, "uint8", shape if len(shape) == 3 else (*shape, 1), "jpeg", "Image"), place, of_transitions
        )
    if is_text(dataset):
        return MinariField(text_field(name, tuple(dataset.shape[1:])), place, of_transitions)
    return MinariField(number_field(name, dataset.dtype.name, tuple(dataset.shape[1:])), place, of_transitions)


def _is_image(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Whether Minari encodes such values as JPEGs."""
    return dtype == np.uint8 and len(shape) in (2, 3) and shape[0] >= 32 and shape[1] >= 32


def _spaces(about: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The space of each array by its place."""
    spaces: dict[str, Any] = {}
    for role, name in (("observations", "observation_space"), ("actions", "action_space")):
        if isinstance(about.get(name), str):
            _add_spaces(parse_json(about[name], f"{where}: {name}"), f"{where}: {name}", role, spaces)
    return spaces


def _add_spaces(space: Any, where: str, place: str, spaces: dict[str, Any]) -> None:
    check_json(space, _SPACE, where)
    below = space.get("subspaces")
    if isinstance(below, dict):
        for name, child in below.items():
            _add_spaces(child, where, f"{place}/{name}", spaces)
    elif isinstance(below, list):
        for i, child in enumerate(below):
            _add_spaces(child, where, f"{place}/_index_{i}", spaces)
    elif below is None:
        spaces[place] = space
