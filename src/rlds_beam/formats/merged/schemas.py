"""One schema for several datasets, or why there is none and a file that makes one.

                  a           b                same      common     all
language          go          -                refused   go; ""     go; ""
action            x, y        y, x             refused   refused    refused: ArrangeDimensions orders them
observation/wrist             (96, 96, 3)      refused   left out   black in a; mask/observation/wrist
observation/front (96, 128)   (128, 128)       refused   refused    refused: ResizeImages gives them one size
count             int32       int64            int64     int64      int64
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np

from rlds_beam.connectors.cleaning.language import TASK_FIELDS
from rlds_beam.encoding.metadata import yaml_text
from rlds_beam.episodes.episode import SOURCE_DATASET
from rlds_beam.episodes.representations import Representation
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import BadEpisode, RldsBeamError
from rlds_beam.formats.merged.inputs import Fields, MergedInput
from rlds_beam.reading.last_steps import is_action
from rlds_beam.reading.reader import sample_episodes
from rlds_beam.text import printable, some
from rlds_beam.typing import Array

FROM = Field(SOURCE_DATASET, "string", encoding="text", feature="Text")
"""The episode field with the original dataset, `name/version`."""

MASK = "mask/"
"""Begins the path of the field that says which values of another one a dataset has: bool, for each value of a vector
(`ArrangeDimensions`), or for a step. A dataset without it has all values of the other field, or lacks that. Not
`action_mask`: LeRobot takes all features whose names begin with `action` for actions."""

_RATIO = 20.0  # units differ if values are so many times larger: radians and degrees are 57 apart
_SMALL = 1e-3  # values of this size may be noise, which has no unit
_CALIBRATION = ("_distortion_model", "_frame_id", "_base")  # what the numbers of a camera's calibration refer to

Fact = TypeVar("Fact")


def is_mask(field: Field) -> bool:
    """Whether a field says which values of another one a dataset has."""
    return field.path.startswith(MASK) and field.dtype == "bool"


class DatasetsDifferError(ValueError):
    """The datasets, or their fields of one name, cannot be merged as they are; its arguments are all reasons."""


def common_value(values: Sequence[Fact]) -> Fact | None:
    """The value of all datasets; None if they differ."""
    return values[0] if len({*values}) == 1 else None


def merge_schemas(inputs: Sequence[MergedInput], mode: Fields) -> tuple[Schema, tuple[str, ...]]:
    """Merges the schemas, as the mode says; returns the schema of all, and what a user should know.

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
    merged: dict[Literal["steps", "metadata"], dict[str, Field]] = {"steps": {}, "metadata": {}}
    for level, fields in merged.items():
        of_inputs: list[Mapping[str, Field]] = [getattr(member.schema, level) for member in inputs]
        for path in dict.fromkeys(itertools.chain(*of_inputs)):
            having = [member for member, there in zip(inputs, of_inputs, strict=True) if path in there]
            lacking = some([member.name for member, there in zip(inputs, of_inputs, strict=True) if path not in there])
            if lacking and mode == "same":
                missing[lacking].append(path)
                continue
            if lacking and mode == "common" and path not in TASK_FIELDS and not path.startswith(MASK):
                notes["fields that only some datasets have are left out"].append(path)
                continue
            own = [there[path] for there in of_inputs if path in there]
            try:
                field = _merge_field(own, having)
            except DatasetsDifferError as error:
                wrong.append(f"{path}: {error}")
                continue
            fields[path] = field
            if lacking and path in TASK_FIELDS:
                text = f"no instruction in {lacking} (--task, or FillLanguage in the file of --merge_fields, gives one)"
                notes[text].append(path)
            elif lacking and field.dtype != "string" and not is_mask(field):
                fields.setdefault(MASK + path, Field(MASK + path, "bool", ()))
                notes["fields that some datasets lack are zeros there, as their masks say"].append(path)
            if not field.names and any(other.names for other in own):
                notes["the names of values are left out, because they are unknown in some"].append(path)
            if len({bool(other.representation and other.representation.rotations) for other in own}) > 1:
                notes["rotations are left out, because they are unknown in some (check that they agree)"].append(path)
    wrong += [
        f"missing in {names}: {', '.join(paths)} (--merge_fields=common leaves such fields out, all fills them)"
        for names, paths in missing.items()
    ]
    if wrong:
        raise DatasetsDifferError(*wrong)
    schema = Schema(merged["steps"], {**merged["metadata"], FROM.path: FROM})
    return schema, tuple(f"{text}: {some(paths)}" for text, paths in notes.items())


def describe_by_value(values: Sequence[str], inputs: Sequence[MergedInput]) -> str:
    """`30 Hz in a/1.0.0, unknown in b/1.0.0`."""
    first = {value: member.name for value, member in zip(reversed(values), reversed(inputs), strict=True)}
    return some([f"{printable(value, 40)} in {printable(first[value], 60)}" for value in dict.fromkeys(values)])


