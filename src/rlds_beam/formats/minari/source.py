"""Minari datasets (HDF5, Arrow, Parquet) as a source: `--from=minari`.

The input is a dataset's directory, or one that `--to=minari` wrote.

A Minari episode of T steps is an RLDS episode of T + 1: the observations unchanged, and the actions and rewards with a
void last step. JPEGs stay as they are. Infos become step fields `info/...`, unless `--to=minari` stored other names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.base import Damage
from rlds_beam.encoding.checked_json import ANY, COUNT, TEXT, Kind, Maybe, check_json, parse_json, parsing, read_json
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
from rlds_beam.formats.arrays.leaves import field_from_json
from rlds_beam.formats.minari import gym_spaces
from rlds_beam.formats.minari.arrow import ARROW, MinariArrowFormat
from rlds_beam.formats.minari.environments import known_environment
from rlds_beam.formats.minari.output import MAIN, METADATA, OWN
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Shard
from rlds_beam.reading.changes import files_in
from rlds_beam.reading.directory_listing import names_below
from rlds_beam.reading.meaning import KEY, Meaning
from rlds_beam.text import printable, shorten

_ROLES = {"observations": "observation", "actions": "action", "rewards": "reward", "infos": "info"}
_JPEG = b"\xff\xd8\xff"
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
      field: a field of the steps, or of the episode.
      place: the path in the episode's group: `observations/state`.
      of: whether it has a value for each step, for each transition, or for the episode.
    """

    field: Field
    place: str
    of: Literal["step", "transition", "episode"]

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
        return with_last(column) if self.of == "transition" or len(column) == steps - 1 else column


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
        columns |= {field.field.path: field.column(arrays, steps) for field in self.fields if field.of != "episode"}
        metadata = {
            field.field.path: exact_cast(arrays[field.place], field.field.numpy_dtype, field.field.path)[0]
            for field in self.fields
            if field.of == "episode"
        }
        return {**columns, **marks}, metadata


@dataclasses.dataclass(frozen=True)
class MinariSource(SourceOfFiles):
    """A Minari dataset. Attributes: see `Source`."""

    last_action = "void"
    notes: tuple[str, ...] = ()

    @classmethod
    def recognize(cls, path: str) -> str | None:
        for folder in ((), ("data",)):
            names = names_below(path, *folder)
            if METADATA in names and any(name == MAIN or name.isdecimal() for name in names):
                return "/".join((*folder, METADATA))
        return None

    def companions(self, shard: Shard) -> list[str]:
        if not isinstance(self.files, MinariArrowFormat):
            return []
        folder = storage.split(shard.path)[0]
        places = [storage.join(folder, name) for name in storage.listdir(folder) if name.isdecimal()]
        return files_in(place for place in places if storage.isdir(place))

    @classmethod
    def open(cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None) -> MinariSource:
        no_features("minari", features)
        if not isinstance(input, str):
            raise UsageError("--from=minari takes one dataset directory")
        folders = _folders(input)
        abouts = {folder: _metadata(folder) for folder in folders}
        named = {_split(about, folder): folder for folder, about in abouts.items()}
        if len(named) < len(folders):
            raise UsageError(f"{input} holds {len(folders)} datasets: choose one of {', '.join(folders)}")
        first = next(iter(named.values()))
        about = abouts[first]
        kind = about.get("data_format", "hdf5")
        if kind in ARROW and storage.scheme(input) is not None:
            raise UsageError(
                f"cannot read {input}: Minari's {kind} files are read from local disks only; copy it first"
            )
        paths = {name: storage.join(folder, METADATA if kind in ARROW else MAIN) for name, folder in named.items()}
        files: MinariFormat | MinariArrowFormat = MinariFormat()
        shards = {name: make_shards(files, [path]) for name, path in paths.items()} if kind not in ARROW else {}
        if kind in ARROW:
            files = arrow = MinariArrowFormat(kind, _spaces(about, storage.join(first, METADATA), whole=True))
            shards = {name: (arrow.shard(path),) for name, path in paths.items()}
        name = naming.to_name(
            str(about.get(OWN, {}).get("dataset") or str(about.get("dataset_id", "minari")).replace("/", "-"))
        )
        if OWN in about:
            fields = _own_fields(about[OWN], storage.join(first, METADATA))
        else:
            fields = _fields(next(iter(paths.values())), files, about)
        of_steps = by_path((field.field for field in fields if field.of != "episode"), first)
        of_steps.setdefault("discount", Field("discount", "float32"))
        schema = Schema(
            of_steps | FLAG_FIELDS, by_path((field.field for field in fields if field.of == "episode"), first)
        )
        notes = tuple(note for key, folder in named.items() for note in _notes(folder, abouts[folder], shards[key]))
        meaning = Meaning.from_json(about.get(OWN, {}).get(KEY, {}), f"{storage.join(first, METADATA)}: {OWN}")
        if OWN not in about and (known := known_environment(about.get("env_spec"))) is not None:
            meaning, notes = Meaning(known.fps), (*notes, f"the rate is that of {known.name}")
        decoder, chosen = MinariDecoder(schema, fields), select_splits(shards, split, name)
        return cls(f"{name}/1.0.0", schema, decoder, chosen, files, (), meaning.fps, meaning.robot, notes)


