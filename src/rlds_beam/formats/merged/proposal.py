"""Compares the units of datasets, and proposes the file of `--merge_fields` that makes them one."""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rlds_beam.connectors.cleaning.language import TASK_FIELDS
from rlds_beam.encoding.metadata import yaml_text
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import BadEpisode, RldsBeamError
from rlds_beam.formats.merged.inputs import MergedInput
from rlds_beam.formats.merged.schemas import DatasetsDifferError, describe_by_value, propose_size
from rlds_beam.reading.base import Segment
from rlds_beam.reading.meaning import is_action
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.typing import Array

_EPISODES = 8  # episodes of a dataset to look at
_MAX_BYTES = 16 << 20  # bytes of its records to look at; at least one is read
_RATIO = 20.0  # units differ if values are so many times larger: radians and degrees are 57 apart
_SMALL = 1e-3  # values of this size may be noise, which has no unit


def check_units(inputs: Sequence[MergedInput]) -> tuple[str, ...]:
    """Compares the sizes of values in the first episodes, and returns what to check.

    Raises:
      DatasetsDifferError: most values of a vector are 20 times larger in one dataset than in another.
    """
    wrong, notes = list[str](), list[str]()
    sizes = [_sizes(member) for member in inputs]
    for path in dict.fromkeys(path for own in sizes for path in own):
        having = [(member, own[path]) for member, own in zip(inputs, sizes, strict=True) if path in own]
        for (one, first), (other, second) in itertools.combinations(having, 2):
            if len(first) != len(second):
                continue
            known = np.flatnonzero((first > _SMALL) & (second > _SMALL))
            ratios = np.log(first[known] / second[known]) / np.log(_RATIO)
            odd = known[np.abs(ratios) >= 1]
            if known.size and abs(np.median(ratios)) >= 1:
                said = describe_by_value([f"up to {size.max():.3g}" for size in (first, second)], [one, other])
                wrong.append(
                    f"{path}: other units? {said}: ScaleDimensions converts them; same_units: true in the file of "
                    "--merge_fields says that they are the same"
                )
            elif odd.size:
                said = describe_by_value([f"up to {size[odd[0]]:.3g}" for size in (first, second)], [one, other])
                notes.append(f"{path}[{odd[0]}]: {said}: check that the units are the same")
    if wrong:
        raise DatasetsDifferError(*wrong)
    return tuple(notes)


def _sizes(member: MergedInput) -> dict[str, Array]:
    """The largest absolute values, [D], of actions and observations that are vectors of floats, by path."""
    sizes: dict[str, Array] = {}
    for episode in _first_episodes(member):
        for path, column in episode.steps.items():
            if not is_numeric(column) or not (path.startswith("observation") or is_action(path)):
                continue
            values = np.asarray(column)
            if values.ndim == 2 and values.dtype.kind == "f" and len(values):
                size = np.abs(np.where(np.isfinite(values), values, 0.0)).max(axis=0)
                sizes[path] = np.maximum(sizes.get(path, size), size)
    return sizes


def _first_episodes(member: MergedInput) -> Iterator[Episode]:
    """The first readable episodes after the dataset's connectors, if possible without images."""
    plain = not member.connecting.connectors
    images = [path for path, field in member.source.schema.steps.items() if field.holds_images] if plain else []
    source = member.source.without(images, "not looked at")
    reader, size = EpisodeReader(source), 0
    shards = ((split.name, shard) for split in source.splits for shard in split.shards if shard.size)
    episodes = (episode for split, shard in shards for episode in reader.read(split, Segment(shard)))
    for episode in itertools.islice(episodes, _EPISODES):
        size += len(episode.payload)
        with contextlib.suppress(BadEpisode, RldsBeamError):  # the job says so
            yield from () if episode.faults else member.connecting.connect([episode]).episodes
        if size > _MAX_BYTES:
            return


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
    rates = [member.fps for member in inputs if member.fps is not None]
    datasets = [re.sub(r"\W+", "_", member.source.name) for member in inputs]
    has_task = [not {*member.schema.steps, *member.schema.metadata}.isdisjoint(TASK_FIELDS) for member in inputs]
    for i, (member, own) in enumerate(zip(inputs, fields, strict=True)):
        lines.append(f"- input: {yaml_text(member.path)}")
        if unnamed := [path for path, field in own.items() if _lacks_names(path, field, fields)]:
            lines.append("  names:  # unknown: until you name them, they are not joined with those of other datasets")
            prefix = datasets[i] if datasets.count(datasets[i]) == 1 else f"{datasets[i]}_{i + 1}"
            for path in unnamed:
                names = ", ".join(f"{prefix}_{value}" for value in range(own[path].closed_shape[0]))
                lines.append(f"    {yaml_text(path)}: [{names}]")
        entries = []
        for alike in (lambda field: field.holds_images, _is_vector):
            here = [path for path, field in own.items() if alike(field) and path not in fields[0]]
            there = [path for path, field in fields[0].items() if alike(field) and path not in own]
            if len(here) == len(there) == 1 and here[0].partition("/")[0] == there[0].partition("/")[0]:
                rename = f"{yaml_text(here[0])}: {yaml_text(there[0])}"
                entries.append(f"# - RenameFields: {{fields: {{{rename}}}}}  # if they are the same")
        if member.fps is not None and member.fps != min(rates):
            entries.append(f"- Resample: {{fps: {min(rates):g}}}  # with relative, if actions are changes of a pose")
        if any(has_task) and not has_task[i]:
            entries.append("# - FillLanguage: {text: what the robot does}  # it has no instruction")
        for path, field in own.items():
            same = [other[path] for other in fields if path in other]
            if all(one.holds_images for one in same) and (resize := propose_size(field, same)):
                entries.append(f"- {resize}  # keeps proportions, adds black borders")
        lines += ["  connectors:", *(f"  {entry}" for entry in entries)] if entries else ["  connectors: []"]
    return "\n".join(lines)


def _lacks_names(path: str, field: Field, fields: Sequence[Mapping[str, Field]]) -> bool:
    """Whether a vector has no names, which its values need because others have another length."""
    there = [own[path] for own in fields if path in own]
    return not field.names and all(map(_is_vector, there)) and len({other.shape for other in there}) > 1


def _is_vector(field: Field) -> bool:
    return len(field.shape) == 1 and field.dtype != "string" and field.shape[0] is not None
