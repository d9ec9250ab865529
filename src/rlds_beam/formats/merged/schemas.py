"""One schema for several datasets, or why there is none, and a file of `--merge_fields` that makes one."""

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
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.metadata import yaml_text
from rlds_beam.episodes.episode import SOURCE_DATASET
from rlds_beam.episodes.representations import Representation
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import BadEpisode, RldsBeamError
from rlds_beam.reading.base import Source
from rlds_beam.reading.last_steps import is_action
from rlds_beam.reading.reader import sample_episodes
from rlds_beam.text import printable, some
from rlds_beam.typing import Array

FROM = Field(SOURCE_DATASET, "string", encoding="text", feature="Text")
"""The episode field with the original dataset, `name/version`."""

_MASK = "mask/"  # and a vector: which values are real; not `action_mask`, which LeRobot would take for an action
_RATIO = 20.0  # units differ if values are so many times larger: radians and degrees are 57 apart
_SMALL = 1e-3  # values of this size may be noise, which has no unit
_CALIBRATION = ("_distortion_model", "_frame_id", "_base")  # what the numbers of a camera's calibration refer to

Fact = TypeVar("Fact")


@dataclasses.dataclass(frozen=True)
class MergedInput:
    """A dataset to merge.

    Attributes:
      path: where it is.
      name: what `source_dataset` says of its episodes: its name and version, and its number if others have these too.
      source: the dataset; its rate is the one after the connectors.
      connecting: the connectors that make its fields those of the others.
    """

    path: str
    name: str
    source: Source
    connecting: ConnectorRunner

    @property
    def schema(self) -> Schema:
        """The schema after the connectors."""
        return self.connecting.schema


class DatasetsDifferError(ValueError):
    """The datasets, or their fields of one name, cannot be merged as they are; its arguments are all reasons."""


def common_value(values: Sequence[Fact]) -> Fact | None:
    """The value of all datasets; None if they differ."""
    return values[0] if len({*values}) == 1 else None


