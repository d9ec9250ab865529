"""Compares the units of datasets, and proposes the file of `--merge_fields` that makes them one."""

from __future__ import annotations

import contextlib
import difflib
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
    wrong, notes = [], []
    sizes = [_sizes(member) for member in inputs]
    for path in dict.fromkeys(path for own in sizes for path in own):
        having = [(member, own[path]) for member, own in zip(inputs, sizes, strict=True) if path in own]
        for (one, first), (other, second) in itertools.combinations(having, 2):
            if len(first) != len(second):
                continue
            known = (first > _SMALL) & (second > _SMALL)
            ratios = np.log(first[known] / second[known]) / np.log(_RATIO)
            said = describe_by_value([f"up to {size.max():.3g}" for size in (first, second)], [one, other])
            if len(ratios) and abs(np.median(ratios)) >= 1:
                wrong.append(
                    f"{path}: other units? {said}: ScaleDimensions converts them; same_units: true in the file of "
                    "--merge_fields says that they are the same"
                )
            elif (odd := np.flatnonzero(known)[np.abs(ratios) >= 1]).size:
                sides = describe_by_value([f"up to {size[odd[0]]:.3g}" for size in (first, second)], [one, other])
                notes.append(f"{path}[{odd[0]}]: {sides}: check that the units are the same")
    if wrong:
        raise DatasetsDifferError("these datasets cannot be merged as they are:", *(f"  {line}" for line in wrong))
    return tuple(notes)


def _sizes(member: MergedInput) -> dict[str, Array]:
    """The largest absolute values, [D], of actions and observations that are vectors of floats, by path."""
    sizes: dict[str, Array] = {}
    for episode in _first_episodes(member):
        for path, column in episode.steps.items():
            values = np.asarray(column) if is_numeric(column) else np.zeros(0)
            if values.ndim == 2 and values.dtype.kind == "f" and len(values) and _matters(path):
                size = np.abs(np.where(np.isfinite(values), values, 0.0)).max(axis=0)
                sizes[path] = np.maximum(sizes.get(path, size), size)
    return sizes


def _matters(path: str) -> bool:
    return path.startswith("observation") or is_action(path)


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
        "fields: all  # what only some have is zeros in the others, with a mask; common leaves it out"
        if _names_differ(fields)
        else "fields: common  # leaves out what only some have; all fills it with zeros, with a mask",
        "inputs:",
    ]
    rates = [member.fps for member in inputs if member.fps is not None]
    datasets = [re.sub(r"\W+", "_", member.source.name) for member in inputs]
    has_task = [not {*member.schema.steps, *member.schema.metadata}.isdisjoint(TASK_FIELDS) for member in inputs]
    for i, (member, own) in enumerate(zip(inputs, fields, strict=True)):
        others = {path for other in fields if other is not own for path in other}
        alone = [path for path in own if path not in others and _matters(path)]
        lines.append(f"- input: {yaml_text(member.path)}" + (f"  # only here: {', '.join(alone)}" if alone else ""))
        lines.append("  weight: 1.0  # its share of a mixture (mix_batches)")
        if unnamed := [path for path, field in own.items() if _lacks_names(path, field, fields)]:
            lines.append("  names:  # unknown: until you name them, they are not joined with those of other datasets")
            prefix = datasets[i] if datasets.count(datasets[i]) == 1 else f"{datasets[i]}_{i + 1}"
            for path in unnamed:
                names = ", ".join(f"{prefix}_{value}" for value in range(own[path].closed_shape[0]))
                lines.append(f"    {yaml_text(path)}: [{names}]")
        entries = [
            f"# - RenameFields: {{fields: {{{yaml_text(old)}: {yaml_text(new)}}}}}  # if they are the same"
            for old, new in _find_renames(own, fields[0]).items()
        ]
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


def _names_differ(fields: Sequence[Mapping[str, Field]]) -> bool:
    """Whether the datasets name different actions and observations, or different values of them."""
    for path in dict.fromkeys(path for own in fields for path in own):
        there = [own[path] for own in fields if path in own]
        if len(there) < len(fields) and _matters(path):
            return True
        if all(map(_is_vector, there)) and len({frozenset(field.names) or field.shape for field in there}) > 1:
            return True
    return False


def _lacks_names(path: str, field: Field, fields: Sequence[Mapping[str, Field]]) -> bool:
    """Whether a vector has no names, which its values need because others have another length."""
    there = [own[path] for own in fields if path in own]
    return not field.names and all(map(_is_vector, there)) and len({other.shape for other in there}) > 1


def _find_renames(own: Mapping[str, Field], wanted: Mapping[str, Field]) -> dict[str, str]:
    """Images and vectors that may be those of the first dataset under another name: those names, by their own."""
    renames: dict[str, str] = {}
    for alike in (lambda field: field.holds_images, _is_vector):
        here = [path for path, field in own.items() if alike(field) and path not in wanted]
        there = [path for path, field in wanted.items() if alike(field) and path not in own]
        for path in here:
            rest = [p for p in there if p not in renames.values() and p.partition("/")[0] == path.partition("/")[0]]
            if len(here) == len(there) == 1 and rest:
                renames[path] = rest[0]
            elif close := difflib.get_close_matches(path, rest, 1, 0.6):
                renames[path] = close[0]
    return renames


def _is_vector(field: Field) -> bool:
    return len(field.shape) == 1 and field.dtype != "string" and field.shape[0] is not None
