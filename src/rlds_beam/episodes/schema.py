"""The schema of a dataset's episodes: path -> dtype, shape, encoding, names and representation of dimensions.

`compare_with_schema` checks an episode against it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.representations import DIFFERENCE, Dimension, Representation
from rlds_beam.errors import UsageError, Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.headers import IMAGE_FILES
from rlds_beam.text import shorten, tree, type_text
from rlds_beam.typing import Array

FLAGS = ("is_first", "is_last", "is_terminal")
"""The RLDS step flags."""

FIRST, MID, LAST = 0, 1, 2
"""Step type values."""

REQUIRED_STEP_FIELDS = ("observation", "action", "reward", "discount", *FLAGS)
"""The RLDS step fields that a TF-Agents trajectory needs (leaves, or prefixes of leaves)."""

ADD_ACTIONS = "if the data has none, add them: for example with the connector NextStateAsAction"
"""What to do if there are no actions."""

SAMPLES, SAMPLE_TIMES = "_samples", "_sample_times"
"""The endings of the fields beside a window (k, C) of a signal that is faster than the steps: how many samples there
are before the zeros, and their times relative to the step, (k,), in seconds."""

MIN_IMAGE_PIXELS = 16
"""Minimum side of a uint8 array to be considered an image, in pixels."""

MAX_NAME = 255
"""Maximum characters of the name of a dimension, or of a robot."""

MAX_BYTES = 256 << 20
"""Maximum declared bytes of a step, or of the episode-level fields. An 8K RGB image has 95 MiB."""


@dataclasses.dataclass(frozen=True)
class Field:
    """One leaf of a dataset's `features.json`.

    Attributes:
      path: names joined by `/`, relative to the step (`observation/state`) or the episode.
      dtype: the numpy dtype name of a decoded value (`float32`, `bool`, `uint8`, `bfloat16`), or `string`.
      shape: the shape of one step (without T); an unknown dimension is None.
      encoding: how one value is stored in the tf.Example: `none` (a list of numbers), `bytes`, `zlib`, `png`, `jpeg`,
        or `text`.
      feature: the TFDS class name, for messages (`Tensor`, `Image`, `ClassLabel`).
      fast: False if only TFDS's decoder can read it (ragged, video, optional).
      optional: True if a record may omit it.
      names: the names of the values along the last axis (`("shoulder_pan.pos", ...)`); empty if unknown.
      representation: which of these values are rotations, and what they are relative to; None if unknown.
    """

    path: str
    dtype: str
    shape: tuple[int | None, ...] = ()
    encoding: str = "none"
    feature: str = "Tensor"
    fast: bool = True
    optional: bool = False
    names: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    representation: Representation | None = dataclasses.field(default=None, compare=False)

    @functools.cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of a column (object for strings, ml_dtypes for bfloat16)."""
        if self.dtype == "string":
            return np.dtype(object)
        if self.dtype == "bfloat16":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(self.dtype)

    @functools.cached_property
    def closed_shape(self) -> tuple[int, ...]:
        """The shape with 0 for every unknown dimension, for empty columns."""
        return tuple(d or 0 for d in self.shape)

    @functools.cached_property
    def known_size(self) -> int:
        """The number of values in one step, with 1 for every unknown dimension."""
        return math.prod(d for d in self.shape if d is not None)

    @property
    def holds_image_files(self) -> bool:
        """Whether its values are PNG or JPEG files: the columns are `EncodedImages`."""
        return self.encoding in IMAGE_FILES

    @property
    def holds_images(self) -> bool:
        """Whether its values are images: PNG, JPEG, or arrays of pixels."""
        if self.holds_image_files:
            return True
        if self.dtype != "uint8" or len(self.shape) != 3 or None in self.shape:
            return False
        height, width, channels = self.closed_shape
        return min(height, width) >= MIN_IMAGE_PIXELS and channels in (1, 3, 4)

    def to_json(self) -> dict[str, Any]:
        """The field as JSON; an unknown dimension is null."""
        stored = {"dtype": self.dtype, "shape": list(self.shape), "encoding": self.encoding, "feature": self.feature}
        return {**stored, **self.meaning_json()}

    def meaning_json(self) -> dict[str, Any]:
        """The names and the representation of its values as JSON; empty if they are unknown."""
        names = {"names": list(self.names)} if self.names else {}
        return names | ({"representation": self.representation.to_json()} if self.representation else {})

    def with_meaning(self, content: Mapping[str, Any]) -> Field:
        """The inverse of `meaning_json`: a copy with the names and the representation in `content`, if they fit."""
        known = Representation.from_json(content.get("representation"))
        return self.with_names(content.get("names", ())).with_representation(known)

    def with_names(self, names: Sequence[str]) -> Field:
        """A copy with these names; without any if they are not printable texts, one for each value of the last axis."""
        fits = bool(self.shape) and len(names) == self.shape[-1] and all(map(is_name, names))
        return dataclasses.replace(self, names=tuple(names) if fits else ())

    def with_representation(self, representation: Representation | None) -> Field:
        """A copy with this representation; without any if it does not fit, or this is no vector of floats."""
        fits = representation is not None and self.is_vector and representation.fits(self.known_size)
        return dataclasses.replace(self, representation=representation if fits else None)

    @property
    def is_vector(self) -> bool:
        """Whether its values are vectors of floats of one size, which can have a representation."""
        return len(self.shape) == 1 and self.shape[0] is not None and "float" in self.dtype

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """What is known of each value, along the last axis if it has names: `delta_x` says that it is a difference."""
        values = (self.representation or Representation()).split(len(self.names) or self.known_size, self.path)
        if len(self.names) != len(values):
            return values
        values = tuple(value._replace(name=name) for value, name in zip(values, self.names, strict=True))
        if any(value.relative_to for value in values):
            return values
        return tuple(v._replace(relative_to="unknown") if DIFFERENCE.fullmatch(v.name or "") else v for v in values)

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.path}: {self.dtype}({dims})" + (f" {self.encoding}" if self.encoding != "none" else "")


