"""Converts arrays, tensors, lists, text, and encoded images to episodes; the first one gives the schema."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.encoding.tfds.rlds_dataset import encode_example
from rlds_beam.episodes.columns import all_below, below, flatten, with_final_observation
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import Field, Schema, compare_with_schema, episode_flags, text_field
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.formats.arrays.array_episodes import discounts, number_field, with_last
from rlds_beam.images.codecs import encode_jpeg, encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.headers import UndecodableImageError, read_image_header, read_pixel_format
from rlds_beam.text import shorten
from rlds_beam.typing import Array

ImageEncoding = Literal["png", "jpeg", "raw"]
IMAGE_ENCODINGS = ("png", "jpeg", "raw")
Images = Mapping[str, ImageEncoding]
"""The encoding in which arrays of pixels are stored, by field: `png` (exact), `jpeg` (lossy), or `raw` (the bytes of
the array). That of the empty path is for all others."""
METADATA = ("metadata", "episode_metadata")
"""Where a dict has the fields of the episode."""
ENDS = ("terminated", "truncated")
_VOID = ("action", "reward", "discount")
"""The fields that may have one value fewer than the observation: the last step of RLDS has none."""
_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
_CHANNELS = (1, 3, 4)


@dataclasses.dataclass(frozen=True)
class ArrayEpisodes:
    """Converts dicts of arrays to episodes. Picklable.

    Attributes:
      images: how arrays of pixels are stored.
      schema: the schema of all episodes.
    """

    images: Images
    schema: Schema

    @classmethod
    def declared(cls, images: ImageEncoding | Images, schema: Schema) -> ArrayEpisodes:
        """What is known before the first episode: fields whose dtype and shape are given.

        Raises:
          UsageError: RLDS cannot store a field, or there is no such encoding of images.
        """
        by_path: Images = {"": "png", **images} if isinstance(images, Mapping) else {"": images}
        for name in by_path.values():
            if name not in IMAGE_ENCODINGS:
                raise UsageError(f"images={images!r}: expected {', '.join(IMAGE_ENCODINGS)}, or one of them by field")

        def stored(field: Field) -> Field:  # numbers that a tf.Example would round as bytes
            if field.dtype == "string" or field.encoding != "none":
                return field
            return _number_field(field.path, field.numpy_dtype, field.shape)

        try:
            steps = {path: stored(field) for path, field in schema.recorded.steps.items()}
            fields = [stored(dataclasses.replace(field, path=_name(path))) for path, field in schema.metadata.items()]
        except (BadEpisode, TypeError) as error:
            raise UsageError(f"schema: {error}") from error
        return cls(by_path, Schema(steps, {field.path: field for field in fields}))

    def like(self, content: Any) -> ArrayEpisodes:
        """Converts episodes with the fields of this one.

        Raises:
          BadEpisode: it is no episode of arrays.
          UsageError: RLDS cannot store a field.
        """
        given, episode = self.schema, self.columns(content, EpisodeKey("arrays", "train", 0, 0))
        steps = {path: given.steps.get(path) or _field(path, column) for path, column in episode.steps.items()}
        metadata = {p: given.metadata.get(p) or _value_field(p, value) for p, value in episode.metadata.items()}
        missing = [*(given.steps.keys() - steps.keys()), *(given.metadata.keys() - metadata.keys())]
        if missing:
            detail = f"the episode has no {missing[0]}, which the schema declares"
            raise BadEpisode(Violation("missing_field", detail, missing[0]))
        schema = Schema(steps, metadata)
        schema.check_fields("episode 0")
        return dataclasses.replace(self, schema=schema)

    def episode(self, content: Any, key: EpisodeKey) -> Episode:
        """The episode, with its record as `payload`; one with faults if it cannot be written.

        Args:
          content: the dict, or an `Episode`.
          key: the key of the episode.
        """
        try:
            episode = self.columns(content, key)
        except BadEpisode as bad:
            return Episode(key, {}, faults=bad.violations)
        faults = tuple(compare_with_schema(episode, self.schema))
        # What does not match the schema is kept as it is, for `rejected/`.
        payload = _record(episode, None if faults else self.schema)
        if faults:
            return Episode(key, {}, payload=payload, faults=faults)
        metadata = {f"{METADATA[1]}/{path}": value for path, value in episode.metadata.items()}
        return episode.replace(payload=payload, metadata=metadata)

    def columns(self, content: Any, key: EpisodeKey) -> Episode:
        """The columns of an episode, not yet compared with the schema; raises BadEpisode if it has none."""
        if isinstance(content, Episode):
            if content.faults:
                raise BadEpisode(*content.faults)
            content = with_final_observation(content)  # in RLDS, a last action is void
            return Episode(key, content.steps, {_name(path): v for path, v in content.metadata.items()})
        steps, metadata, ends = _content(content)
        fields, values = self.schema.steps, self.schema.metadata
        given = {path: _step_column(path, value, fields.get(path)) for path, value in steps.items()}
        columns = _align(given)
        length = len(next(iter(columns.values()))) if columns else 0
        columns |= _derive(columns, ends, length)
        stored = {path: _encode_pixels(path, columns[path], fields.get(path), self.images) for path in sorted(columns)}
        own = {path: _value(path, value, values.get(path)) for path, value in sorted(metadata.items())}
        return Episode(key, stored, own)


def _content(content: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The step fields of a dict, the episode's fields, and its ending.

    Also reads `{"steps": [...], ...}` as TFDS's builders yield it.
    """
    if not isinstance(content, Mapping):
        raise BadEpisode(Violation("not_an_example", f"a {type(content).__name__}, but expected a dict of arrays"))
    outer = dict(content)
    ends = {name: outer.pop(name) for name in ENDS if name in outer}
    metadata: dict[str, Any] = {}
    for name in METADATA:
        metadata |= _flat(outer.pop(name, {}), name)
    if "steps" in outer:
        steps = _flat(_of_steps(outer.pop("steps")), "steps")
        metadata |= _flat(outer, "metadata")
    else:
        steps = _flat(outer, "the episode")
    absent = [name for name in ("observation", "action") if not all_below(steps, name)]
    if absent:
        detail = f"the episode has no {absent[0]}, which RLDS requires; it has {', '.join(sorted(steps)) or 'nothing'}"
        raise BadEpisode(Violation("missing_field", detail, absent[0]))
    return steps, metadata, ends


