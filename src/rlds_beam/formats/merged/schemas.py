"""One schema for several datasets, or why there is none and a file that makes one; how the values of each get there.

                      a           b                same      common     all
    language          go          -                refused   go; ""     go; ""
    action            x, y        y, z             refused   refused    x, y, z; zeros where one has none; mask/action
    observation/wrist             (96, 96, 3)      refused   left out   black in a; mask/observation/wrist
    observation/front (96, 128)   (128, 128)       refused   refused    images of any size
    count             int32       int64            int64     int64      int64

Values with names go where their name is, whatever their order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np

from rlds_beam.connectors.cleaning.language import TASK_FIELDS
from rlds_beam.encoding.metadata import yaml_text
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import SOURCE_DATASET
from rlds_beam.episodes.representations import Dimension, Representation
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import BadEpisode, RldsBeamError
from rlds_beam.formats.merged.inputs import Fields, MergedInput
from rlds_beam.reading.meaning import is_action
from rlds_beam.reading.reader import sample_episodes
from rlds_beam.text import printable, some
from rlds_beam.typing import Array

FROM = Field(SOURCE_DATASET, "string", encoding="text", feature="Text")
"""The episode field with the original dataset, `name/version`."""

MASK = "mask/"
"""Begins the path of the field that says which values of another one a dataset has: bool, for each value of a vector,
or for a step. Not `action_mask`: LeRobot takes all features whose names begin with `action` for actions."""

_RATIO = 20.0  # units differ if values are so many times larger: radians and degrees are 57 apart
_SMALL = 1e-3  # values of this size may be noise, which has no unit

Fact = TypeVar("Fact")
Level = Literal["steps", "metadata"]
Place = tuple[int, ...] | None


class DatasetsDifferError(ValueError):
    """The datasets, or their fields of one name, cannot be merged as they are; its arguments are all reasons."""


@dataclasses.dataclass(frozen=True)
class Merge:
    """The mapping of the episodes of several datasets to those of one.

    Attributes:
      schema: the schema of all.
      places: for each dataset, the fields of a step whose values go to other places: for each value of the result,
        the index of the dataset's value, or -1 if it has none.
      masks: the masks by level: the path of each, with that of the field that it is the mask of.
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
    wrong, missing, notes = list[str](), defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    rates = [member.source.fps for member in inputs]
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
        for path in dict.fromkeys(itertools.chain(*of_inputs)):
            having = [i for i, own in enumerate(of_inputs) if path in own]
            lacking = some([member.name for i, member in enumerate(inputs) if i not in having])
            if lacking and mode == "same":
                missing[lacking].append(path)
                continue
            if lacking and mode == "common" and path not in TASK_FIELDS:
                notes["fields that only some datasets have are left out"].append(path)
                continue
            own = [of_inputs[i][path] for i in having]
            try:
                field, own_places = _merge_field(own, [inputs[i] for i in having], mode)
            except DatasetsDifferError as error:
                wrong.append(f"{path}: {error}")
                continue
            fields[path] = field
            places_there = {i: place for i, place in zip(having, own_places, strict=True) if place is not None}
            for i, place in places_there.items():
                places[i][path] = place
            padded = any(-1 in place for place in places_there.values())
            if padded or (lacking and field.dtype != "string"):
                masks[level][MASK + path] = path
                fields[MASK + path] = Field(MASK + path, "bool", field.shape if padded else ())
                notes["fields that some datasets lack are zeros there, as their masks say"].append(path)
            if lacking and path in TASK_FIELDS:
                text = f"no instruction in {lacking} (--task, or FillLanguage in the file of --merge_fields, gives one)"
                notes[text].append(path)
            if not field.names and any(other.names for other in own):
                notes["the names of values are left out, because they are unknown in some"].append(path)
            if len({bool(other.representation and other.representation.rotations) for other in own}) > 1:
                notes["rotations are left out, because they are unknown in some (check that they agree)"].append(path)
        if twice := [mask for mask in masks[level] if any(mask in other for other in of_inputs)]:
            wrong.append(f"{twice[0]}: a dataset has a field of this name, which is that of a mask: rename it")
    wrong += [
        f"missing in {names}: {', '.join(paths)} (--merge_fields=common leaves such fields out, all fills them)"
        for names, paths in missing.items()
    ]
    if wrong:
        raise DatasetsDifferError(*wrong)
    schema = Schema(merged["steps"], {**merged["metadata"], FROM.path: FROM})
    return Merge(schema, tuple(places), masks, tuple(f"{text}: {some(paths)}" for text, paths in notes.items()))