def is_name(value: object) -> bool:
    """Whether a value can be the name of a dimension or a robot: printable text of up to `MAX_NAME` characters."""
    return isinstance(value, str) and len(value) <= MAX_NAME and value.isprintable()


def by_path(fields: Iterable[Field], where: str) -> dict[str, Field]:
    """Maps fields by path. Raises UsageError, naming `where`, if two have the same path."""
    unique: dict[str, Field] = {}
    for field in fields:
        if field.path in unique:
            raise UsageError(f"{where}: {field.path} is declared twice")
        unique[field.path] = field
    return unique


def text_field(path: str, shape: tuple[int | None, ...] = ()) -> Field:
    """A text field: one value (TFDS's Text), or an array of them."""
    return Field(path, "string", shape, "none", "Tensor") if shape else Field(path, "string", (), "text", "Text")


@dataclasses.dataclass(frozen=True, repr=False)
class Schema:
    """All fields of a dataset: those of a step, and those of the episode (`metadata`).

    `fast` is True if our decoder can read every field. Otherwise `slow_reason` names the first field that needs TFDS's
    decoder (and TensorFlow).
    """

    steps: Mapping[str, Field]
    metadata: Mapping[str, Field] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return schema_tree(self)

    def with_columns(self, *fields: Field) -> Schema:
        """A copy with step fields added or replaced.

        schema.with_columns(Field("observation/speed", "float32", (2,)))
        """
        return dataclasses.replace(self, steps={**self.steps, **{field.path: field for field in fields}})

    def without(self, paths: Collection[str]) -> Schema:
        """A copy without these step fields."""
        return dataclasses.replace(self, steps={path: f for path, f in self.steps.items() if path not in paths})

    @property
    def recorded(self) -> Schema:
        """The schema without the field that no record holds: the default discount."""
        return dataclasses.replace(self, steps={p: field for p, field in self.steps.items() if not field.optional})

    @functools.cached_property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the values of step fields that have some, by path."""
        return {path: field.names for path, field in self.steps.items() if field.names}

    @property
    def representations(self) -> Mapping[str, Representation]:
        """The representations of step fields that have one, by path."""
        return {path: field.representation for path, field in self.steps.items() if field.representation is not None}

    def check_fields(self, where: str) -> None:
        """Checks the declared types, before anything is allocated; unknown dimensions count as 1.

        Raises:
          UsageError: a flag or the discount is text or an image, or a step or the episode-level fields exceed
            `MAX_BYTES`; names `where` and the field.
        """
        for path in (*FLAGS, "discount"):
            field = self.steps.get(path)
            if field is not None and (field.dtype == "string" or field.holds_image_files):
                raise UsageError(f"{where}: {field} must be a number in RLDS")
        for what, fields in (("a step", self.steps), ("the episode-level fields", self.metadata)):
            sizes = {path: field.known_size * field.numpy_dtype.itemsize for path, field in fields.items()}
            if sum(sizes.values()) > MAX_BYTES:
                largest = fields[max(sizes, key=lambda path: sizes[path])]
                raise UsageError(f"{where}: {largest} is too large: the limit for {what} is {MAX_BYTES >> 20} MiB")

    def check(self, episode: Episode) -> None:
        """Checks that an episode has the columns of the schema, in case a pipeline step changed them.

        Raises:
          UsageError: a column is not in the schema, or is missing from the episode.
        """
        if more := sorted(episode.steps.keys() - self.steps.keys()):
            raise UsageError(
                f"{episode.key}: {', '.join(more)} is not in the schema, so it would not be written: pass "
                f"schema.with_columns(Field({more[0]!r}, dtype, shape)), or remove the column from the episode"
            )
        if less := sorted(self.steps.keys() - episode.steps.keys()):
            raise UsageError(f"{episode.key}: the schema has {', '.join(less)}, but the episode has no such column")

    @property
    def slow_reason(self) -> str | None:
        for field in (*self.steps.values(), *self.metadata.values()):
            if not field.fast:
                return f"{field.path} is a {field.feature}"
        return None

    @property
    def fast(self) -> bool:
        return self.slow_reason is None


def schema_tree(schema: Schema) -> str:
    """The fields of a dataset as a tree.

    step
    ├── action       float32 (7,)
    ├── observation
    │   ├── image    uint8 (96, 96, 3) jpeg
    │   └── state    float32 (7,)
    └── reward       float32
    episode
    └── episode_id   text
    """
    return tree({"step": fields_text(schema.steps), "episode": fields_text(schema.metadata)})


def fields_text(fields: Mapping[str, Field]) -> dict[str, str]:
    """The type of each field by path."""
    return {path: describe_type(field) for path, field in sorted(fields.items())}


def describe_type(field: Field) -> str:
    """The type of a value: `float32 (2,): x, y`, `float32 (6,); rotation 6d at 0`, `uint8 (96, 96, 3) jpeg`, `text`."""
    encoding = f" {field.encoding}" if field.encoding not in ("none", "text") else ""
    dtype = "text" if field.dtype == "string" else field.dtype
    names = [shorten(name, _MAX_NAME) for name in field.names[: shown_dimensions(len(field.names))]]
    if len(names) < len(field.names):
        names.append(f"... {len(field.names) - len(names)} more")
    named = f": {', '.join(names)}" if names else ""
    represented = f"; {field.representation}" if field.representation else ""
    return f"{type_text(dtype, field.shape)}{encoding}{named}{represented}"


MAX_UNFOLDED = 32
"""The most dimensions of a field that are all shown; two arms have 14, a humanoid has about 30."""

_FOLDED = 8
_MAX_NAME = 40


def shown_dimensions(number: int) -> int:
    """The number of dimensions of a field that a view shows: all up to `MAX_UNFOLDED`, and the first of more."""
    return number if number <= MAX_UNFOLDED else _FOLDED


def dimension_labels(shape: Sequence[int], number: int, names: Sequence[str] = ()) -> list[str]:
    """The labels of the first dimensions: `0`, `1,2`, or `0 shoulder_pan.pos`; one empty label for a scalar.

    Args:
      shape: the shape of a step.
      number: how many labels.
      names: the names of the values along the last axis, if they are known.
    """
    if not shape:
        return [""] * min(number, 1)
    return ["".join(_index_and_name(shape, i, names)) for i in range(number)]


def named_dimension(path: str, shape: Sequence[int], dimension: int, names: Sequence[str] = ()) -> str:
    """A dimension in a table or a message: `action[3] wrist_flex.pos`; the path alone for a scalar."""
    if not shape:
        return path
    index, name = _index_and_name(shape, dimension, names)
    return f"{path}[{index}]{name}"


def _index_and_name(shape: Sequence[int], dimension: int, names: Sequence[str]) -> tuple[str, str]:
    place = [int(i) for i in np.unravel_index(dimension, tuple(shape))]
    name = f" {shorten(names[place[-1]], _MAX_NAME)}" if len(names) == shape[-1] else ""
    return ",".join(map(str, place)), name


def episode_flags(length: int, *, last: bool = True, terminal: bool = True) -> dict[str, Array]:
    """The flags of an episode's steps, bool [T]; `last` and `terminal` set the flags of the last step."""
    index = np.arange(length)
    end = index == length - 1
    return {"is_first": index == 0, "is_last": end & last, "is_terminal": end & terminal}


