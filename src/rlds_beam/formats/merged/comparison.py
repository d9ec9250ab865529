"""Compares datasets side by side, and proposes the file of `--merge_fields` that makes them one."""

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
from rlds_beam.episodes.schema import Field, describe_type
from rlds_beam.errors import BadEpisode, RldsBeamError
from rlds_beam.formats.merged.inputs import MergedInput
from rlds_beam.formats.merged.representations import propose_conversions
from rlds_beam.formats.merged.schemas import DatasetsDifferError, describe_by_value, propose_size
from rlds_beam.reading.base import Segment
from rlds_beam.reading.meaning import is_action
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.text import aligned, shorten
from rlds_beam.typing import Array

_EPISODES = 8
"""Most episodes of a dataset to look at."""
_MAX_BYTES = 16 << 20
"""Most bytes of its records to look at; at least one is read."""
_RATIO = 20.0
"""Units differ if values are so many times larger: radians and degrees are 57 apart, 0..1 and percents 100."""
_SMALL = 1e-3
"""Values of this size may be noise, which has no unit."""

Ranges = Mapping[str, tuple[Array, Array]]
"""The lowest and the highest values, [D] each, of step fields by path."""


def sample_ranges(member: MergedInput) -> Ranges:
    """The ranges of the actions and observations that are vectors of floats, in the first episodes of a dataset."""
    lows: dict[str, Array] = {}
    highs: dict[str, Array] = {}
    for episode in _first_episodes(member):
        for path, column in episode.steps.items():
            known = path.startswith("observation") or is_action(path)
            if not (known and is_numeric(column) and len(column)):
                continue
            values = np.asarray(column)
            if values.dtype.kind != "f" or values.ndim != 2:
                continue
            values = np.where(np.isfinite(values), values, 0.0)
            low, high = values.min(axis=0), values.max(axis=0)
            lows[path] = np.minimum(lows[path], low) if path in lows else low
            highs[path] = np.maximum(highs[path], high) if path in highs else high
    return {path: (lows[path], highs[path]) for path in lows}


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


def check_units(inputs: Sequence[MergedInput]) -> tuple[str, ...]:
    """Compares the sizes of values that have the same name, and returns what to check.

    Raises:
      DatasetsDifferError: most values of a vector are 20 times larger in one dataset than in another.
    """
    wrong, notes = [], []
    ranges = [sample_ranges(member) for member in inputs]
    for path in dict.fromkeys(path for own in ranges for path in own):
        sizes = [None if path not in own else np.maximum(np.abs(own[path][0]), np.abs(own[path][1])) for own in ranges]
        for (i, first), (j, second) in itertools.combinations(enumerate(sizes), 2):
            if first is None or second is None or len(first) != len(second):
                continue
            known = (first > _SMALL) & (second > _SMALL)
            ratios = np.log(first[known] / second[known]) / np.log(_RATIO)
            said = describe_by_value([f"up to {size.max():.3g}" for size in (first, second)], [inputs[i], inputs[j]])
            if len(ratios) and abs(np.median(ratios)) >= 1:
                wrong.append(
                    f"{path}: other units? {said}: ScaleDimensions converts them; same_units: true in the file of "
                    "--merge_fields says that they are the same"
                )
            elif (odd := np.flatnonzero(known)[np.abs(ratios) >= 1]).size:
                index = int(odd[0])
                sides = describe_by_value([f"up to {s[index]:.3g}" for s in (first, second)], [inputs[i], inputs[j]])
                notes.append(f"{path}[{index}]: {sides}: check that the units are the same")
    if wrong:
        raise DatasetsDifferError("these datasets cannot be merged as they are:", *(f"  {line}" for line in wrong))
    return tuple(notes)


def compare(inputs: Sequence[MergedInput]) -> list[str]:
    """The datasets side by side: a row for each fact and field, and `*` where they differ."""
    ranges = [sample_ranges(member) for member in inputs]
    rows: list[list[str]] = []
    facts: dict[str, list[str]] = {
        "path": [member.path for member in inputs],
        "episodes": ["?" if member.source.episodes is None else f"{member.source.episodes:,}" for member in inputs],
        "rate": [f"{member.fps:g} Hz" if member.fps else "unknown" for member in inputs],
        "robot": [member.source.robot or "unknown" for member in inputs],
        "last action": [member.source.last_action for member in inputs],
    }
    for fact, values in facts.items():
        differs = fact not in ("path", "episodes") and len({*values}) > 1
        rows.append(["*" if differs else "", fact, *values])
    for level in ("steps", "metadata"):
        fields: list[Mapping[str, Field]] = [getattr(member.schema, level) for member in inputs]
        for path in sorted({path for own in fields for path in own}):
            rows_of = [own.get(path) for own in fields]
            kinds = [describe_type(f.with_names(()).with_representation(None)) if f else "" for f in rows_of]
            names = [", ".join(f.names) if f else "" for f in rows_of]
            known = [str(field.representation or "") if field else "" for field in rows_of]
            rows.append(["*" if any(len({*texts}) > 1 for texts in (kinds, names, known)) else "", path, *kinds])
            for texts in (names, known):
                if any(texts):
                    rows.append(["", "", *(shorten(text, 44) for text in texts)])
            if any(path in own for own in ranges):
                spans = [
                    f"{own[path][0].min():.3g} to {own[path][1].max():.3g}" if path in own else "" for own in ranges
                ]
                rows.append(["", "", *spans])
    return aligned([["", "", *(member.name for member in inputs)], *rows])