def describe_by_value(values: Sequence[str], inputs: Sequence[MergedInput]) -> str:
    """`30 Hz in a/1.0.0, unknown in b/1.0.0`."""
    first = {value: member.name for value, member in zip(reversed(values), reversed(inputs), strict=True)}
    return some([f"{printable(value, 40)} in {printable(first[value], 60)}" for value in dict.fromkeys(values)])


def _merge_field(fields: Sequence[Field], inputs: Sequence[MergedInput], mode: Fields) -> tuple[Field, list[Place]]:
    """The merged field, and for each dataset the places of its values; None if they stay where they are."""
    first = fields[0]
    said = describe_by_value([f"{field.dtype}{field.shape}" for field in fields], inputs)
    if slow := [field.feature for field in fields if not field.fast]:
        raise DatasetsDifferError(f"a {slow[0]} cannot be decoded without TFDS")
    class_names = {str(getattr(member.source, "texts", None)) for member in inputs}
    if len(class_names) > 1 and any(field.feature == "ClassLabel" for field in fields):
        raise DatasetsDifferError("the class names differ or are missing")
    if any(field.holds_image_files for field in fields):
        if not all(field.holds_images for field in fields):
            raise DatasetsDifferError("images in only some of the datasets")
        return _merge_images(fields, inputs, mode, said), [None] * len(fields)
    dtypes = {field.numpy_dtype for field in fields}
    if len({dtype.kind for dtype in dtypes}) > 1:
        raise DatasetsDifferError(said)
    dtype = first.dtype if len(dtypes) == 1 else np.result_type(*dtypes).name
    plain = "bytes" if dtype in ("bfloat16", "float64") else "none"
    encoding = common_value([field.encoding for field in fields]) or plain
    known = describe_by_value([str(Representation.join(field.dimensions) or "unknown") for field in fields], inputs)
    if len({any(value.relative_to for value in field.dimensions) for field in fields}) > 1:
        raise DatasetsDifferError(
            f"differences in only some of the datasets ({known}): RelativeActions and AbsoluteActions convert them; if "
            "a dataset only does not say that its values are differences, ArrangeDimensions names them, for example "
            "delta_x"
        )
    shape, names, places = _arrange(fields, inputs, mode, said)
    try:
        representation = merge_representations(fields, places)
    except DatasetsDifferError:
        raise DatasetsDifferError(
            f"{known}: ConvertRotation converts rotations, ArrangeDimensions puts values in another order, "
            "RelativeActions and AbsoluteActions make them relative and absolute"
        ) from None
    merged = Field(first.path, dtype, shape, encoding, first.feature).with_names(names)
    return merged.with_representation(representation), places


def _merge_images(fields: Sequence[Field], inputs: Sequence[MergedInput], mode: Fields, said: str) -> Field:
    first = fields[0]
    if len({(field.dtype, len(field.shape), field.shape[-1]) for field in fields}) > 1:
        raise DatasetsDifferError(f"images of {said}")
    for field, member in zip(fields, inputs, strict=True):
        if mode != "all" and (resize := propose_size(field, fields)):
            raise DatasetsDifferError(
                f"images of {said}: give {printable(member.name, 60)} the connector - {resize} (--merge_fields=all "
                "keeps all sizes, for outputs that can hold them)"
            )
    shape = tuple(common_value(sizes) for sizes in zip(*(field.shape for field in fields), strict=True))
    encodings = [field.encoding if field.holds_image_files else "png" for field in fields]
    return Field(first.path, first.dtype, shape, common_value(encodings) or "jpeg", "Image")


def propose_size(field: Field, fields: Sequence[Field]) -> str | None:
    """The connector, as YAML, that gives images the smallest size of these fields; None if they have it."""
    sizes = {other.shape[:2] for other in fields}
    known = [(height, width) for height, width in sizes if height is not None and width is not None]
    if len(sizes) == 1 or not known or field.shape[:2] == min(known):
        return None
    height, width = min(known)
    return f"ResizeImages: {{height: {height}, width: {width}, fields: [{field.path}], minimum: 1, fit: pad}}"