def _merge_field(fields: Sequence[Field], inputs: Sequence[MergedInput]) -> Field:
    """The field of all datasets. Raises DatasetsDifferError if theirs contradict each other."""
    first = fields[0]
    said = describe_by_value([f"{field.dtype}{field.shape}" for field in fields], inputs)
    if slow := [field.feature for field in fields if not field.fast]:
        raise DatasetsDifferError(f"a {slow[0]} cannot be decoded without TFDS")
    class_names = {str(getattr(member.source, "texts", None)) for member in inputs}
    if len(class_names) > 1 and any(field.feature == "ClassLabel" for field in fields):
        raise DatasetsDifferError("the class names differ or are missing")
    if any(field.holds_image_files for field in fields):
        if not all(field.holds_image_files for field in fields):
            raise DatasetsDifferError("pixels in some of the datasets, PNG or JPEG images in others")
        if len({(field.dtype, field.shape[-1]) for field in fields}) > 1:
            raise DatasetsDifferError(f"images of {said}")
        for field, member in zip(fields, inputs, strict=True):
            if resize := propose_size(field, fields):
                raise DatasetsDifferError(
                    f"images of {said}: give {printable(member.name, 60)} the connector - {resize}"
                )
        coded = common_value([field.encoding for field in fields]) or "jpeg"
        return Field(first.path, first.dtype, first.shape, coded, "Image")
    try:
        representation = merge_representations(fields)
    except DatasetsDifferError:
        known = describe_by_value([str(Representation.join(field.dimensions) or "unknown") for field in fields], inputs)
        raise DatasetsDifferError(
            f"{known}: ConvertRotation converts rotations, RelativeActions and AbsoluteActions convert differences, "
            "ArrangeDimensions puts values in another order, or names those that are differences, for example delta_x"
        ) from None
    names = {field.names for field in fields}
    if len(names - {()}) > 1:
        values = describe_by_value([some([printable(name, 30) for name in field.names]) for field in fields], inputs)
        raise DatasetsDifferError(
            f"its values have different names ({values}): RenameDimensions and ArrangeDimensions make them the same"
        )
    dtypes = {field.numpy_dtype for field in fields}
    if len({dtype.kind for dtype in dtypes}) > 1 or len({field.shape for field in fields}) > 1:
        raise DatasetsDifferError(f"{said} (ArrangeDimensions gives vectors one length)" if is_vector(first) else said)
    dtype = first.dtype if len(dtypes) == 1 else np.result_type(*dtypes).name
    plain = "bytes" if dtype in ("bfloat16", "float64") else "none"
    encoding = common_value([field.encoding for field in fields]) or plain
    merged = Field(first.path, dtype, first.shape, encoding, first.feature).with_names(common_value([*names]) or ())
    return merged.with_representation(representation)


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


def merge_representations(fields: Sequence[Field]) -> Representation | None:
    """What all datasets that have a field say of its values; None if that is nothing.

    Raises:
      DatasetsDifferError: two of them contradict each other. What is not said to be a difference is absolute.
    """
    if not any(field.names or field.representation for field in fields):
        return None
    known = [Representation.join(field.dimensions) or Representation() for field in fields]
    rotations = {own.rotations for own in known}
    changes = {(own.relative_to is None, own.absolute) for own in known}
    references, frames = {own.relative_to for own in known}, {own.frame for own in known}
    if len(rotations - {()}) > 1 or len(changes) > 1 or len(references - {"unknown"}) > 1:
        raise DatasetsDifferError
    merged = Representation(
        known[0].rotations if len(rotations) == 1 else (),
        known[0].relative_to if len(references) == 1 else "unknown",
        known[0].frame if len(frames) == 1 else None,
        known[0].absolute,
    )
    return None if merged == Representation() else merged