def _flat(nested: Any, where: str) -> dict[str, Any]:
    """The leaves of nested dicts by path."""
    if not isinstance(nested, Mapping):
        raise BadEpisode(Violation("not_an_example", f"{where}: a {type(nested).__name__}, but expected a dict"))
    leaves = {path: v for name, value in nested.items() for path, v in flatten(value, str(name)).items()}
    for path in leaves:
        if "" in path.split("/"):
            raise BadEpisode(Violation("not_an_example", f"{where}: a field has an empty name: {path!r}"))
        parent = next((other for other in leaves if other != path and below(path, other)), None)
        if parent is not None:
            raise BadEpisode(Violation("not_an_example", f"{parent} is a value, so {path} cannot be below it", path))
    return leaves


def _of_steps(steps: Any) -> Any:
    """Steps as lists by path, if they are a list of dicts."""
    if isinstance(steps, Mapping) or not isinstance(steps, Sequence):
        return steps
    rows = [_flat(step, f"step {i}") for i, step in enumerate(steps)]
    for i, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            name = min(row.keys() ^ rows[0].keys())
            raise BadEpisode(Violation("missing_field", f"steps 0 and {i} have different fields", name, i))
    return {path: [row[path] for row in rows] for path in rows[0]} if rows else {}


def _align(given: Mapping[str, Column | bytes]) -> dict[str, Column]:
    """Columns of equal length: texts repeated, and void values for the last step if it has an observation alone."""
    lengths = {path: len(column) for path, column in given.items() if not isinstance(column, bytes)}
    observed = [lengths[path] for path in all_below(lengths, "observation")] or list(lengths.values())
    steps = max(observed, key=observed.count, default=0)
    columns: dict[str, Column] = {}
    wrong: list[Violation] = []
    for path, column in given.items():
        if isinstance(column, bytes):
            columns[path] = np.full(steps, column, object)
        elif len(column) == steps - 1 and any(below(path, name) for name in _VOID):
            columns[path] = with_last(column)
        else:
            columns[path] = column
            if len(column) != steps:
                detail = f"{len(column)} values, but the observations have {steps}"
                wrong.append(Violation("unequal_lengths", detail, path))
    if wrong:
        raise BadEpisode(*wrong)
    return columns


