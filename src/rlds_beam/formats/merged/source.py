"""Read several datasets, of any formats, as one. Their schemas are merged, or refused by field."""

from __future__ import annotations

import bisect
import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.base import MixedFormats, RecordFormat
from rlds_beam.episodes.columns import exact_cast, zeros_of
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import Field, Schema, compare_with_schema
from rlds_beam.errors import BadEpisode, NeedsMappingError, RldsBeamError, UsageError, Violation
from rlds_beam.formats.format_options import MergeOptions
from rlds_beam.formats.merged.inputs import MergedInput, MergeMapping, open_inputs
from rlds_beam.formats.merged.schemas import (
    FROM,
    MASK,
    DatasetsDifferError,
    common_value,
    compare_samples,
    describe_by_value,
    is_mask,
    merge_schemas,
    propose,
)
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Details, Shard, Source, Split
from rlds_beam.reading.last_steps import find_last_steps
from rlds_beam.reading.meaning import Meaning


@dataclasses.dataclass(frozen=True)
class MergedSource(Source):
    """Several datasets, concatenated by split. Each episode's `source_dataset` names its dataset.

    Fields may differ in integer or float width: the wider one is used; or in the encoding of images. All other
    differences are refused by name, unless `--merge_fields` says what to do with them.

    Attributes:
      mode: what happens to fields that only some datasets have.
    """

    schema: Schema
    files: RecordFormat
    decoder: MergedDecoder
    splits: tuple[Split, ...]
    mode: str
    meaning: Meaning
    details: Details

    dataset = "merged/1.0.0"
    options_class: ClassVar[type[MergeOptions]] = MergeOptions

    @classmethod
    def open(
        cls,
        input: str | Sequence[str],
        *,
        split: str | None = None,
        features: str | None = None,
        options: MergeOptions | None = None,
        opener: Callable[..., Source] | None = None,
    ) -> MergedSource:
        """Opens several datasets, with the opener, and compares their first episodes.

        Raises:
          UsageError: a dataset cannot be opened, or they cannot be merged.
        """
        assert opener is not None
        given, paths = (options or MergeOptions()).merge_fields, storage.paths_in(input)
        if len(paths) < 2:
            raise UsageError(f"--from=merged: {','.join(paths)}: expected two or more datasets")
        if features is not None:
            raise UsageError("--from=merged takes no --features: convert the dataset that needs it first")
        mapping = MergeMapping.load(given)
        inputs = open_inputs(paths, split, mapping, given, opener)
        try:
            schema, merge_notes = merge_schemas(inputs, mapping.fields)
            unsure = compare_samples(inputs, same_units=mapping.same_units)
        except DatasetsDifferError as error:
            raise NeedsMappingError(
                "these datasets cannot be merged as they are:",
                *(f"  {reason}" for reason in error.args),
                "rlds-beam inspect proposes a file for --merge_fields, which makes them the same",
                propose=functools.partial(propose, inputs),
            ) from None
        sources = [member.source for member in inputs]
        rates, robots = [source.fps for source in sources], [source.robot for source in sources]
        last = [source.last_action for source in sources]
        if len({*last}) > 1:
            last = [find_last_steps(source).action for source in sources]
        void = tuple(member.name for member, action in zip(inputs, last, strict=True) if action == "void")
        facts: dict[str, Sequence[str]] = {
            "the rate is left out": [f"{rate:g} Hz" if rate else "unknown" for rate in rates],
            "the robot is left out": [robot or "unknown" for robot in robots],
            "last actions are void in some": last,
        }
        differ = [f"{fact}: {describe_by_value(said, inputs)}" for fact, said in facts.items() if len({*said}) > 1]
        own = dict.fromkeys(note for source in sources for note in source.details.notes)
        notes = (*own, *differ, *merge_notes, *unsure)
        rate, action = common_value(rates), common_value(last)
        meaning = Meaning(
            rate,
            common_value(robots),
            last_action=action or "void",
            rates=() if rate is not None else tuple(dict.fromkeys(filter(None, rates))),
            void_datasets=None if action else void,
        )
        starts, splits = _concatenate_splits(inputs)
        return cls(
            schema,
            _files(inputs),
            MergedDecoder(inputs, schema, starts),
            splits,
            mapping.fields,
            meaning,
            Details(
                tuple(violation for source in sources for violation in source.details.violations),
                notes,
                videos=_common_videos(sources),
            ),
        )

    def plan(self) -> dict[str, Any]:
        members = [[m.name, m.source.plan(), m.connecting.configuration.plan()] for m in self.decoder.inputs]
        return {"merged": members, "fields": self.mode}

    @functools.cached_property
    def _shards(self) -> Mapping[str, tuple[MergedInput, Shard]]:
        """The dataset of each shard, and the shard there, by path."""
        splits = [(member, split) for member in self.decoder.inputs for split in member.source.splits]
        return {shard.path: (member, shard) for member, split in splits for shard in split.shards}

    def companions(self, shard: Shard) -> Sequence[str]:
        member, own = self._shards[shard.path]
        return member.source.companions(own)