def compare_with_schema(episode: Episode, schema: Schema) -> list[Violation]:
    """Compares the fields of an episode with the schema: missing or extra fields, dtypes, shapes, and lengths.

    Does not read values: it takes some microseconds, whatever the episode's length.
    """
    violations: list[Violation] = []
    steps, fields = episode.steps, schema.steps
    for path, field in (*fields.items(), *schema.metadata.items()):
        is_step = fields.get(path) is field
        if path not in (steps if is_step else episode.metadata):
            violations.append(Violation("missing_field", f"the episode has no {path}", path))
            continue
        wrong = _column_difference(steps[path], field) if is_step else _value_difference(episode.metadata[path], field)
        if wrong is not None:
            violations.append(Violation("wrong_dtype_or_shape", wrong, path))
    if len(steps) > len(fields) or len(episode.metadata) > len(schema.metadata):
        more = [*(steps.keys() - fields.keys()), *(episode.metadata.keys() - schema.metadata.keys())]
        detail = "not in the schema, so it would not be written"
        violations += [Violation("wrong_dtype_or_shape", detail, path) for path in sorted(more)]
    return violations or find_length(steps)[1]


def find_length(steps: Mapping[str, Column]) -> tuple[int, list[Violation]]:
    """The length that most columns have, and a violation for each of the others."""
    lengths = {path: len(column) for path, column in steps.items()}
    if len({*lengths.values()}) < 2:
        return next(iter(lengths.values()), 0), []
    most, votes = Counter(lengths.values()).most_common(1)[0]
    others = {path: length for path, length in lengths.items() if length != most}
    of = f"but {votes} of {len(lengths)} fields have {most}"
    return most, [Violation("unequal_lengths", f"{length} steps, {of}", path) for path, length in others.items()]