def _derive(columns: Mapping[str, Column], ends: Mapping[str, Any], length: int) -> dict[str, Array]:
    """The flags, reward, and discount that an episode lacks."""
    if ends and "is_terminal" in columns:
        detail = f"the episode has both is_terminal and {', '.join(ends)}: give one of them"
        raise BadEpisode(Violation("not_an_example", detail, "is_terminal"))
    last = {name: _at_the_end(name, value) for name, value in ends.items()}
    terminal = last.get("terminated", not last.get("truncated", True))
    derived = {path: column for path, column in episode_flags(length, terminal=terminal).items() if path not in columns}
    if not all_below(columns, "reward"):
        derived["reward"] = np.zeros(length, np.float32)
    if not all_below(columns, "discount"):
        flags = columns.get("is_terminal", derived.get("is_terminal"))
        derived["discount"] = discounts(np.asarray(flags, bool).reshape(length))
    return derived


def _at_the_end(name: str, value: Any) -> bool:
    """Whether an episode ended so: one truth value, or one for each step, of which only the last may be true."""
    array = np.asarray(_as_array(name, value, None), bool).ravel()
    early = np.flatnonzero(array[:-1])
    if len(early):
        detail = f"True at step {early[0]} of {len(array)}: cut the data into episodes first"
        raise BadEpisode(Violation("unexpected_is_last", detail, name, int(early[0])))
    return bool(array[-1]) if len(array) else False


def _name(path: str) -> str:
    """The path of an episode's field below `episode_metadata`, which all written datasets have."""
    return path.removeprefix(f"{METADATA[1]}/")


def _record(episode: Episode, schema: Schema | None) -> bytes:
    """The episode as a tf.Example; empty if what does not match the schema cannot be stored."""
    if schema is not None:
        return encode_example(episode, schema)
    try:
        own = {path: _field(path, column) for path, column in episode.steps.items()}
        return encode_example(episode, Schema(own, {p: _value_field(p, v) for p, v in episode.metadata.items()}))
    except (AttributeError, OverflowError, TypeError, ValueError, BadEpisode):
        return b""


def _step_column(path: str, value: Any, field: Field | None) -> Column | bytes:
    """A step field as a column, or a text that is the same at every step; pixels are not encoded yet.

    Args:
      path: the field's path.
      value: anything with `__array__`, a list with an entry for each step, or a text for all steps.
      field: the declared field, whose dtype Python numbers take; None if it is not declared.

    Raises:
      BadEpisode: the value is no column.
    """
    if isinstance(value, EncodedImages):
        return value
    if isinstance(value, str | bytes):
        return _encode_text(path, value)
    array = _as_array(path, value, field)
    if not array.ndim:
        raise _wrong(path, "one value, but expected one for each step; values of an episode go below 'metadata'")
    if array.dtype == object or array.dtype.kind in "SU":
        return _of_objects(path, array, field)
    return array


def _value(path: str, value: Any, field: Field | None) -> Any:
    """An episode's value: text as bytes, or a numpy scalar or array. Raises BadEpisode for other objects."""
    if isinstance(value, str | bytes):
        return _encode_text(path, value)
    array = _as_array(path, value, field)
    if array.dtype == object or array.dtype.kind in "SU":
        array = _objects(_encode_text(path, value) for value in array.ravel().tolist()).reshape(array.shape)
    return array[()]