def merge_schemas(inputs: Sequence[MergedInput], *, same: bool) -> tuple[Schema, tuple[str, ...]]:
    """Merges the schemas; returns the schema of all, and what a user should know.

    Args:
      same: whether all must have the same fields; otherwise, those that only some have are left out.

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
            masked = path.removeprefix(_MASK)
            if lacking and (same or (path != masked and all(masked in there for there in of_inputs))):
                missing[lacking].append(path)
                continue
            if lacking and path not in TASK_FIELDS:
                notes["fields that only some datasets have are left out"].append(path)
                continue
            own = [there[path] for there in of_inputs if path in there]
            try:
                field = _merge_field(own, having)
            except DatasetsDifferError as error:
                wrong.append(f"{path}: {error}")
                continue
            fields[path] = field
            if lacking:
                text = f"no instruction in {lacking} (--task, or FillLanguage in the file of --merge_fields, gives one)"
                notes[text].append(path)
            if not field.names and any(other.names for other in own):
                notes["the names of values are left out, because they are unknown in some"].append(path)
            if len({bool(other.representation and other.representation.rotations) for other in own}) > 1:
                notes["rotations are left out, because they are unknown in some (check that they agree)"].append(path)
    wrong += [
        f"missing in {names}: {', '.join(paths)} (a file leaves such fields out; ArrangeDimensions adds masks)"
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
        if len({(field.dtype, field.shape) for field in fields}) > 1:
            raise DatasetsDifferError(f"images of {said} (ResizeImages gives images one size)")
        coded = common_value([field.encoding for field in fields]) or "jpeg"
        return Field(first.path, first.dtype, first.shape, coded, "Image")
    try:
        representation = merge_representations(fields)
    except DatasetsDifferError as error:
        known = describe_by_value([str(Representation.join(field.dimensions) or "unknown") for field in fields], inputs)
        raise DatasetsDifferError(f"{known}: {error}") from None
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


def is_vector(field: Field) -> bool:
    """Whether its values are vectors of numbers of one size, which can have names."""
    return len(field.shape) == 1 and field.shape[0] is not None and field.dtype != "string"


def merge_representations(fields: Sequence[Field]) -> Representation | None:
    """What all datasets that have a field say of its values; None if that is nothing.

    Raises:
      DatasetsDifferError: two of them contradict each other. What is not said to be a difference is absolute.
    """
    known = [Representation.join(field.dimensions) or Representation() for field in fields]
    rotations = {own.rotations for own in known}
    changes = {(own.relative_to is None, own.absolute) for own in known}
    references, frames = {own.relative_to for own in known}, {own.frame for own in known}
    if len(rotations - {()}) > 1 or len(changes) > 1 or len(references - {"unknown"}) > 1:
        raise DatasetsDifferError(
            "ConvertRotation converts rotations, RelativeActions and AbsoluteActions convert differences, "
            "ArrangeDimensions puts values in another order, or names those that are differences, for example delta_x"
        )
    merged = Representation(
        known[0].rotations if len(rotations) == 1 else (),
        known[0].relative_to if len(references) == 1 else "unknown",
        known[0].frame if len(frames) == 1 else None,
        known[0].absolute,
    )
    return None if merged == Representation() else merged


def compare_samples(inputs: Sequence[MergedInput], *, same_units: bool) -> tuple[str, ...]:
    """Compares the first episodes: units by the sizes of values, and what calibrations of cameras refer to.

    Returns what the user should check, without units if the user has checked these (`same_units`).

    Raises:
      DatasetsDifferError: most values of a vector are 20 times larger in one dataset than in another.
    """
    wrong, notes = list[str](), list[str]()
    sizes, texts = zip(*(_sample(member) for member in inputs), strict=True)
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
    """The largest absolute values, [D], of vectors of floats, and what calibrations refer to, in the first episodes."""
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
    """A file of `--merge_fields`: values of equal names become one, in fields of equal names."""
    connectors: list[list[str]] = [[] for _ in inputs]
    rates = [member.source.fps for member in inputs]
    lowest = min([rate for rate in rates if rate is not None], default=None)
    for own, rate in zip(connectors, rates, strict=True):
        if rate != lowest and rate is not None:
            own.append(f"Resample: {{fps: {lowest:g}}}  # with relative, if actions are changes of a pose")
    for path in inputs[0].schema.steps:
        fields = [member.schema.steps[path] for member in inputs if path in member.schema.steps]
        if len(fields) < len(inputs):
            continue
        images = [field for field in fields if field.holds_images]
        known = [field.closed_shape[:2] for field in images if None not in field.shape and len(images) == len(fields)]
        for own, field, order in zip(connectors, fields, _propose_orders(fields, inputs), strict=True):
            if order:
                own.append(f"ArrangeDimensions: {order}")
            elif known and field.shape[:2] != min(known):
                height, width = min(known)
                resize = f"height: {height}, width: {width}, fields: [{yaml_text(path)}], minimum: 1, fit: pad"
                own.append(f"ResizeImages: {{{resize}}}  # keeps proportions, adds black borders")
    lines = [
        "# A file to start from. Save it as fields.yaml; check what each image and value is, its units, and what",
        "# actions mean; and run",
        f"#   rlds-beam inspect {shlex.join(member.path for member in inputs)} --merge_fields=fields.yaml",
        "# Fields that only some datasets have are left out: RenameFields gives them one name.",
        "inputs:",
    ]
    for member, own in zip(inputs, connectors, strict=True):
        lines.append(f"- input: {yaml_text(member.path)}")
        lines += ["  connectors:" if own else "  connectors: []", *(f"  - {entry}" for entry in own)]
    return "\n".join(lines)


def _propose_orders(fields: Sequence[Field], inputs: Sequence[MergedInput]) -> list[str]:
    """For each dataset, ArrangeDimensions' arguments that put values where those of their names are; or nothing."""
    named = {field.names for field in fields}
    changes = {any(value.relative_to for value in field.dimensions) for field in fields}
    equal = len({field.shape for field in fields}) == 1 and len(named - {()}) < 2
    if equal or len(changes) > 1 or not all(map(is_vector, fields)):
        return ["" for _ in inputs]
    datasets = [re.sub(r"\W+", "_", member.source.name) for member in inputs]
    names: list[Sequence[str]] = []
    for i, (field, dataset) in enumerate(zip(fields, datasets, strict=True), 1):
        prefix = dataset if datasets.count(dataset) == 1 else f"{dataset}_{i}"
        unique = len({*field.names}) == field.closed_shape[0]
        names.append(field.names if unique else [f"{prefix}_{value}" for value in range(field.closed_shape[0])])
    every = list(dict.fromkeys(itertools.chain(*names)))
    mask = f", mask: {yaml_text(_MASK + fields[0].path)}" if any(len(own) < len(every) for own in names) else ""
    result = f"names: [{', '.join(map(yaml_text, every))}]{mask}"
    proposals = []
    for own in names:
        order = ", ".join(str(own.index(name)) if name in own else "null" for name in every)
        proposals.append(f"{{field: {yaml_text(fields[0].path)}, order: [{order}], {result}}}")
    return proposals
