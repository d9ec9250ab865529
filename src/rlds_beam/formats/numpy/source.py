"""Arrays written by `convert --to=numpy` as a source: `--from=numpy`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.base import Damage
from rlds_beam.encoding.checked_json import parsing
from rlds_beam.episodes.columns import exact_cast
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field, Schema, by_path
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import ArrayDecoder, ArrayFormat, Arrays, encoded_images, split_bytes
from rlds_beam.formats.arrays.array_files import no_features, select_splits
from rlds_beam.formats.arrays.leaves import field_from_json
from rlds_beam.formats.numpy.output import OFFSETS
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.output.files import APPEND, MANIFEST
from rlds_beam.output.manifest import load_manifest, read_manifest
from rlds_beam.reading.base import LastAction, Shard, Source, Split
from rlds_beam.reading.changes import files_in
from rlds_beam.reading.directory_listing import names_below, names_in
from rlds_beam.reading.meaning import KEY, Meaning
from rlds_beam.typing import Array

_MAX_NAMES = 64
"""Maximum number of names in a directory of this format: files of rlds-beam, and a directory for each split."""


@dataclasses.dataclass(frozen=True)
class NumpyField:
    """A field and its file.

    Attributes:
      field: a field of the steps, or of the episode, as it is read.
      file: the file name, without `.npy`.
      of_episode: whether it is a field of the episode.
      as_bytes: whether its values are bytes of varying length.
    """

    field: Field
    file: str
    of_episode: bool
    as_bytes: bool

    @classmethod
    def of(cls, content: Any, where: str) -> NumpyField:
        """A field of the manifest (`where`)."""
        field, as_bytes = field_from_json(content, where), bool(content["as_bytes"])
        if field.holds_image_files:
            encoding = "jpeg" if as_bytes and not content["of_episode"] else field.encoding if as_bytes else "none"
            field = dataclasses.replace(field, encoding=encoding, feature="Image" if as_bytes else "Tensor")
        file = content["file"]
        if not naming.is_file_name(file):
            raise ValueError(f"{file!r} is not a plain file name")
        return cls(field, file, bool(content["of_episode"]), as_bytes)


@dataclasses.dataclass(frozen=True)
class NumpyFormat(ArrayFormat):
    """The directory of arrays of a split; its path is `episode_offsets.npy`.

    Attributes:
      fields: the stored fields.
    """

    fields: tuple[NumpyField, ...]
    name = "numpy"

    def count(self, path: str) -> int:
        return len(_offsets(path)) - 1

    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        folder = storage.split(path)[0]
        offsets = _offsets(path)
        try:
            arrays = {field.file: _load(storage.join(folder, f"{field.file}.npy")) for field in self.fields}
            ends = {
                field.file: _offsets(storage.join(folder, f"{field.file}.offsets.npy"), len(arrays[field.file]))
                for field in self.fields
                if field.as_bytes
            }
        except OSError as error:
            raise OSError(f"an array cannot be read: {error}") from error
        rows = {field.file: len(ends.get(field.file, arrays[field.file])) - field.as_bytes for field in self.fields}
        for field in self.fields:
            wanted = len(offsets) - 1 if field.of_episode else int(offsets[-1])
            if rows[field.file] < wanted:
                raise OSError(f"{field.file}.npy has {rows[field.file]} rows, but the episodes have {wanted}")
        for i in range(start, stop):
            part = {True: (i, i + 1), False: (int(offsets[i]), int(offsets[i + 1]))}
            yield {
                field.file: _rows(arrays[field.file], ends.get(field.file), *part[field.of_episode])
                for field in self.fields
            }


def _load(path: str) -> Array:
    storage.check_regular(path)
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # the header is parsed as Python, so a damaged one can raise almost anything
        raise OSError(f"{path} is not an array: {type(error).__name__}") from error
    if not isinstance(array, np.ndarray) or not array.ndim:  # a renamed .npz file, or a single number
        raise OSError(f"{path} is not an array of rows")
    return array


def _offsets(path: str, last: int | None = None) -> Array:
    """The start of each row, then the end of the last one, which is at most `last`."""
    array = _load(path)
    offsets: Array = np.asarray(array)
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not len(offsets):
        raise OSError(f"{path} holds {offsets.dtype}{list(offsets.shape)}, not offsets")
    if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any() or (last is not None and offsets[-1] > last):
        raise OSError(f"{path}: the offsets do not describe consecutive rows")
    return offsets


def _rows(array: Array, ends: Array | None, start: int, stop: int) -> Array:
    if ends is None:
        return np.array(array[start:stop])
    data = array[int(ends[start]) : int(ends[stop])].tobytes()
    return split_bytes(data, np.diff(ends[start : stop + 1]))


@dataclasses.dataclass(frozen=True)
class NumpyDecoder(ArrayDecoder):
    """Decodes rows of the arrays into episodes.

    Attributes:
      schema: see `ArrayDecoder`.
      fields: the stored fields.
    """

    fields: tuple[NumpyField, ...]

    def convert_arrays(self, arrays: Arrays) -> tuple[Mapping[str, Column], Mapping[str, Any]]:
        steps: dict[str, Column] = {}
        metadata: dict[str, Any] = {}
        for stored in self.fields:
            values, field = arrays[stored.file], stored.field
            if field.encoding == "jpeg" and not stored.of_episode:
                images = encoded_images(values, field.path)
                steps[field.path] = EncodedImages(images, field.shape, field.dtype)
                continue
            if not stored.as_bytes:
                values = exact_cast(values, field.numpy_dtype, field.path)
            if stored.of_episode:
                metadata[field.path] = values[0]
            else:
                steps[field.path] = values
        return steps, metadata


@dataclasses.dataclass(frozen=True)
class NumpySource(Source):
    """A finished output of `convert --to=numpy`. Attributes: see `Source`; `checksums` by file."""

    dataset: str
    schema: Schema
    files: NumpyFormat
    decoder: NumpyDecoder
    splits: tuple[Split, ...]
    checksums: Mapping[str, str]
    violations: tuple[Any, ...] = ()
    fps: float | None = None
    robot: str | None = None
    last_action: LastAction = "unknown"

    @classmethod
    def open(cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None) -> NumpySource:
        no_features("numpy", features)
        if not isinstance(input, str):
            raise UsageError("--from=numpy takes one directory, the output of convert --to=numpy")
        if storage.scheme(input) is not None:
            raise UsageError(f"cannot read {input}: arrays are read from local disks only; copy it first")
        manifest = read_manifest(input)
        if not isinstance(manifest.get("numpy"), dict):
            raise UsageError(f"{input} holds no arrays: it was converted with another --to")
        where = storage.join(input, MANIFEST)
        with parsing(where):
            fields = tuple(NumpyField.of(entry, where) for entry in manifest["numpy"]["fields"])
            meaning = Meaning.from_json(manifest["numpy"].get(KEY, {}), where)
        shards: dict[str, tuple[Shard, ...]] = {}
        entries = {entry["file"]: entry for entry in manifest["shards"]}
        appended = load_manifest(storage.join(input, APPEND))  # there while an append replaces files, the offsets last
        for entry in appended["shards"] if appended is not None else ():
            path = storage.below(input, entry["file"])
            if storage.exists(path) and storage.size(path) == entry["bytes"]:
                entries[entry["file"]] = entry
        for entry in entries.values():
            folder, name = storage.split(entry["file"])
            if name == f"{OFFSETS}.npy":
                size = sum(other["bytes"] for other in entries.values() if other["split"] == entry["split"])
                shards[entry["split"]] = (Shard(0, storage.join(input, folder, name), size, entry["records"]),)
        steps = by_path((field.field for field in fields if not field.of_episode), input)
        schema = Schema(steps, by_path((field.field for field in fields if field.of_episode), input))
        splits = select_splits(shards, split, manifest["name"])
        checksums = {file: entry["checksum"] for file, entry in entries.items()}
        decoder = NumpyDecoder(schema, fields)
        return cls(
            f"{manifest['name']}/1.0.0",
            schema,
            NumpyFormat(fields),
            decoder,
            splits,
            checksums,
            fps=meaning.fps,
            robot=meaning.robot,
            last_action=meaning.last_action,
        )

    @classmethod
    def recognize(cls, path: str) -> str | None:
        names = names_in(path)
        folders = names if MANIFEST in names and len(names) < _MAX_NAMES else ()
        return next((f"{name}/{OFFSETS}.npy" for name in folders if f"{OFFSETS}.npy" in names_below(path, name)), None)

    def companions(self, shard: Shard) -> list[str]:
        return [path for path in files_in([storage.split(shard.path)[0]]) if path != shard.path]

    def plan(self) -> dict[str, Any]:
        return {"checksums": dict(self.checksums)}