def is_vector(field: Field) -> bool:
    """Whether its values are vectors of numbers of one size, which can have names."""
    return len(field.shape) == 1 and field.shape[0] is not None and field.dtype != "string"


def _arrange(
    fields: Sequence[Field], inputs: Sequence[MergedInput], mode: Fields, said: str
) -> tuple[tuple[int | None, ...], tuple[str, ...], list[Place]]:
    """The shape, the names, and the places of values: by their names if they have some, else by their order."""
    first = fields[0]
    named = all(field.names and len(set(field.names)) == len(field.names) for field in fields)
    if len({field.shape for field in fields}) == 1 and (not named or len({field.names for field in fields}) == 1):
        return first.shape, common_value([field.names for field in fields]) or (), [None] * len(fields)
    if not all(map(is_vector, fields)):
        raise DatasetsDifferError(said)
    if not named:
        raise DatasetsDifferError(f"{said} (name their values in the file of --merge_fields)")
    names = tuple(dict.fromkeys(name for field in fields for name in field.names))
    if mode != "all" and any(len(field.names) < len(names) for field in fields):
        values = describe_by_value([some([printable(name, 30) for name in field.names]) for field in fields], inputs)
        raise DatasetsDifferError(
            f"its values have different names ({values}): RenameDimensions and ArrangeDimensions make them the same, "
            "--merge_fields=all keeps all of them"
        )
    places = [tuple(field.names.index(name) if name in field.names else -1 for name in names) for field in fields]
    return (len(names),), names, [None if place == tuple(range(len(names))) else place for place in places]


def merge_representations(fields: Sequence[Field], places: Sequence[Place]) -> Representation | None:
    """What all datasets that have a value say of it; None if that is nothing.

    Args:
      fields: the field of each dataset.
      places: for each value of the result, the index of the dataset's value, or -1; None if they stay.

    Raises:
      DatasetsDifferError: two of them contradict each other.
    """
    rows: list[list[Dimension | None]] = []
    for field, place in zip(fields, places, strict=True):
        values = field.dimensions
        rows.append([*values] if place is None else [None if i < 0 else values[i] for i in place])
    arranged = [Representation.join([value or Dimension() for value in row]) for row in rows]
    rotations = {known.rotations for known in arranged if known is not None and known.rotations}
    if len({len(turned) for turned in rotations}) < len(rotations):  # as many, but of other kinds or at other places
        raise DatasetsDifferError
    return Representation.join([_merge([value for value in values if value]) for values in zip(*rows, strict=True)])


def _merge(values: Sequence[Dimension]) -> Dimension:
    """What the datasets know of one value. What is not said to be a difference is absolute."""
    references = {value.relative_to for value in values}
    turned = {(value.rotation, value.place) for value in values}
    absolute = None in references and len(references) > 1
    if absolute or len(references - {"unknown"}) > 1 or len({of for of in turned if of[0] is not None}) > 1:
        raise DatasetsDifferError
    merged = values[0] if len(turned) == 1 else values[0].straighten()
    reference = "unknown" if len(references) > 1 else merged.relative_to
    frame = merged.frame if len({value.frame for value in values}) == 1 else None
    return merged._replace(relative_to=reference, frame=frame)


def check_units(inputs: Sequence[MergedInput]) -> tuple[str, ...]:
    """Compares the sizes of values in the first episodes, by name if they have some, and returns what to check.

    Raises:
      DatasetsDifferError: most values of a vector are 20 times larger in one dataset than in another.
    """
    wrong, notes = list[str](), list[str]()
    sizes = [_sizes(member) for member in inputs]
    for i, j in itertools.combinations(range(len(inputs)), 2):
        pair = [inputs[i], inputs[j]]
        for path in (path for path in sizes[i] if path in sizes[j]):
            first, second = sizes[i][path], sizes[j][path]
            names, others = (member.schema.steps[path].names for member in pair)
            shared = [name for name in names if name in others]
            if names and others:
                first, second = first[[*map(names.index, shared)]], second[[*map(others.index, shared)]]
            if len(first) != len(second):
                continue
            known = np.flatnonzero((first > _SMALL) & (second > _SMALL))
            ratios = np.log(first[known] / second[known]) / np.log(_RATIO)
            odd = known[np.abs(ratios) >= 1]
            if known.size and abs(np.median(ratios)) >= 1:
                said = describe_by_value([f"up to {size.max():.3g}" for size in (first, second)], pair)
                wrong.append(
                    f"{path}: other units? {said}: ScaleDimensions converts them; same_units: true in the file of "
                    "--merge_fields says that they are the same"
                )
            elif odd.size:
                said = describe_by_value([f"up to {size[odd[0]]:.3g}" for size in (first, second)], pair)
                value = shared[odd[0]] if shared else odd[0]
                notes.append(f"{path}[{value}]: {said}: check that the units are the same")
    if wrong:
        raise DatasetsDifferError(*wrong)
    return tuple(notes)