def _common_videos(sources: Sequence[Source]) -> dict[str, Mapping[str, Any]]:
    """The facts about a video that all datasets share. Equal ones are copied, unless connectors change them."""
    said = [source.details.videos for source in sources]
    return {path: about for path, about in said[0].items() if all(own.get(path) == about for own in said)}


@dataclasses.dataclass(frozen=True)
class MergedDecoder:
    """Decodes a record with its dataset's decoder, runs the dataset's connectors, and casts to the merged schema.

    Attributes:
      inputs: the datasets.
      schema: the merged schema.
      starts: the index of each dataset's first shard, by split.
    """

    inputs: tuple[MergedInput, ...]
    schema: Schema
    starts: Mapping[str, Sequence[int]]

    def decode(self, payload: bytes, key: EpisodeKey) -> Episode:
        which = bisect.bisect_right(self.starts[key.split], key.shard) - 1
        member = self.inputs[which]
        shard = key.shard - self.starts[key.split][which]
        episode = member.source.decoder.decode(
            payload, dataclasses.replace(key, dataset=member.source.dataset, shard=shard)
        )
        if member.source.last_action == "real":
            episode.note(last_action_is_real=True)
        if faults := compare_with_schema(episode, member.source.schema):
            raise BadEpisode(*faults)
        try:
            episodes = member.connecting.connect([episode]).episodes
        except (UsageError, RldsBeamError) as error:
            raise BadEpisode(Violation("not_an_example", f"--merge_fields: {error}")) from error
        if len(episodes) != 1:
            detail = f"--merge_fields: the dataset's connectors make {len(episodes)} episodes of it, not one"
            raise BadEpisode(Violation("not_an_example", detail))
        connected = episodes[0]
        steps: dict[str, Column] = {}
        for path, field in self.schema.steps.items():
            if path in connected.steps:
                steps[path] = _cast(connected.steps[path], field)
            else:
                steps[path] = _fill(field, len(connected), member.schema.steps)
        metadata: dict[str, Any] = {}
        for path, field in self.schema.metadata.items():
            value = connected.metadata.get(path)
            if value is None:
                metadata[path] = _fill(field, 1, member.schema.metadata)[0]
            elif field.dtype == "string" or field.holds_image_files:
                metadata[path] = value
            else:
                metadata[path] = exact_cast(np.asarray(value), field.numpy_dtype, path)[()]
        metadata[FROM.path] = member.name.encode()
        return connected.replace(key=key, steps=steps, metadata=metadata, payload=episode.payload)


def _fill(field: Field, steps: int, there: Mapping[str, Field]) -> Column:
    """What a dataset with these fields lacks: zeros; or of a mask, whether it has the field that it is the mask of."""
    if is_mask(field):
        return np.full((steps, *field.closed_shape), field.path.removeprefix(MASK) in there)
    return zeros_of(field, steps)


def _cast(column: Column, field: Field) -> Column:
    """A column as the merged field declares it; images stay as they are stored."""
    if isinstance(column, EncodedImages):
        if (column.shape, column.encoding) == (field.shape, field.encoding):
            return column
        declared = copy.copy(column)
        declared.__dict__.update(shape=field.shape, encoding=field.encoding)
        return declared
    return exact_cast(column, field.numpy_dtype, field.path)


def _files(inputs: Sequence[MergedInput]) -> RecordFormat:
    """The format of all files, or the format of each."""
    formats = [member.source.files for member in inputs]
    if all(member == formats[0] for member in formats):
        return formats[0]
    of_path = {shard.path: i for i, member in enumerate(inputs) for s in member.source.splits for shard in s.shards}
    return MixedFormats(tuple(formats), of_path)


def _concatenate_splits(inputs: Sequence[MergedInput]) -> tuple[dict[str, list[int]], tuple[Split, ...]]:
    """The first shard of each dataset by split, and the splits with renumbered shards."""
    starts: dict[str, list[int]] = {}
    splits: list[Split] = []
    for name in dict.fromkeys(split.name for member in inputs for split in member.source.splits):
        own = [[shard for s in member.source.splits if s.name == name for shard in s.shards] for member in inputs]
        # A missing shard leaves a gap in its dataset's numbers.
        sizes = [max((shard.index + 1 for shard in shards), default=0) for shards in own]
        starts[name] = [0, *itertools.accumulate(sizes)][:-1]
        shards = [
            dataclasses.replace(shard, index=start + shard.index)
            for start, shards in zip(starts[name], own, strict=True)
            for shard in shards
        ]
        splits.append(Split(name, tuple(shards)))
    return starts, tuple(splits)