def compare_samples(inputs: Sequence[MergedInput], *, same_units: bool) -> tuple[str, ...]:
    """Compares the first episodes: units by the sizes of values, and what calibrations of cameras refer to.

    Args:
      inputs: the datasets.
      same_units: whether the user has checked the units.

    Returns:
      what the user should check.

    Raises:
      DatasetsDifferError: most values of a vector are 20 times larger in one dataset than in another.
    """
    sizes, texts = zip(*(_sample(member) for member in inputs), strict=True)
    wrong, notes = list[str](), list[str]()
    for i, j in itertools.combinations(range(len(inputs)), 2):
        pair = [inputs[i], inputs[j]]
        for path, text in texts[i].items():
            if texts[j].get(path, text) != text:
                notes.append(f"{path}: {describe_by_value([text, texts[j][path]], pair)}: each episode keeps its own")
        for path in () if same_units else (path for path in sizes[i] if path in sizes[j]):
            first, second = sizes[i][path], sizes[j][path]
            known = np.flatnonzero((first > _SMALL) & (second > _SMALL))
            ratios = np.log(first[known] / second[known]) / np.log(_RATIO)
            odd = known[np.abs(ratios) >= 1]
            if known.size and abs(np.median(ratios)) >= 1:
                said = describe_by_value([f"up to {size[known].max():.3g}" for size in (first, second)], pair)
                wrong.append(
                    f"{path}: other units? {said}: ScaleDimensions converts them; same_units: true in the file of "
                    "--merge_fields says that they are the same"
                )
            elif odd.size:
                said = describe_by_value([f"up to {size[odd[0]]:.3g}" for size in (first, second)], pair)
                names = inputs[i].schema.steps[path].names or range(len(first))
                notes.append(f"{path}[{names[odd[0]]}]: {said}: check that the units are the same")
    if wrong:
        raise DatasetsDifferError(*wrong)
    return tuple(notes)


def _sample(member: MergedInput) -> tuple[dict[str, Array], dict[str, str]]:
    """What the first episodes of a dataset hold.

    Returns:
      the largest absolute values, [D], of actions and observations that are vectors of floats, by path; and the frames
      and the lens models of cameras, by path.
    """
    sizes: dict[str, Array] = {}
    texts: dict[str, str] = {}
    floats = [field for field in member.schema.steps.values() if is_vector(field) and field.numpy_dtype.kind == "f"]
    paths = [field.path for field in floats if field.path.startswith("observation") or is_action(field.path)]
    for read in sample_episodes(member.source):
        with contextlib.suppress(BadEpisode, RldsBeamError):  # the job says so
            for episode in member.connecting.connect([read]).episodes:
                for path in paths:
                    values = np.asarray(episode.steps[path])
                    size = np.abs(np.where(np.isfinite(values), values, 0.0)).max(axis=0, initial=0.0)
                    sizes[path] = np.maximum(sizes.get(path, size), size)
                for path, value in episode.metadata.items():
                    if path.endswith(_CALIBRATION) and isinstance(value, bytes):
                        texts.setdefault(path, value.decode(errors="replace"))
    return sizes, texts


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
    arrangements = _propose_orders(inputs)
    for i, (member, own) in enumerate(zip(inputs, fields, strict=True)):
        entries = list[str]()
        if member.source.fps is not None and member.source.fps != min(rates):
            entries.append(f"- Resample: {{fps: {min(rates):g}}}  # with relative, if actions are changes of a pose")
        for path, field in own.items():
            same = [other[path] for other in fields if path in other]
            if all(other.holds_images for other in same) and (resize := propose_size(field, same)):
                entries.append(f"- {resize}  # keeps proportions, adds black borders")
        lines.append(f"- input: {yaml_text(member.path)}")
        entries += arrangements[i]
        lines += ["  connectors:" if entries else "  connectors: []", *(f"  {entry}" for entry in entries)]
    return "\n".join(lines)


def _propose_orders(inputs: Sequence[MergedInput]) -> list[list[str]]:
    """For each dataset the connectors, as YAML, that put the values of its vectors where those of their names are."""
    datasets = [re.sub(r"\W+", "_", member.source.name) for member in inputs]
    orders = list[list[str]]([] for _ in inputs)
    for path in dict.fromkeys(path for member in inputs for path in member.schema.steps):
        own = {i: member.schema.steps[path] for i, member in enumerate(inputs) if path in member.schema.steps}
        if not all(map(is_vector, own.values())):
            continue
        shapes, named = {field.shape for field in own.values()}, {field.names for field in own.values()}
        changes = {any(value.relative_to for value in field.dimensions) for field in own.values()}
        if len(changes) > 1 or (len(shapes) == 1 and len(named - {()}) < 2):
            continue
        names: dict[int, Sequence[str]] = {}
        for i, field in own.items():
            prefix = datasets[i] if datasets.count(datasets[i]) == 1 else f"{datasets[i]}_{i + 1}"
            unique = len({*field.names}) == field.closed_shape[0]
            names[i] = field.names if unique else [f"{prefix}_{value}" for value in range(field.closed_shape[0])]
        every = list(dict.fromkeys(itertools.chain(*names.values())))
        for i in own:
            order = [str(names[i].index(name)) if name in names[i] else "null" for name in every]
            mask = f", mask: {yaml_text(MASK + path)}" if "null" in order else ""
            arranged = f"field: {yaml_text(path)}, order: [{', '.join(order)}]"
            orders[i].append(f"- ArrangeDimensions: {{{arranged}, names: [{', '.join(map(yaml_text, every))}]{mask}}}")
    return orders