def _sizes(member: MergedInput) -> dict[str, Array]:
    """The largest absolute values, [D], of actions and observations that are vectors of floats, by path."""
    sizes: dict[str, Array] = {}
    plain = not member.connecting.connectors
    images = [path for path, field in member.source.schema.steps.items() if field.holds_images and plain]
    for read in sample_episodes(member.source, images):
        with contextlib.suppress(BadEpisode, RldsBeamError):  # the job says so
            for episode in member.connecting.connect([read]).episodes:
                for path, column in episode.steps.items():
                    if not is_numeric(column) or not (path.startswith("observation") or is_action(path)):
                        continue
                    values = np.asarray(column)
                    if values.ndim == 2 and values.dtype.kind == "f" and len(values):
                        size = np.abs(np.where(np.isfinite(values), values, 0.0)).max(axis=0)
                        sizes[path] = np.maximum(sizes.get(path, size), size)
    return sizes


def propose(inputs: Sequence[MergedInput]) -> str:
    """A file of `--merge_fields`: values and fields of equal names become one."""
    fields = [member.schema.steps for member in inputs]
    lines = [
        "# A file to start from. Save it as fields.yaml; check what each image and value is, its units, and what",
        "# actions mean; and run",
        f"#   rlds-beam inspect {shlex.join(member.path for member in inputs)} --merge_fields=fields.yaml",
        "fields: all  # what only some have is zeros in the others, with a mask; common leaves it out",
        "inputs:",
    ]
    rates = [member.source.fps for member in inputs if member.source.fps is not None]
    datasets = [re.sub(r"\W+", "_", member.source.name) for member in inputs]
    has_task = [not {*member.schema.steps, *member.schema.metadata}.isdisjoint(TASK_FIELDS) for member in inputs]
    for i, (member, own) in enumerate(zip(inputs, fields, strict=True)):
        names, entries = list[str](), list[str]()
        for alike in (lambda field: field.holds_images, is_vector):
            here = [path for path, field in own.items() if alike(field) and path not in fields[0]]
            there = [path for path, field in fields[0].items() if alike(field) and path not in own]
            if len(here) == len(there) == 1 and here[0].partition("/")[0] == there[0].partition("/")[0]:
                rename = f"{yaml_text(here[0])}: {yaml_text(there[0])}"
                entries.append(f"# - RenameFields: {{fields: {{{rename}}}}}  # if they are the same")
        if member.source.fps is not None and member.source.fps != min(rates):
            entries.append(f"- Resample: {{fps: {min(rates):g}}}  # with relative, if actions are changes of a pose")
        if any(has_task) and not has_task[i]:
            entries.append("# - FillLanguage: {text: what the robot does}  # it has no instruction")
        prefix = datasets[i] if datasets.count(datasets[i]) == 1 else f"{datasets[i]}_{i + 1}"
        for path, field in own.items():
            same = [other[path] for other in fields if path in other]
            if all(map(is_vector, same)) and not field.names and len({other.shape for other in same}) > 1:
                values = ", ".join(f"{prefix}_{value}" for value in range(field.closed_shape[0]))
                names.append(f"    {yaml_text(path)}: [{values}]")
            if all(other.holds_images for other in same) and (resize := propose_size(field, same)):
                entries.append(f"- {resize}  # keeps proportions, adds black borders")
        lines.append(f"- input: {yaml_text(member.path)}")
        if names:
            lines += ["  names:  # unknown: until you name them, they are not joined with those of other datasets"]
        lines += [*names, "  connectors:" if entries else "  connectors: []", *(f"  {entry}" for entry in entries)]
    return "\n".join(lines)
