"""Checks episodes against their dataset's schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import Violation
from rlds_beam.images.encoded_images import EncodedImages


def compare_with_schema(episode: Episode, schema: Schema) -> list[Violation]:
    """Compares the fields of an episode with the schema: missing or extra fields, dtypes, shapes, and lengths.

    Does not read values: it takes some microseconds, whatever the episode's length.
    """
    violations: list[Violation] = []
    steps, fields = episode.steps, schema.steps
    for path, field in fields.items():
        column = steps.get(path)
        if column is None:
            violations.append(_missing(path))
        elif (wrong := _column_difference(column, field)) is not None:
            violations.append(Violation("wrong_dtype_or_shape", wrong, path))
    for path, field in schema.metadata.items():
        if path not in episode.metadata:
            violations.append(_missing(path))
        elif (wrong := _value_difference(episode.metadata[path], field)) is not None:
            violations.append(Violation("wrong_dtype_or_shape", wrong, path))
    if len(steps) > len(fields) or len(episode.metadata) > len(schema.metadata):
        more = [*(steps.keys() - fields.keys()), *(episode.metadata.keys() - schema.metadata.keys())]
        detail = "not in the schema, so it would not be written"
        violations += [Violation("wrong_dtype_or_shape", detail, path) for path in sorted(more)]
    lengths = {len(column) for column in steps.values()} if not violations else ()
    if len(lengths) > 1:
        violations += _unequal_lengths(steps)
    return violations


def _missing(path: str) -> Violation:
    return Violation("missing_field", f"the episode has no {path}", path)


def _unequal_lengths(steps: Mapping[str, Column]) -> Iterator[Violation]:
    """A violation for each column whose length differs from the most common one."""
    common, votes = Counter(map(len, steps.values())).most_common(1)[0]
    for path, column in steps.items():
        if len(column) != common:
            detail = f"{len(column)} steps, but {votes} of {len(steps)} fields have {common}"
            yield Violation("unequal_lengths", detail, path)


def _column_difference(column: Column, field: Field) -> str | None:
    """The difference between a column and its field; None if there is none."""
    if isinstance(column, EncodedImages):
        if field.holds_image_files and (column.dtype, column.shape) == (field.dtype, field.shape):
            return None
        actual = f"encoded images of {column.dtype}{_dims(column.shape)}"
        return f"{actual}, but the schema says {field.dtype}{_dims(field.shape)} ({field.encoding})"
    if not isinstance(column, np.ndarray) or not column.ndim:
        return f"a {type(column).__name__}, but expected an array with a value for each step"
    shape = column.shape[1:]
    if column.dtype == field.numpy_dtype and shape == field.shape and not field.holds_image_files:
        return None
    return _difference(column.dtype, shape, field, "at each step")


def _value_difference(value: Any, field: Field) -> str | None:
    """The difference between a value of the episode and its field; None if there is none."""
    if isinstance(value, (str, bytes)):
        if (field.dtype == "string" and not field.shape) or field.holds_image_files:
            return None
        return f"text, but the schema says {field.dtype}{_dims(field.shape)}"
    array = np.asarray(value)
    if array.dtype == field.numpy_dtype and array.shape == field.shape and not field.holds_image_files:
        return None
    if isinstance(value, (bool, int, float)) and not field.shape and array.dtype.kind == field.numpy_dtype.kind:
        return None  # a Python number has no dtype
    return _difference(array.dtype, array.shape, field, "")


def _difference(dtype: np.dtype[Any], shape: tuple[int, ...], field: Field, where: str) -> str | None:
    """Compares dtypes and shapes that are not equal: open dimensions, text, and fields that only TFDS decodes."""
    if not field.fast:
        return None
    open_shape = None in field.shape
    if open_shape and dtype.kind == "O" and (not shape or not where):
        return None  # an array for each step, of varying shapes
    is_kind = dtype == field.numpy_dtype or (field.dtype == "string" and dtype.kind in "SU")
    is_shape = len(shape) == len(field.shape) and all(
        wanted in (None, size) for size, wanted in zip(shape, field.shape, strict=True)
    )
    if is_kind and is_shape and not field.holds_image_files:
        return None
    actual = "text" if dtype.kind in "OSU" else dtype.name
    encoded = f" ({field.encoding} images)" if field.holds_image_files else ""
    return f"{actual}{_dims(shape)} {where}, but the schema says {field.dtype}{_dims(field.shape)}{encoded}".replace(
        " ,", ","
    )


def _dims(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]" if shape else ""