def propose(inputs: Sequence[MergedInput]) -> str:
    """The comparison as comments, and a file of `--merge_fields`: values and fields of equal names become one."""
    fields = [member.schema.steps for member in inputs]
    everything = _names_differ(fields)
    lines = [f"# {line}".rstrip() for line in compare(inputs)]
    lines += [
        "#",
        "# A file to start from. Save it as fields.yaml; check what each image and value is, its units, and what",
        "# actions mean; and run",
        f"#   rlds-beam inspect {shlex.join(member.path for member in inputs)} --merge_fields=fields.yaml",
        "fields: all  # what only some have is zeros in the others, with a mask; common leaves it out"
        if everything
        else "fields: common  # leaves out what only some have; all fills it with zeros, with a mask",
        "inputs:",
    ]
    rates = [member.fps for member in inputs if member.fps is not None]
    datasets = [re.sub(r"\W+", "_", member.source.name) for member in inputs]
    for i, (member, own) in enumerate(zip(inputs, fields, strict=True)):
        lines += [f"- input: {yaml_text(member.path)}"]
        lines += ["  weight: 1.0  # its share of a mixture (mix_batches)"]
        if unnamed := [path for path, field in own.items() if _lacks_names(path, field, fields)]:
            lines += ["  names:  # unknown: until you name them, they are not joined with values of the other datasets"]
            prefix = datasets[i] if datasets.count(datasets[i]) == 1 else f"{datasets[i]}_{i + 1}"
            for path in unnamed:
                names = ", ".join(f"{prefix}_{value}" for value in range(own[path].closed_shape[0]))
                lines += [f"    {yaml_text(path)}: [{names}]"]
        entries = [
            f"# - RenameFields: {{fields: {{{yaml_text(old)}: {yaml_text(new)}}}}}  # if they are the same"
            for old, new in _find_renames(own, fields[0]).items()
        ]
        if member.fps is not None and member.fps != min(rates):
            entries.append(f"- Resample: {{fps: {min(rates):g}}}  # with relative, if actions are changes of a pose")
        if any(map(_has_task, inputs)) and not _has_task(member):
            entries.append("# - FillLanguage: {text: what the robot does}  # it has no instruction")
        entries += _edits(own, fields)
        lines += ["  connectors:", *(f"  {entry}" for entry in entries)] if entries else ["  connectors: []"]
    return "\n".join(lines)


def _has_task(member: MergedInput) -> bool:
    return not {*member.schema.steps, *member.schema.metadata}.isdisjoint(TASK_FIELDS)


def _names_differ(fields: Sequence[Mapping[str, Field]]) -> bool:
    """Whether the datasets name different actions and observations, or different values of them."""
    for path in dict.fromkeys(path for own in fields for path in own):
        there = [own[path] for own in fields if path in own]
        if len(there) < len(fields) and (path.startswith("observation") or is_action(path)):
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
    for alike in (_is_image, _is_vector):
        here = [path for path, field in own.items() if alike(field) and path not in wanted]
        there = [path for path, field in wanted.items() if alike(field) and path not in own]
        for path in here:
            rest = [p for p in there if p not in renames.values() and p.partition("/")[0] == path.partition("/")[0]]
            if len(here) == len(there) == 1 and rest:
                renames[path] = rest[0]
            elif close := difflib.get_close_matches(path, rest, 1, 0.6):
                renames[path] = close[0]
    return renames


def _edits(own: Mapping[str, Field], fields: Sequence[Mapping[str, Field]]) -> list[str]:
    """Connectors for the fields that several datasets have, but not in the same dtype, size, or representation."""
    entries: list[str] = []
    for path, field in own.items():
        others, name = [other[path] for other in fields if path in other], yaml_text(path)
        conversions = propose_conversions(name, field.representation, others[0].representation)
        entries += [f"- {entry}" for entry in conversions]
        kinds = {other.numpy_dtype.kind for other in others}
        if "f" in kinds and kinds <= {"f", "i", "u", "b"} and field.numpy_dtype.kind != "f":
            entries.append(f"- CastFields: {{fields: [{name}], dtype: float32}}")
        if all(map(_is_image, others)) and (resize := propose_size(field, others)):
            entries.append(f"- {resize}  # keeps proportions, adds black borders")
    return entries


def _is_image(field: Field) -> bool:
    return field.holds_images or field.holds_image_files


def _is_vector(field: Field) -> bool:
    return len(field.shape) == 1 and field.dtype != "string" and field.shape[0] is not None
