"""One schema for several datasets, or why there is none; and how the values of each get there.

                      a           b                same      common     all
    language          go          -                refused   go; ""     go; ""
    action            x, y        y, z             refused   refused    x, y, z; zeros where one has none; mask/action
    observation/wrist             (96, 96, 3)      refused   left out   black in a; mask/observation/wrist
    observation/front (96, 128)   (128, 128)       refused   refused    images of any size
    count             int32       int64            int64     int64      int64

Values with names go where their name is, whatever their order.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np

from rlds_beam.connectors.cleaning.language import TASK_FIELDS
from rlds_beam.episodes.episode import SOURCE_DATASET
from rlds_beam.episodes.representations import Dimension, Representation
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.formats.merged.inputs import Fields, MergedInput
from rlds_beam.text import printable, some

FROM = Field(SOURCE_DATASET, "string", encoding="text", feature="Text")
"""The episode field with the original dataset, `name/version`."""

MASK = "mask/"
"""Begins the path of the field that says which values of another one a dataset has: bool, for each value of a vector,
or for a step. Not `action_mask`: LeRobot takes all features whose names begin with `action` for actions."""

Fact = TypeVar("Fact")
Level = Literal["steps", "metadata"]


class RepresentationsDifferError(ValueError):
    """Values of one field that are known to be represented differently."""


class DatasetsDifferError(ValueError):
    """The datasets cannot be merged as they are; its arguments are all reasons."""


@dataclasses.dataclass(frozen=True)
class Merge:
    """The mapping of the episodes of several datasets to those of one.

    Attributes:
      schema: the schema of all.
      places: for each dataset, the fields of a step whose values go to other places: for each value of the result,
        the index of the dataset's value, or -1 if it has none.
      masks: the mask of each field of a step or of the episode that has one, by level and path.
      notes: what a user should know.
    """

    schema: Schema
    places: tuple[Mapping[str, tuple[int, ...]], ...]
    masks: Mapping[Level, Mapping[str, str]]
    notes: tuple[str, ...] = ()


def common_value(values: Sequence[Fact]) -> Fact | None:
    """The value of all datasets; None if they differ."""
    return values[0] if len({*values}) == 1 else None


def merge_schemas(inputs: Sequence[MergedInput], mode: Fields) -> Merge:
    """Merges the schemas, as the mode says.

    Raises:
      DatasetsDifferError: they cannot be merged; lists each field, and other contradictions, with the reason.
    """
    wrong, notes, left_out, missing = list[str](), list[str](), list[str](), dict[str, list[str]]()
    rates = [member.fps for member in inputs]
    known = {rate for rate in rates if rate is not None}
    if len(known) > 1:
        said = describe_by_value([f"{rate:g} Hz" if rate else "unknown" for rate in rates], inputs)
        resample = f"Resample: {{fps: {min(known):g}}}"
        wrong.append(f"rate: {said}: give them one rate with the connector Resample, for example {resample}")
    places: list[dict[str, tuple[int, ...]]] = [{} for _ in inputs]
    masks: dict[Level, dict[str, str]] = {"steps": {}, "metadata": {}}
    merged: dict[Level, dict[str, Field]] = {"steps": {}, "metadata": {}}
    for level, fields in merged.items():
        of_inputs: list[Mapping[str, Field]] = [getattr(member.schema, level) for member in inputs]
        for path in dict.fromkeys(path for own in of_inputs for path in own):
            having = [i for i, own in enumerate(of_inputs) if path in own]
            without = some([member.name for i, member in enumerate(inputs) if i not in having])
            if without and mode == "same":
                missing.setdefault(without, []).append(path)
                continue
            if without and mode == "common" and path not in TASK_FIELDS:
                left_out.append(path)
                continue
            try:
                field, own_places = _merge_field(
                    [of_inputs[i][path] for i in having], [inputs[i] for i in having], mode
                )
            except _DifferError as error:
                wrong.append(f"{path}: {error}")
                continue
            fields[path] = field
            if without and path in TASK_FIELDS:
                notes.append(
                    f"no {path} in {without}: --task, or FillLanguage in the file of --merge_fields, gives it one"
                )
            placed = {i: place for i, place in zip(having, own_places, strict=True) if place is not None}
            for i, place in placed.items():
                places[i][path] = place
            padded = any(-1 in place for place in placed.values())
            if padded or (without and field.dtype != "string"):
                masks[level][path] = MASK + path
                fields[MASK + path] = Field(MASK + path, "bool", field.shape if padded else ())
        if twice := [mask for mask in masks[level].values() if any(mask in own for own in of_inputs)]:
            wrong.append(f"{twice[0]}: a dataset has a field of this name, which is that of a mask: rename it")
        if masks[level]:
            notes.append(f"fields that some datasets lack are zeros there, as their masks say: {some([*masks[level]])}")
    wrong += [
        f"missing in {names}: {', '.join(paths)} (--merge_fields=common leaves such fields out, all fills them)"
        for names, paths in missing.items()
    ]
    if wrong:
        raise DatasetsDifferError(*wrong)
    if left_out:
        notes.append(f"fields that only some datasets have are left out: {some(sorted(left_out))}")
    steps = merged["steps"]
    there = {path: [m.schema.steps[path] for m in inputs if path in m.schema.steps] for path in steps}
    unnamed = [path for path, own in there.items() if not steps[path].names and len({f.names for f in own}) > 1]
    if unnamed:
        notes.append(f"the names of values are left out, because they are unknown in some: {some(unnamed)}")
    turned = {path: {bool(f.representation and f.representation.rotations) for f in own} for path, own in there.items()}
    if unsaid := [path for path, own in turned.items() if len(own) > 1]:
        notes.append(f"rotations are left out, because they are unknown in some: {some(unsaid)}: check that they agree")
    return Merge(Schema(steps, {**merged["metadata"], FROM.path: FROM}), tuple(places), masks, tuple(notes))


def describe_by_value(values: Sequence[str], inputs: Sequence[MergedInput]) -> str:
    """`30 Hz in a/1.0.0, unknown in b/1.0.0`."""
    first = {value: member.name for value, member in zip(reversed(values), reversed(inputs), strict=True)}
    return some([f"{printable(value, 40)} in {printable(first[value], 60)}" for value in dict.fromkeys(values)])


class _DifferError(ValueError):
    """Fields that cannot be merged."""


_Place = tuple[int, ...] | None


def _merge_field(fields: Sequence[Field], inputs: Sequence[MergedInput], mode: Fields) -> tuple[Field, list[_Place]]:
    """The merged field, and for each dataset the places of its values; None if they stay where they are."""
    first = fields[0]
    stay: list[_Place] = [None] * len(fields)
    slow = next((field for field in fields if not field.fast), None)
    if slow is not None:
        raise _DifferError(f"a {slow.feature} cannot be decoded without TFDS")
    class_names = {str(getattr(member.source, "texts", None)) for member in inputs}
    if len(class_names) > 1 and any(field.feature == "ClassLabel" for field in fields):
        raise _DifferError("the class names differ or are missing")
    said = describe_by_value([f"{field.dtype}{field.shape}" for field in fields], inputs)
    encoded = [field.holds_image_files for field in fields]
    if any(encoded) and all(field.holds_images for field in fields):
        return _merge_images(fields, inputs, mode, said), stay
    if any(encoded):
        raise _DifferError("images in only some of the datasets")
    dtypes = [field.numpy_dtype for field in fields]
    if len({dtype.kind for dtype in dtypes}) > 1:
        raise _DifferError(said)
    dtype = first.dtype if len(set(dtypes)) == 1 else np.result_type(*dtypes).name
    plain = "bytes" if dtype in ("bfloat16", "float64") else "none"
    encoding = first.encoding if len({field.encoding for field in fields}) == 1 else plain
    known = [str(Representation.join(field.dimensions) or "unknown") for field in fields]
    if len({any(value.relative_to for value in field.dimensions) for field in fields}) > 1:
        raise _DifferError(
            f"differences in only some of the datasets ({describe_by_value(known, inputs)}): RelativeActions and "
            "AbsoluteActions convert them; if a dataset only does not say that its values are differences, "
            "ArrangeDimensions names them, for example delta_x"
        )
    shape, names, places = _arrange(fields, inputs, mode, said)
    try:
        representation = merge_representations(fields, places)
    except RepresentationsDifferError:
        raise _DifferError(
            f"{describe_by_value(known, inputs)}: ConvertRotation converts rotations, ArrangeDimensions puts values in "
            "another order, RelativeActions and AbsoluteActions make them relative and absolute"
        ) from None
    merged = Field(first.path, dtype, shape, encoding, first.feature).with_names(names)
    return merged.with_representation(representation), places


def _merge_images(fields: Sequence[Field], inputs: Sequence[MergedInput], mode: Fields, said: str) -> Field:
    first = fields[0]
    if len({field.dtype for field in fields}) > 1 or len({(len(f.shape), f.shape[-1]) for f in fields}) > 1:
        raise _DifferError(f"images of {said}")
    for field, member in zip(fields, inputs, strict=True):
        if mode != "all" and (resize := propose_size(field, fields)):
            raise _DifferError(
                f"images of {said}: give {printable(member.name, 60)} the connector - {resize} (--merge_fields=all "
                "keeps all sizes, for outputs that can hold them)"
            )
    sizes = [{*of_axis} for of_axis in zip(*(field.shape for field in fields), strict=True)]
    shape = tuple(axis.pop() if len(axis) == 1 else None for axis in sizes)
    encodings = {field.encoding if field.holds_image_files else "png" for field in fields}
    return Field(first.path, first.dtype, shape, encodings.pop() if len(encodings) == 1 else "jpeg", "Image")


def propose_size(field: Field, fields: Sequence[Field]) -> str | None:
    """The connector, as YAML, that gives images the smallest size of these fields; None if they have it."""
    sizes = {other.shape[:2] for other in fields}
    known = [(height, width) for height, width in sizes if height is not None and width is not None]
    if len(sizes) == 1 or not known or field.shape[:2] == min(known):
        return None
    height, width = min(known)
    return f"ResizeImages: {{height: {height}, width: {width}, fields: [{field.path}], minimum: 1, fit: pad}}"


def _arrange(
    fields: Sequence[Field], inputs: Sequence[MergedInput], mode: Fields, said: str
) -> tuple[tuple[int | None, ...], tuple[str, ...], list[_Place]]:
    """The shape, the names, and the places of values: by their names if they have some, else by their order."""
    stay: list[_Place] = [None] * len(fields)
    first = fields[0]
    same_shape = len({field.shape for field in fields}) == 1
    named = all(field.names and len(set(field.names)) == len(field.names) for field in fields)
    if same_shape and (not named or len({field.names for field in fields}) == 1):
        return first.shape, common_value([field.names for field in fields]) or (), stay
    vectors = all(len(field.shape) == 1 and field.shape[0] is not None and field.dtype != "string" for field in fields)
    if vectors and named:
        names = tuple(dict.fromkeys(name for field in fields for name in field.names))
        if mode == "all" or all(len(field.names) == len(names) for field in fields):
            places = [tuple(field.names.index(n) if n in field.names else -1 for n in names) for field in fields]
            return (len(names),), names, [None if place == tuple(range(len(names))) else place for place in places]
        values = describe_by_value([some([printable(name, 30) for name in field.names]) for field in fields], inputs)
        raise _DifferError(
            f"its values have different names ({values}): RenameDimensions and ArrangeDimensions make them the same, "
            "--merge_fields=all keeps all of them"
        )
    hint = " (name their values in the file of --merge_fields)" if vectors else ""
    raise _DifferError(f"{said}{hint}")


def merge_representations(fields: Sequence[Field], places: Sequence[tuple[int, ...] | None]) -> Representation | None:
    """What all datasets that have a value say of it.

    Args:
      fields: the field of each dataset.
      places: for each value of the result, the index of the dataset's value, or -1; None if they stay.

    Raises:
      RepresentationsDifferError: two of them contradict each other.
    """
    rows: list[list[Dimension | None]] = []
    for field, place in zip(fields, places, strict=True):
        values = field.dimensions
        rows.append([*values] if place is None else [None if i < 0 else values[i] for i in place])
    if not any(value and value != Dimension() for row in rows for value in row):
        return None
    arranged = [Representation.join([value or Dimension() for value in row]) for row in rows]
    turned = [known.rotations for known in arranged if known is not None and known.rotations]
    if any(len(one) == len(other) and one != other for one, other in itertools.combinations(turned, 2)):
        raise RepresentationsDifferError
    return Representation.join([_merge([value for value in values if value]) for values in zip(*rows, strict=True)])


def _merge(values: Sequence[Dimension]) -> Dimension:
    for one, other in itertools.combinations(values, 2):
        turned = one.rotation is not None and other.rotation is not None
        if (turned and one[:2] != other[:2]) or not _same_reference(one, other):
            raise RepresentationsDifferError
    merged = values[0]
    if len({value[:2] for value in values}) > 1:
        merged = merged.straighten()
    if len({value.relative_to for value in values}) > 1:
        merged = merged._replace(relative_to="unknown")
    return merged if len({value.frame for value in values}) == 1 else merged._replace(frame=None)


def _same_reference(one: Dimension, other: Dimension) -> bool:
    """Whether two values may both be differences, or both none: what is not said to be a difference is absolute."""
    if one.relative_to is None or other.relative_to is None:
        return one.relative_to == other.relative_to
    return one.relative_to == other.relative_to or "unknown" in (one.relative_to, other.relative_to)