def _encode_pixels(path: str, column: Column, field: Field | None, images: Images) -> Column:
    """The column as it is stored: pixels as PNG or JPEG. Raises BadEpisode if they cannot be encoded."""
    if isinstance(column, EncodedImages):
        return column if field is None else dataclasses.replace(column, shape=field.shape, encoding=field.encoding)
    pixels = column.ndim == 4 and column.dtype.name in ("uint8", "uint16") and column.size > 0
    if field is not None:
        encoding = field.encoding if field.encoding in ("png", "jpeg") else "raw"
    else:
        encoding = images.get(path, images[""]) if pixels and column.shape[-1] in _CHANNELS else "raw"
    if encoding == "raw":
        return column
    size = column.shape[1:]
    if not pixels:
        raise _wrong(path, f"{column.dtype.name}{list(size)} at each step, but the schema says {field}")
    if field is not None and any(wanted not in (None, d) for wanted, d in zip(field.shape, size, strict=True)):
        raise _wrong(path, f"images of shape {list(size)}, but the schema says {list(field.shape)}")
    try:
        data = encode_png(column) if encoding == "png" else encode_jpeg(column)
    except ValueError as error:
        raise _wrong(path, str(error)) from None
    shape = size if field is None else field.shape
    return EncodedImages(_objects(map(bytes, data)), shape, column.dtype.name, encoding)


def _field(path: str, column: Column) -> Field:
    """The field of a stored column. Raises BadEpisode if RLDS has no field of its dtype."""
    if isinstance(column, EncodedImages):
        return Field(path, column.dtype, column.shape, column.encoding, "Image")
    if column.dtype == object:
        return text_field(path, column.shape[1:])
    return _number_field(path, column.dtype, column.shape[1:])


def _value_field(path: str, value: Any) -> Field:
    """The field of an episode's value."""
    return _field(path, _objects([value]) if isinstance(value, bytes) else np.asarray(value)[np.newaxis])


def _number_field(path: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> Field:
    """A field that stores numbers exactly: what a tf.Example would round is stored as bytes."""
    if dtype.name not in DTYPES:
        raise _wrong(path, f"{dtype} values, which RLDS cannot store; it has {', '.join(sorted(DTYPES))}")
    field = number_field(path, dtype.name)
    encoding = "bytes" if None in shape or dtype.name == "bfloat16" else field.encoding
    return dataclasses.replace(field, shape=shape, encoding=encoding)


def _wrong(path: str, detail: str) -> BadEpisode:
    """The error for a value that is no column."""
    return BadEpisode(Violation("wrong_dtype_or_shape", detail, path))


def _as_array(path: str, value: Any, field: Field | None) -> Array:
    """The value as an array with the machine's byte order; only Python numbers take the declared dtype."""
    own = hasattr(value, "__array__") or hasattr(value, "__array_interface__")
    declared = None
    if field is not None and not own and not field.holds_image_files:
        declared = field.numpy_dtype
    if isinstance(value, Sequence) and value and isinstance(value[0], bytes):
        declared = np.dtype(object)  # numpy would cut zeros off the end
    try:
        array = np.asarray(value, declared)
        if array.dtype.kind in "SU" and not own:  # numpy would turn numbers between texts into text
            array = np.asarray(value, object)
    except Exception as error:  # whatever a tensor library raises: for example a tensor on a GPU
        if isinstance(value, Sequence) and not own:
            detail = f"the steps have different shapes, or are no numbers: {shorten(error)}"
        else:
            detail = f"a {type(value).__name__} that is no array: {shorten(error)}"
        raise _wrong(path, detail) from None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def _of_objects(path: str, array: Array, field: Field | None) -> Column:
    """Text, or encoded images: an object array of bytes."""
    flat = [_encode_text(path, value) for value in array.ravel().tolist()]
    data = _objects(flat)
    images = field.holds_image_files if field is not None else bool(flat) and flat[0].startswith(_STARTS)
    if not images or array.ndim != 1:
        return data.reshape(array.shape)
    if field is not None:
        return EncodedImages(data, field.shape, field.dtype, field.encoding)
    try:
        header, (dtype, channels) = read_image_header(flat[0]), read_pixel_format(flat[0])
    except UndecodableImageError as error:
        raise BadEpisode(Violation("undecodable_image", f"{error} at step 0", path, 0)) from None
    kind = "png" if flat[0].startswith(_STARTS[0]) else "jpeg"
    return EncodedImages(data, (header.height, header.width, channels), dtype, kind)


def _encode_text(path: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise _wrong(path, f"{shorten(repr(value), 60)} is not valid Unicode") from None
    raise _wrong(path, f"an object of type {type(value).__name__}, but expected numbers, text, or encoded images")


def _objects(values: Any) -> Array:
    return np.array([*values, None], object)[:-1]
