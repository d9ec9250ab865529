"""Read several datasets, of any formats, as one. Their schemas are merged, or refused by field."""

from __future__ import annotations

import bisect
import copy
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.configuration import Configuration, parse
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.base import MixedFormats, RecordFormat
from rlds_beam.encoding.metadata import convert, parse_given
from rlds_beam.episodes.columns import exact_cast, zeros_of
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import Field, Schema, compare_with_schema
from rlds_beam.errors import BadEpisode, NeedsMappingError, RldsBeamError, UsageError, Violation
from rlds_beam.formats.format_options import MergeOptions
from rlds_beam.formats.merged.schemas import (
    FROM,
    DatasetsDifferError,
    MergedInput,
    common_value,
    compare_samples,
    describe_by_value,
    merge_schemas,
    propose,
)
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Details, Shard, Source, Split
from rlds_beam.reading.last_steps import find_last_steps
from rlds_beam.reading.meaning import Meaning
from rlds_beam.text import count


class InputMapping(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of the file of `--merge_fields`: how to read a dataset.

    Attributes:
      input: its path: `mix_batches` opens it, others check that it is the one they are given.
      from_, split, options: as the options of a job; `from` in the file.
      weight: its share of a mixture.
      connectors: what makes its fields those of the others; a list, or all that a file of `--connectors` may say.
    """

    input: str | None = None
    from_: str | None = msgspec.field(default=None, name="from")
    split: str | None = None
    options: dict[str, Any] = {}
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    connectors: Any = None


class MergeMapping(msgspec.Struct, forbid_unknown_fields=True):
    """A file of `--merge_fields`.

    Attributes:
      inputs: the entries, in the order of the datasets; none if these are read as they are.
      same_units: whether the user has checked that the numbers have the same units.
    """

    inputs: tuple[InputMapping, ...] = ()
    same_units: bool = False

    @classmethod
    def load(cls, file: str) -> MergeMapping:
        """Reads a YAML or JSON file. Raises UsageError if it cannot be read or is wrong."""
        where = f"--merge_fields={file}"
        mapping: MergeMapping = convert(parse_given(storage.read_text(file), file, where), cls, where)
        for i, entry in enumerate(mapping.inputs):
            entry.connectors = parse(entry.connectors or [], f"{where}: inputs[{i}]")
        return mapping


def open_inputs(
    paths: Sequence[str], split: str | None, mapping: MergeMapping, opener: Callable[..., Source]
) -> tuple[MergedInput, ...]:
    """Opens the datasets at these paths, and tries their connectors; reads only metadata.

    Raises:
      UsageError: one cannot be opened, is another one than its entry of the mapping says, or does not fit it.
    """
    entries = mapping.inputs or tuple(InputMapping(connectors=Configuration()) for _ in paths)
    if len(entries) != len(paths):
        raise UsageError(f"--merge_fields: {count(len(entries), 'input')} for {count(len(paths), 'dataset')}")
    inputs: list[MergedInput] = []
    for i, (path, entry) in enumerate(zip(paths, entries, strict=True)):
        where = f"--merge_fields: inputs[{i}]"
        if entry.input is not None and os.path.realpath(storage.pin(entry.input)) != os.path.realpath(path):
            raise UsageError(f"{where}: its input is {entry.input}, not {path}: name the datasets in the file's order")
        source = opener(path, entry.split or split, from_=entry.from_, options=entry.options)
        if any(own.sliced for own in source.splits):
            raise UsageError(f"{path}: slices of splits cannot be merged: convert them with --split first")
        try:
            connecting = ConnectorRunner.for_source(entry.connectors, source)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error
        if connecting.unfitted or connecting.splits or any(connecting.probed.modules.values()):
            raise UsageError(
                f"{where}: connectors: they may edit fields and steps, but neither add columns, choose splits, nor be "
                "fitted to the data: give such connectors to the job (--connectors)"
            )
        again = any(source.dataset == member.name for member in inputs)
        name = f"{source.dataset} ({i + 1})" if again else source.dataset
        inputs.append(MergedInput(path, name, connecting.source_after(source), connecting))
    return tuple(inputs)


@dataclasses.dataclass(frozen=True)
class MergedSource(Source):
    """Several datasets, concatenated by split. Each episode's `source_dataset` names its dataset.

    Fields may differ in integer or float width: the wider one is used; or in the encoding of images. All other
    differences are refused by name, unless a file of `--merge_fields` says what to do with them.
    """

    schema: Schema
    files: RecordFormat
    decoder: MergedDecoder
    splits: tuple[Split, ...]
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
        """Opens several datasets, with the opener (`open_source`), and compares their first episodes.

        Raises:
          UsageError: a dataset cannot be opened, or they cannot be merged.
        """
        assert opener is not None
        file, paths = (options or MergeOptions()).merge_fields, storage.paths_in(input)
        if len(paths) < 2:
            raise UsageError(f"--from=merged: {','.join(paths)}: expected two or more datasets")
        if features is not None:
            raise UsageError("--from=merged takes no --features: convert the dataset that needs it first")
        mapping = MergeMapping() if file is None else MergeMapping.load(file)
        inputs = open_inputs(paths, split, mapping, opener)
        try:
            schema, merge_notes = merge_schemas(inputs, same=file is None)
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
        videos = [source.details.videos for source in sources]
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
            meaning,
            Details(
                tuple(violation for source in sources for violation in source.details.violations),
                (*own, *differ, *merge_notes, *unsure),
                videos={path: said for path, said in videos[0].items() if all(own.get(path) == said for own in videos)},
            ),
        )

    def plan(self) -> dict[str, Any]:
        return {"merged": [[m.name, m.source.plan(), m.connecting.configuration.plan()] for m in self.decoder.inputs]}

    @functools.cached_property
    def _shards(self) -> Mapping[str, tuple[MergedInput, Shard]]:
        """The dataset of each shard, and the shard there, by path."""
        splits = [(member, split) for member in self.decoder.inputs for split in member.source.splits]
        return {shard.path: (member, shard) for member, split in splits for shard in split.shards}

    def companions(self, shard: Shard) -> Sequence[str]:
        member, own = self._shards[shard.path]
        return member.source.companions(own)


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
            there = path in connected.steps  # or it is an instruction, and empty
            steps[path] = _cast(connected.steps[path], field) if there else zeros_of(field, len(connected))
        metadata: dict[str, Any] = {}
        for path, field in self.schema.metadata.items():
            value = connected.metadata.get(path)
            if value is None:
                metadata[path] = zeros_of(field, 1)[0]
            elif field.dtype == "string" or field.holds_image_files:
                metadata[path] = value
            else:
                metadata[path] = exact_cast(np.asarray(value), field.numpy_dtype, path)[()]
        metadata[FROM.path] = member.name.encode()
        return connected.replace(key=key, steps=steps, metadata=metadata, payload=episode.payload)


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