def _notes(folder: str, about: Mapping[str, Any], shards: Sequence[Shard]) -> Iterator[str]:
    """Says that there are fewer or more episodes than the metadata count."""
    said, found = about.get("total_episodes"), sum(shard.records or 0 for shard in shards)
    if about.get("data_format") in ARROW:  # its episodes are counted by the metadata
        found = sum(name.isdecimal() for name in storage.listdir(folder))
    if said not in (None, found) and all(shard.records is not None for shard in shards):
        yield f"{storage.join(folder, METADATA)}: total_episodes is {printable(said, 40)}, but there are {found:,}"


def _folders(input: str) -> list[str]:
    """The directories with metadata.json and the data: `input` itself, or its subdirectories."""
    if not storage.isdir(input):
        raise UsageError(f"{input}: no such directory")
    folders = [input, *(storage.join(input, name) for name in storage.listdir(input))]
    datasets = [f for f in folders if storage.isdir(f) and storage.exists(storage.join(f, METADATA))]
    if not datasets:
        raise UsageError(f"{input} is not a Minari dataset: there is no {METADATA} in it, or in its data directory")
    return datasets[:1] if datasets[0] == input else datasets


def _metadata(folder: str) -> dict[str, Any]:
    path = storage.join(folder, METADATA)
    content = read_json(path)
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not valid Minari metadata: fetch the dataset again")
    kind = content.get("data_format", "hdf5")
    if kind not in ("hdf5", *ARROW):
        known = ", ".join(("hdf5", *ARROW))
        raise UsageError(f"{folder}: its data is stored as {shorten(kind)}, but --from=minari reads {known}")
    if kind == "hdf5" and not storage.exists(storage.join(folder, MAIN)):
        raise UsageError(f"{folder} has no {MAIN}: fetch the dataset again")
    check_json(content.get(OWN, {}), {"*": ANY}, f"{path}: {OWN}")
    return content


def _split(about: Mapping[str, Any], folder: str) -> str:
    """The split in a directory, if `--to=minari` wrote it, or `train`."""
    where = storage.join(folder, METADATA)
    with parsing(where):
        return naming.check_name(about.get(OWN, {}).get("split", "train"), f"{where}: {OWN}.split")


def _own_fields(about: Any, where: str) -> tuple[MinariField, ...]:
    with parsing(where):
        fields = []
        for info in about["columns"]:
            field = field_from_json(info, where)
            if field.encoding == "png" or (field.encoding == "jpeg" and not info["jpeg"]):
                field = dataclasses.replace(field, encoding="none", feature="Tensor")
            elif info["jpeg"]:
                field = dataclasses.replace(field, encoding="jpeg", feature="Image")
            fields.append(MinariField(field, info["place"], info["of"]))
    return tuple(fields)


def _fields(path: str, files: MinariFormat | MinariArrowFormat, about: Mapping[str, Any]) -> tuple[MinariField, ...]:
    """The fields of the first episode, for datasets of other programs."""
    where = storage.join(storage.split(path)[0], METADATA)
    jpeg, spaces = bool(about.get("jpeg_encoding", True)), _spaces(about, where)
    try:
        if isinstance(files, MinariArrowFormat):
            arrays = files.read_episode(storage.join(storage.split(path)[0], "0"))
            fields = [_field(place, array, jpeg, spaces) for place, array in sorted(arrays.items())]
        else:
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
    of: Any = "transition" if role in ("actions", "rewards") else "step"
    space = spaces.get(place, {})
    if jpeg and space.get("type") == "Box" and gym_spaces.is_image(np.dtype(space["dtype"]), tuple(space["shape"])):
        shape = tuple(space["shape"])
        return MinariField(Field(name, "uint8", shape if len(shape) == 3 else (*shape, 1), "jpeg", "Image"), place, of)
    if is_text(dataset):
        return MinariField(text_field(name, tuple(dataset.shape[1:])), place, of)
    return MinariField(number_field(name, dataset.dtype.name, tuple(dataset.shape[1:])), place, of)


def _spaces(about: Mapping[str, Any], where: str, *, whole: bool = False) -> dict[str, Any]:
    """The space of each array by its place; with `whole`, also the spaces that contain them."""
    spaces: dict[str, Any] = {}
    for role, name in (("observations", "observation_space"), ("actions", "action_space")):
        if isinstance(about.get(name), str):
            _flat(parse_json(about[name], f"{where}: {name}"), f"{where}: {name}", role, spaces, whole)
    return spaces


def _flat(space: Any, where: str, place: str, spaces: dict[str, Any], whole: bool) -> None:
    check_json(space, _SPACE, where)
    below = space.get("subspaces")
    if isinstance(below, dict):
        for name, child in below.items():
            _flat(child, where, f"{place}/{name}", spaces, whole)
    elif isinstance(below, list):
        for i, child in enumerate(below):
            _flat(child, where, f"{place}/_index_{i}", spaces, whole)
    if whole or below is None:
        spaces[place] = space
