"""Columns of steps from what people have: arrays, tensors, lists, text, encoded images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field, text_field
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.formats.arrays.array_episodes import number_field
from rlds_beam.images.codecs import encode_jpeg, encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.headers import UndecodableImageError, read_image_header, read_pixel_format
from rlds_beam.text import shorten
from rlds_beam.typing import Array

ImageEncoding = Literal["png", "jpeg", "raw"]
IMAGE_ENCODINGS = ("png", "jpeg", "raw")

_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
_CHANNELS = (1, 3, 4)


Images = Mapping[str, ImageEncoding]
"""The encoding in which arrays of pixels are stored, by field: `png` (exact), `jpeg` (lossy), or `raw` (the bytes of
the array). That of the empty path is for all others."""


def check_images(images: ImageEncoding | Mapping[str, ImageEncoding]) -> Images:
    """Checks the argument `images`; raises UsageError if it is neither an encoding nor a dict of them."""
    by_path: dict[str, ImageEncoding] = {"": "png", **images} if isinstance(images, Mapping) else {"": images}
    for name in by_path.values():
        if name not in IMAGE_ENCODINGS:
            raise UsageError(f"images={images!r}: expected {', '.join(IMAGE_ENCODINGS)}, or one of them by field")
    return by_path


def as_step_column(path: str, value: Any, field: Field | None) -> Column | bytes:
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
        return _text(path, value)
    array = _as_array(path, value, field)
    if not array.ndim:
        raise wrong(path, "one value, but expected one for each step; values of an episode go below 'metadata'")
    if array.dtype == object or array.dtype.kind in "SU":
        return _of_objects(path, array, field)
    return array


def as_value(path: str, value: Any, field: Field | None) -> Any:
    """An episode's value: text as bytes, or a numpy scalar or array. Raises BadEpisode for other objects."""
    if isinstance(value, str | bytes):
        return _text(path, value)
    array = _as_array(path, value, field)
    if array.dtype == object or array.dtype.kind in "SU":
        flat = [_text(path, value) for value in array.ravel().tolist()]
        array = np.array([*flat, None], object)[:-1].reshape(array.shape)
        return array if array.ndim else array[()]
    return array[()]


def encode_pixels(path: str, column: Column, field: Field | None, images: Images) -> Column:
    """The column as it is stored: pixels as PNG or JPEG. Raises BadEpisode if they cannot be encoded."""
    if isinstance(column, EncodedImages):
        return column if field is None else dataclasses.replace(column, shape=field.shape, encoding=field.encoding)
    if field is None:
        is_pixels = column.ndim == 4 and column.dtype.name in ("uint8", "uint16") and column.shape[-1] in _CHANNELS
        is_pixels = is_pixels and (column.size > 0 or not len(column))
        encoding = images.get(path, images[""]) if is_pixels else "raw"
    else:
        encoding = "png" if field.encoding == "png" else "jpeg" if field.encoding == "jpeg" else "raw"
    if encoding == "raw":
        return column
    if column.ndim != 4 or column.dtype.name not in ("uint8", "uint16") or not column.size:
        raise wrong(path, f"{column.dtype.name}{list(column.shape[1:])} at each step, but the schema says {field}")
    try:
        data = encode_png(column) if encoding == "png" else encode_jpeg(column)
    except ValueError as error:
        raise wrong(path, str(error)) from None
    shape: tuple[int | None, ...] = column.shape[1:]
    if field is not None:  # a size that differs is found in the image's header
        shape = tuple(d if d is None else s for d, s in zip(field.shape, shape, strict=True))
        if any(d is not None and d != s for d, s in zip(field.shape, column.shape[1:], strict=True)):
            raise wrong(path, f"images of shape {list(column.shape[1:])}, but the schema says {list(field.shape)}")
    return EncodedImages(_objects(map(bytes, data)), shape, column.dtype.name, encoding)


def make_field(path: str, column: Column) -> Field:
    """The field of a stored column. Raises BadEpisode if RLDS has no field of its dtype."""
    if isinstance(column, EncodedImages):
        return Field(path, column.dtype, column.shape, column.encoding, "Image")
    if column.dtype == object:
        return text_field(path, column.shape[1:])
    return field_of_numbers(path, column.dtype, column.shape[1:])


def field_of_numbers(path: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> Field:
    """A field that stores numbers exactly: what a tf.Example would round is stored as bytes."""
    if dtype.name not in DTYPES:
        raise wrong(path, f"{dtype} values, which RLDS cannot store; it has {', '.join(sorted(DTYPES))}")
    field = number_field(path, dtype.name)
    encoding = "bytes" if None in shape or dtype.name == "bfloat16" else field.encoding
    return dataclasses.replace(field, shape=shape, encoding=encoding)


def value_field(path: str, value: Any) -> Field:
    """The field of an episode's value (`as_value`)."""
    if isinstance(value, bytes):
        return text_field(path)
    array = np.asarray(value)
    return text_field(path, array.shape) if array.dtype == object else field_of_numbers(path, array.dtype, array.shape)


def wrong(path: str, detail: str) -> BadEpisode:
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
        raise wrong(path, detail) from None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def _of_objects(path: str, array: Array, field: Field | None) -> Column:
    """Text, or encoded images: an object array of bytes."""
    flat = [_text(path, value) for value in array.ravel().tolist()]
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


def _text(path: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise wrong(path, f"{shorten(repr(value), 60)} is not valid Unicode") from None
    raise wrong(path, f"an object of type {type(value).__name__}, but expected numbers, text, or encoded images")


def _objects(values: Any) -> Array:
    return np.array([*values, None], object)[:-1]
