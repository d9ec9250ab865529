"""Replay buffers of diffusion policy and UMI (zarr) as a source: `--from=zarr`.

    data/img              (steps, 96, 96, 3)        observation/img
    data/action           (steps, 2)                action
    meta/episode_ends     (episodes,)               the step after the last of each episode

A row is a step, as in LeRobot: the action of a row belongs to the state of that row, also in the last row. An episode
ends truncated (`is_last`), because a replay buffer does not say that it terminated; without rewards, they are zero.
What `--to=zarr` wrote is read back as it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.checked_json import TEXT, Kind, check_json, parsing
from rlds_beam.episodes.columns import exact_cast, exact_flags
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import FLAGS, Field, Schema, by_path, episode_flags, text_field
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import (
    FLAG_FIELDS,
    NO_REWARD,
    UNREADABLE,
    ArrayDecoder,
    Arrays,
    discounts,
    encoded_images,
    number_field,
)
from rlds_beam.formats.arrays.array_files import SourceOfFiles, find_files, make_shard, no_features, select_splits
from rlds_beam.formats.arrays.leaves import field_from_json
from rlds_beam.formats.arrays.parts import as_images
from rlds_beam.formats.format_options import ZarrSourceOptions
from rlds_beam.formats.zarr.store import (
    ENDS,
    METADATA,
    OWN,
    ZarrFormat,
    ZarrStore,
    is_text,
    is_zip,
    missing_chunks,
    open_store,
    shard_path,
    store_root,
)
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.options import Options
from rlds_beam.reading.base import LastAction, Shard
from rlds_beam.reading.directory_listing import names_below
from rlds_beam.reading.meaning import KEY, Meaning
from rlds_beam.text import count
from rlds_beam.typing import Array

_ROLES = {"actions": "action", "rewards": "reward"}
_TOP = ("action", "reward", "discount", *FLAGS)
_ENDINGS = (".zarr", ".zarr.zip")
_MIN_IMAGE_PIXELS = 8
"""Pixels; a smaller array is not an image."""


@dataclasses.dataclass(frozen=True)
class ZarrField:
    """A field and its array.

    Attributes:
      field: a field of the steps, or of the episode.
      key: the key of the array.
      of_episode: whether it is a field of the episode.
    """

    field: Field
    key: str
    of_episode: bool = False


@dataclasses.dataclass(frozen=True)
class ZarrDecoder(ArrayDecoder):
    """Decodes rows of the arrays into episodes.

    Attributes:
      schema: see `ArrayDecoder`.
      fields: the stored fields.
      real: whether last actions are real.
    """

    fields: tuple[ZarrField, ...]
    real: bool = True

    def convert_arrays(self, arrays: Arrays) -> tuple[Mapping[str, Column], Mapping[str, Any]]:
        steps: dict[str, Column] = {}
        metadata: dict[str, Any] = {}
        rows = 0
        for stored in self.fields:
            values, field = arrays[stored.key], stored.field
            if stored.of_episode:
                metadata[field.path] = _of_kind(values, field)[0]
                continue
            rows = len(values)
            if field.holds_image_files:
                images = encoded_images(values, field.path)
                steps[field.path] = EncodedImages(images, field.shape, field.dtype, field.encoding)
            elif field.path in FLAGS:
                steps[field.path] = exact_flags(values, field.path).reshape(rows)
            else:
                steps[field.path] = _of_kind(values, field)
        steps = {**episode_flags(rows, terminal=False), **steps}
        steps.setdefault("reward", np.zeros(rows, np.float32))
        steps.setdefault("discount", discounts(np.asarray(steps["is_terminal"]), real=self.real))
        return steps, metadata


def _of_kind(values: Array, field: Field) -> Array:
    if field.dtype == "string":
        return values
    return exact_cast(values.reshape(len(values), *field.closed_shape), field.numpy_dtype, field.path)


@dataclasses.dataclass(frozen=True)
class ZarrSource(SourceOfFiles):
    """Replay buffers. Attributes: see `Source`.

    Attributes:
      notes: what the data lacks.
    """

    reads_several = True
    options_class: ClassVar[type[Options]] = ZarrSourceOptions
    notes: tuple[str, ...] = ()
    last_action: LastAction = "real"

    @classmethod
    def open(
        cls,
        input: str | Sequence[str],
        *,
        split: str | None = None,
        features: str | None = None,
        options: ZarrSourceOptions | None = None,
    ) -> ZarrSource:
        no_features("zarr", features)
        name, roots = _stores(input)
        first = next(iter(roots.values()))[0]
        shard_path(first)  # says what is missing
        try:
            with open_store(first) as store:
                fields = tuple(_fields(store))
                if options is not None:
                    fields = tuple(_as_images(field, options.raw_images) for field in fields)
                notes = tuple(_notes(store, fields))
                about = store.attributes().get(OWN)
                own = about.get(KEY) if isinstance(about, dict) else None
                meaning = Meaning() if own is None else Meaning.from_json(own, f"{store.root}: {OWN}")
        except UNREADABLE as error:
            raise UsageError(f"{first} cannot be read: {error}") from error
        files = ZarrFormat(
            tuple(field.key for field in fields if not field.of_episode),
            tuple(field.key for field in fields if field.of_episode),
            frozenset(field.key for field in fields if field.field.holds_image_files),
            frozenset(field.key for field in fields if field.field.encoding == "jpeg"),
        )
        steps = by_path((field.field for field in fields if not field.of_episode), first)
        steps = {"reward": Field("reward", "float32"), "discount": Field("discount", "float32"), **FLAG_FIELDS, **steps}
        schema = Schema(steps, by_path((field.field for field in fields if field.of_episode), first))
        shards = {name: _shards(files, some) for name, some in roots.items()}
        return cls(
            f"{name}/1.0.0",
            schema,
            ZarrDecoder(schema, fields, meaning.last_action != "void"),
            select_splits(shards, split, name),
            files,
            (),
            meaning.fps,
            meaning.robot,
            notes,
            "void" if meaning.last_action == "void" else "real",
        )

    @classmethod
    def reads_together(cls, why: str, other: str) -> bool:
        return True

    @classmethod
    def recognize(cls, path: str) -> str | None:
        if is_zip(path):
            return "a .zarr.zip file" if path.endswith(_ENDINGS) and storage.exists(path) else None
        return ENDS if any(name in METADATA for name in names_below(path, *ENDS.split("/"))) else None

    def describe(self) -> str:
        return ", ".join([super().describe(), *self.notes])

    def companions(self, shard: Shard) -> list[str]:
        if is_zip(shard.path):
            return []
        root = store_root(shard.path)
        with open_store(root) as store:
            described = [f"{key}/{name}" for key in store.arrays("data") for name in METADATA]
            paths = [storage.join(root, *key.split("/")) for key in {*store, *described}]
        return sorted(path for path in paths if path != shard.path and storage.exists(path))


def _stores(input: str | Sequence[str]) -> tuple[str, Mapping[str, tuple[str, ...]]]:
    """The name of the dataset, and the stores of each split."""
    paths = storage.paths_in(input)
    if len(paths) == 1 and storage.isdir(paths[0]) and ZarrSource.recognize(paths[0].rstrip("/")) is None:
        found = find_files(paths[0], _ENDINGS, "zarr")
        return found.name, found.splits
    roots = [root for path in paths for root in ([path] if storage.isdir(path) else storage.glob(path))]
    if not roots:
        raise UsageError(f"{','.join(paths)}: no such file or directory")
    for root in roots:
        shard_path(root)
    name = storage.split(roots[0].rstrip("/"))[1]
    for ending in (".zip", ".zarr"):
        name = name.removesuffix(ending)
    return naming.to_name(name), {"train": tuple(root.rstrip("/") for root in roots)}


def _shards(files: ZarrFormat, roots: Sequence[str]) -> tuple[Shard, ...]:
    shards = []
    for i, root in enumerate(roots):
        path = shard_path(root)
        size = storage.size(path) if is_zip(path) else sum(ZarrStore(root, None).sizes().values())
        shards.append(make_shard(files, i, path, size))
    return tuple(shards)


def _fields(store: ZarrStore) -> Iterator[ZarrField]:
    """The fields of a store. Raises OSError or UsageError if it has none, or one that cannot be read."""
    if OWN in (found := store.attributes()):
        yield from _own_fields(found[OWN], f"{store.root}: {OWN}")
        return
    episodes = store.open(ENDS).shape[0]
    keys = store.arrays("data")
    if not keys:
        raise OSError("it has no arrays below data")
    for key in keys:
        yield _field(key, store.open(key), False)
    for key in store.arrays("meta"):
        try:
            array = store.open(key)
        except OSError:  # nothing that an episode needs
            continue
        if key != ENDS and array.shape[0] == episodes:
            yield _field(key, array, True)


def _field(key: str, array: Any, of_episode: bool) -> ZarrField:
    name, shape = key.partition("/")[2], tuple(array.shape[1:])
    parts = name.split("/")
    path = _ROLES.get(name, name)
    if not of_episode and path not in _TOP and parts[0] not in ("observation", "action"):
        path = f"observation/{name}"
    if is_text(array):
        return ZarrField(text_field(path, shape), key, of_episode)
    if path in ("reward", "discount", *FLAGS) and shape == (1,):
        shape = ()
    if path in FLAGS:
        return ZarrField(FLAG_FIELDS[path], key)
    if not of_episode and array.dtype == np.uint8 and _has_image_shape(array):
        return ZarrField(Field(path, "uint8", shape, "png", "Image"), key)
    return ZarrField(number_field(path, array.dtype.newbyteorder("=").name, shape), key, of_episode)


def _as_images(field: ZarrField, raw_images: str) -> ZarrField:
    if field.of_episode or field.field.encoding != "png" or raw_images == "png":
        return field
    pixels = dataclasses.replace(field.field, encoding="bytes", feature="Tensor")
    return dataclasses.replace(field, field=as_images(pixels, raw_images))


def _has_image_shape(array: Any) -> bool:
    shape = array.shape[1:]
    return len(shape) == 3 and shape[2] in (1, 3, 4) and min(shape[:2]) >= _MIN_IMAGE_PIXELS


_OWN_FIELD = {
    "key": Kind("the key of an array", lambda key: naming.is_file_path(key) and key.split("/")[0] in ("data", "meta")),
    "of_episode": Kind("true or false", lambda value: isinstance(value, bool)),
    "*": Kind("anything", lambda value: True),
}


def _own_fields(about: Any, where: str) -> Iterator[ZarrField]:
    """The fields that `--to=zarr` wrote."""
    check_json(about, {"dataset": TEXT, "fields": [_OWN_FIELD]}, where)
    with parsing(where):
        for info in about["fields"]:
            field = field_from_json(info, where)
            if field.encoding == "jpeg" and not info["of_episode"]:
                field = dataclasses.replace(field, encoding="png")
            yield ZarrField(field, info["key"], info["of_episode"])


def _notes(store: ZarrStore, fields: Sequence[ZarrField]) -> Iterator[str]:
    """Notes on missing data."""
    arrays = {field.key: store.open(field.key) for field in fields}
    paths = {field.field.path for field in fields}
    if not any(path == "action" or path.startswith("action/") for path in paths):
        yield "no action (see NextStateAsAction)"
    if "reward" not in paths:
        yield NO_REWARD
    for stored in fields:
        array = arrays[stored.key]
        if not stored.of_episode and array.dtype.kind == "f" and _has_image_shape(array):
            yield f"{stored.key} holds images of {array.dtype.name} (read as an array)"
    for key, missing, total in missing_chunks(store, arrays):
        yield f"{key} lacks {missing:,} of {count(total, 'chunk')} (read as {arrays[key].fill_value})"