def _column_difference(column: Column, field: Field) -> str | None:
    """The difference between a column and its field; None if there is none."""
    if isinstance(column, EncodedImages):
        fits = field.holds_image_files and (column.dtype, column.shape) == (field.dtype, field.shape)
        return None if fits else _describe_difference(f"encoded images of {column.dtype}", column.shape, field)
    if not isinstance(column, np.ndarray) or not column.ndim:
        return f"a {type(column).__name__}, but expected an array with a value for each step"
    return _difference(column.dtype, column.shape[1:], field, " at each step")


def _value_difference(value: Any, field: Field) -> str | None:
    """The difference between a value of the episode and its field; None if there is none."""
    if isinstance(value, (str, bytes)):
        fits = (field.dtype == "string" and not field.shape) or field.holds_image_files
        return None if fits else _describe_difference("text", (), field)
    array = np.asarray(value)
    if isinstance(value, (bool, int, float)) and not field.shape and array.dtype.kind == field.numpy_dtype.kind:
        return None  # a Python number has no dtype
    return _difference(array.dtype, array.shape, field, "")


def _difference(dtype: np.dtype[Any], shape: tuple[int, ...], field: Field, where: str) -> str | None:
    """Compares dtypes and shapes: also open dimensions, text, and fields that only TFDS decodes."""
    if not field.holds_image_files and dtype == field.numpy_dtype and shape == field.shape:
        return None
    if not field.fast:
        return None
    if None in field.shape and dtype.kind == "O" and (not shape or not where):
        return None  # an array for each step, of varying shapes
    is_kind = dtype == field.numpy_dtype or (field.dtype == "string" and dtype.kind in "SU")
    is_shape = len(shape) == len(field.shape) and all(
        wanted in (None, size) for size, wanted in zip(shape, field.shape, strict=True)
    )
    if is_kind and is_shape and not field.holds_image_files:
        return None
    return _describe_difference("text" if dtype.kind in "OSU" else dtype.name, shape, field, where)


def _describe_difference(actual: str, shape: tuple[int | None, ...], field: Field, where: str = "") -> str:
    encoded = f" ({field.encoding} images)" if field.holds_image_files else ""
    return f"{actual}{_dims(shape)}{where}, but the schema says {field.dtype}{_dims(field.shape)}{encoded}"


def _dims(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]" if shape else ""
