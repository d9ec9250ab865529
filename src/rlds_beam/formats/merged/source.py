"""Read several datasets, of any formats, as one. Their schemas are merged, or refused by field."""

from __future__ import annotations

import bisect
import copy
import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.base import MixedFormats, RecordFormat
from rlds_beam.episodes.columns import exact_cast, zeros_of
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import Field, Schema, compare_with_schema
from rlds_beam.errors import BadEpisode, NeedsMappingError, RldsBeamError, UsageError, Violation
from rlds_beam.formats.format_options import MergeOptions
from rlds_beam.formats.merged.inputs import MergedInput, MergeMapping, Opener, open_inputs
from rlds_beam.formats.merged.proposal import check_units, propose
from rlds_beam.formats.merged.schemas import (
    FROM,
    DatasetsDifferError,
    Merge,
    common_value,
    describe_by_value,
    merge_schemas,
)
from rlds_beam.images.codecs import encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import LastAction, Shard, Source, Span, Split, VideoSpan
from rlds_beam.reading.meaning import find_last_steps


@dataclasses.dataclass(frozen=True)
class MergedSource(Source):
    """Several datasets, concatenated by split. Each episode's `source_dataset` names its dataset.

    Fields may differ in integer or float width: the wider one is used; in the encoding of images; or in the order of
    named values. All other differences are refused by name, unless `--merge_fields` says what to do with them.

    Attributes:
      inputs: the datasets.
      merge: how their episodes become those of one.
      mapping: what `--merge_fields` says.
    """

    dataset: str
    schema: Schema
    files: RecordFormat
    decoder: MergedDecoder
    splits: tuple[Split, ...]
    violations: tuple[Violation, ...]
    inputs: tuple[MergedInput, ...]
    merge: Merge
    mapping: MergeMapping
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)

    options_class: ClassVar[type[MergeOptions]] = MergeOptions

    @classmethod
    def open(
        cls,
        input: str | Sequence[str],
        *,
        split: str | None = None,
        features: str | None = None,
        options: MergeOptions | None = None,
        opener: Opener | None = None,
    ) -> MergedSource:
        """Opens several datasets; compares the numbers of their first episodes.

        Args:
          input: the paths of the datasets.
          split, features: as in `Source.open`.
          options: what happens to fields that differ.
          opener: opens each dataset.

        Raises:
          UsageError: a dataset cannot be opened, or they cannot be merged.
        """
        assert opener is not None
        mapping, paths = MergeMapping.load((options or MergeOptions()).merge_fields), storage.paths_in(input)
        if len(paths) < 2:
            raise UsageError(f"--from=merged: {','.join(paths)}: expected two or more datasets")
        if features is not None:
            raise UsageError("--from=merged takes no --features: convert the dataset that needs it first")
        inputs = open_inputs(paths, split, mapping, opener)
        try:
            merge = merge_schemas(inputs, mapping.fields)
            notes = () if mapping.same_units else check_units(inputs)
        except DatasetsDifferError as error:
            raise NeedsMappingError(
                "these datasets cannot be merged as they are:",
                *(f"  {reason}" for reason in error.args),
                "rlds-beam inspect proposes a file for --merge_fields, which makes them the same",
                propose=functools.partial(propose, inputs),
            ) from None
        merge = dataclasses.replace(merge, notes=(*merge.notes, *notes))
        starts, splits = _concatenate_splits(inputs)
        violations = tuple(violation for member in inputs for violation in member.source.violations)
        decoder = MergedDecoder(starts, inputs, merge)
        return cls("merged/1.0.0", merge.schema, _files(inputs), decoder, splits, violations, inputs, merge, mapping)

    def without(self, paths: Collection[str], why: str) -> MergedSource:
        inputs = []
        for member in self.inputs:
            own = [path for path in paths if path in member.source.schema.steps]
            plain = not member.connecting.connectors  # which may need the fields
            inputs.append(dataclasses.replace(member, source=member.source.without(own, why)) if plain else member)
        merge = dataclasses.replace(self.merge, schema=self.schema.without(paths))
        return dataclasses.replace(
            self,
            schema=merge.schema,
            decoder=MergedDecoder(self.decoder.starts, inputs, merge),
            inputs=tuple(inputs),
            merge=merge,
            left_out={**self.left_out, **dict.fromkeys(paths, why)},
        )

    @functools.cached_property
    def fps(self) -> float | None:  # type: ignore[override]
        return common_value([member.fps for member in self.inputs])

    @property
    def rates(self) -> tuple[float, ...]:
        return super().rates or tuple(dict.fromkeys(member.fps for member in self.inputs if member.fps is not None))

    @functools.cached_property
    def robot(self) -> str | None:  # type: ignore[override]
        return common_value([member.source.robot for member in self.inputs])

    @property
    def last_action(self) -> LastAction:  # type: ignore[override]
        """Void if they contradict each other; then `void_datasets` are those whose last actions are."""
        return common_value(self._last_actions) or "void"

    @property
    def void_datasets(self) -> tuple[str, ...] | None:  # type: ignore[override]
        if common_value(self._last_actions):
            return None
        own = zip(self.inputs, self._last_actions, strict=True)
        return tuple(member.name for member, last in own if last == "void")

    @functools.cached_property
    def _last_actions(self) -> list[LastAction]:
        """The last action of each dataset; if only some state it, that of the first episodes of the others."""
        said = [member.source.last_action for member in self.inputs]
        return said if common_value(said) else [find_last_steps(member.source).action for member in self.inputs]

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The notes of the datasets, and the facts left out because they contradict each other."""
        facts: dict[str, Sequence[str | None]] = {
            "the rate is left out": [f"{member.fps:g} Hz" if member.fps else None for member in self.inputs],
            "the robot is left out": [member.source.robot for member in self.inputs],
            "last actions are void in some": self._last_actions,
        }
        own = dict.fromkeys(note for member in self.inputs for note in member.source.notes)
        lines = [
            f"{fact}: {describe_by_value([value or 'unknown' for value in values], self.inputs)}"
            for fact, values in facts.items()
            if len({*values}) > 1
        ]
        return (*own, *lines, *self.merge.notes)

    def plan(self) -> dict[str, Any]:
        return {
            "merged": [
                [member.name, member.source.plan(), member.connecting.configuration.plan()] for member in self.inputs
            ],
            "fields": self.mapping.fields,
        }

    def companions(self, shard: Shard) -> Sequence[str]:
        member, own = self._shards[shard.path]
        return member.source.companions(own)

    def image_spans(self, shard: Shard, position: int) -> Mapping[str, Sequence[Span]]:
        member, own = self._shards[shard.path]
        return {} if member.connecting.connectors else member.source.image_spans(own, position)

    def video_spans(self, shard: Shard, position: int) -> Mapping[str, VideoSpan]:
        member, own = self._shards[shard.path]
        return {} if member.connecting.connectors else member.source.video_spans(own, position)

    @property
    def videos(self) -> Mapping[str, Mapping[str, Any]]:
        """The facts about a video that all datasets share; none if connectors may change it. Equal ones are copied."""
        if any(member.connecting.connectors for member in self.inputs):
            return {}
        said = [member.source.videos for member in self.inputs]
        return {path: about for path, about in said[0].items() if all(own.get(path) == about for own in said)}

    def episode_names(self) -> Iterator[tuple[EpisodeKey, tuple[str, ...]]]:
        for i, member in enumerate(self.inputs):
            for key, names in member.source.episode_names():
                start = self.decoder.starts[key.split][i]
                yield dataclasses.replace(key, dataset=self.dataset, shard=start + key.shard), names

    @functools.cached_property
    def _shards(self) -> Mapping[str, tuple[MergedInput, Shard]]:
        """The dataset of each shard, and the shard there, by path."""
        splits = [(member, split) for member in self.inputs for split in member.source.splits]
        return {shard.path: (member, shard) for member, split in splits for shard in split.shards}


class MergedDecoder:
    """Decodes a record with its dataset's decoder, runs the dataset's connectors, and casts to the merged schema.

    Pickles.

    Args:
      starts: the index of each dataset's first shard, by split.
    """

    def __init__(self, starts: Mapping[str, Sequence[int]], inputs: Sequence[MergedInput], merge: Merge):
        self.starts, self._merge = starts, merge
        self._decoders = [(member.source.dataset, member.source.decoder, member.connecting) for member in inputs]
        self._real = [member.source.last_action == "real" for member in inputs]
        self._schemas = [member.source.schema for member in inputs]
        self._names = [member.name.encode() for member in inputs]
        self._fields = [frozenset(member.schema.steps) for member in inputs]  # also those that are not read

    def decode(self, payload: bytes, key: EpisodeKey) -> Episode:
        which = bisect.bisect_right(self.starts[key.split], key.shard) - 1
        dataset, decoder, connecting = self._decoders[which]
        shard = key.shard - self.starts[key.split][which]
        episode = decoder.decode(payload, dataclasses.replace(key, dataset=dataset, shard=shard))
        if self._real[which]:
            episode.note(last_action_is_real=True)
        if faults := compare_with_schema(episode, self._schemas[which]):
            raise BadEpisode(*faults)
        edited = self._connect(episode, connecting)
        steps, metadata = self._merge_steps(edited, which), self._merge_metadata(edited)
        more = {**metadata, FROM.path: self._names[which]}
        return edited.replace(key=key, steps=steps, metadata=more, payload=episode.payload)

    def _connect(self, episode: Episode, connecting: ConnectorRunner) -> Episode:
        if not connecting.connectors:
            return episode
        try:
            episodes = connecting.connect([episode]).episodes
        except (UsageError, RldsBeamError) as error:
            raise BadEpisode(Violation("not_an_example", f"--merge_fields: {error}")) from error
        if len(episodes) != 1:
            detail = f"--merge_fields: the dataset's connectors make {len(episodes)} episodes of it, not one"
            raise BadEpisode(Violation("not_an_example", detail))
        return episodes[0]

    def _merge_steps(self, episode: Episode, which: int) -> dict[str, Column]:
        schema, masks, places = self._merge.schema, self._merge.masks["steps"], self._merge.places[which]
        steps: dict[str, Column] = {}
        for path, field in schema.steps.items():
            column, place = episode.steps.get(path), places.get(path)
            if path in masks.values():
                continue
            if column is None:
                steps[path] = zeros_of(field, len(episode))
            elif place is not None:
                values, index = exact_cast(np.asarray(column), field.numpy_dtype, path), np.array(place)
                steps[path] = np.where(index >= 0, values[:, index], np.zeros((), values.dtype))
            else:
                steps[path] = _cast(column, field)
        for path, mask in masks.items():
            if mask in schema.steps:
                place, shape = places.get(path), (len(episode), *schema.steps[mask].closed_shape)
                there = np.array(path in self._fields[which]) if place is None else np.array(place) >= 0
                steps[mask] = np.broadcast_to(there, shape)
        return steps

    def _merge_metadata(self, episode: Episode) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        masks = self._merge.masks["metadata"]
        for path, field in self._merge.schema.metadata.items():
            if path == FROM.path or path in masks.values():
                continue
            value = episode.metadata.get(path)
            if value is None:
                metadata[path] = zeros_of(field, 1)[0]
            elif field.dtype == "string" or field.holds_image_files:
                metadata[path] = value
            else:
                metadata[path] = exact_cast(np.asarray(value), field.numpy_dtype, path)[()]
        return {**metadata, **{mask: np.bool_(path in episode.metadata) for path, mask in masks.items()}}


def _cast(column: Column, field: Field) -> Column:
    """A column as the merged field declares it; images stay as they are stored."""
    if isinstance(column, EncodedImages):
        if (column.shape, column.encoding) == (field.shape, field.encoding):
            return column
        declared = copy.copy(column)
        declared.__dict__.update(shape=field.shape, encoding=field.encoding)
        return declared
    if field.holds_image_files:
        images = np.empty(len(column), object)
        images[:] = encode_png(column)
        return EncodedImages(images, field.shape, field.dtype, field.encoding)
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
