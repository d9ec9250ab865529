"""Read several RLDS datasets as one: `--from=merged A,B,C`. Their schemas are merged, or refused by field."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.episodes.columns import exact_cast
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError, Violation
from rlds_beam.formats.rlds.source import RldsSource
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import LastAction, Source, Split
from rlds_beam.text import printable, some

FROM = Field("source_dataset", "string", encoding="text", feature="Text")
"""The episode field with the original dataset, `name/version`."""

_IMAGES = ("png", "jpeg")
Fact = TypeVar("Fact")


@dataclasses.dataclass(frozen=True)
class MergedSource(Source):
    """Several RLDS datasets, concatenated by split. Each episode's `source_dataset` names its dataset.

    Fields may differ in integer or float width: the wider one is used; or in image size or encoding: images become
    images of any size. All other differences are refused by name, including fields that a dataset lacks.
    """

    dataset: str
    schema: Schema
    files: RecordFormat
    decoder: MergedDecoder
    splits: tuple[Split, ...]
    violations: tuple[Violation, ...]
    merged: tuple[RldsSource, ...]
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)

    common: ClassVar[bool] = False

    @classmethod
    def open(cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None) -> MergedSource:
        paths = [path for path in storage.paths_in(input) if path]
        if len(paths) < 2:
            raise UsageError(f"--from=merged: {input}: expected two or more datasets, separated by commas")
        if features is not None or (split is not None and "[" in split):
            raise UsageError("--from=merged takes neither --features nor slices in --split: convert the slices first")
        sources = tuple(RldsSource.open(path, split=split) for path in paths)
        kinds = {source.files.name for source in sources}
        if len(kinds) > 1:
            raise UsageError(f"--from=merged: cannot mix {' and '.join(sorted(kinds))} files: convert one first")
        if empty := [path for path, source in zip(paths, sources, strict=True) if not source.splits]:
            raise UsageError(f"--from=merged: {empty[0]} has no episodes: its dataset_info.json lists no splits")
        schema = _merged_schema(sources, cls.common)
        starts, splits = _merged_splits(sources)
        decoder = MergedDecoder(starts, sources, schema)
        violations = tuple(violation for source in sources for violation in source.violations)
        return cls("merged/1.0.0", schema, sources[0].files, decoder, splits, violations, sources)

    def without(self, paths: Collection[str], why: str) -> MergedSource:
        merged, schema = tuple(source.without(paths, why) for source in self.merged), self.schema.without(paths)
        decoder = MergedDecoder(self.decoder.starts, merged, schema)
        left_out = {**self.left_out, **dict.fromkeys(paths, why)}
        return dataclasses.replace(self, schema=schema, decoder=decoder, merged=merged, left_out=left_out)

    @functools.cached_property
    def fps(self) -> float | None:  # type: ignore[override]
        return _common_value([source.fps for source in self.merged])

    @property
    def rates(self) -> tuple[float, ...]:
        return super().rates or tuple(dict.fromkeys(rate for source in self.merged for rate in source.rates))

    @functools.cached_property
    def robot(self) -> str | None:  # type: ignore[override]
        return _common_value([source.robot for source in self.merged])

    @property
    def last_action(self) -> LastAction:  # type: ignore[override]
        """Void if they contradict each other: an action less is better than one that nobody took."""
        known = {source.last_action for source in self.merged}
        return "void" if known >= {"real", "void"} else _common_value([*known]) or "unknown"

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the datasets say, and what is left out because they contradict each other."""
        own = dict.fromkeys(note for source in self.merged for note in source.notes)
        facts: dict[str, list[str | None]] = {
            "the rate": [f"{source.fps:g} Hz" if source.fps else None for source in self.merged],
            "the robot": [source.robot for source in self.merged],
        }
        lines = [f"{fact} is left out: {self._said(values)}" for fact, values in facts.items() if len({*values}) > 1]
        if {source.last_action for source in self.merged} >= {"real", "void"}:
            lasts = [source.last_action for source in self.merged]
            lines.append(f"last actions are taken to be void: {self._said(lasts)}")
        named = {path: {source.schema.steps[path].names for source in self.merged} for path in self.schema.steps}
        if unlike := [path for path, names in named.items() if len(names) > 1]:
            lines.append(
                f"the names of values are left out, because they differ or are unknown in some: {some(unlike)}"
            )
        return (*own, *lines)

    def _said(self, values: Sequence[str | None]) -> str:
        """`30 Hz in a/1.0.0, unknown in b/1.0.0`."""
        first = {value: source.dataset for value, source in zip(reversed(values), reversed(self.merged), strict=True)}
        said = [
            f"{printable(value or 'unknown', 40)} in {printable(first[value], 60)}" for value in dict.fromkeys(values)
        ]
        return some(said)

    def plan(self) -> dict[str, Any]:
        features = [hashlib.sha256(source.features.encode()).hexdigest() for source in self.merged]
        return {"merged": [[s.dataset, digest] for s, digest in zip(self.merged, features, strict=True)]}


class MergedCommonSource(MergedSource):
    """Like `MergedSource`, with only the fields that all datasets have (`--from=merged_common`)."""

    common = True


class MergedDecoder:
    """Decodes a record with its dataset's decoder, and casts it to the merged schema. Pickles.

    Args:
      starts: the index of each dataset's first shard, by split.
    """

    def __init__(self, starts: Mapping[str, Sequence[int]], sources: Sequence[RldsSource], schema: Schema):
        self.starts, self._schema = starts, schema
        self._decoders = [source.decoder for source in sources]
        self._names = [source.dataset.encode() for source in sources]

    def decode(self, payload: bytes, key: EpisodeKey) -> Episode:
        which = bisect.bisect_right(self.starts[key.split], key.shard) - 1
        episode = self._decoders[which].decode(payload, key)
        steps = {path: _cast(episode.steps[path], field) for path, field in self._schema.steps.items()}
        metadata: dict[str, Any] = {
            path: episode.metadata[path]
            if field.dtype == "string" or field.encoding in _IMAGES
            else exact_cast(np.asarray(episode.metadata[path]), field.numpy_dtype, path)[()]
            for path, field in self._schema.metadata.items()
            if path != FROM.path
        }
        return episode.replace(steps=steps, metadata={**metadata, FROM.path: self._names[which]})


def _cast(column: Column, field: Field) -> Column:
    if isinstance(column, EncodedImages):
        return EncodedImages(column.data, field.shape, field.dtype, field.encoding)
    return exact_cast(column, field.numpy_dtype, field.path)


def _merged_splits(sources: Sequence[RldsSource]) -> tuple[dict[str, list[int]], tuple[Split, ...]]:
    """The first shard of each dataset by split, and the splits with renumbered shards."""
    starts: dict[str, list[int]] = {}
    splits = []
    for name in dict.fromkeys(split.name for source in sources for split in source.splits):
        parts = [next((s.shards for s in source.splits if s.name == name), ()) for source in sources]
        # A missing shard leaves a gap in its dataset's numbers.
        sizes = [max((shard.index + 1 for shard in shards), default=0) for shards in parts]
        starts[name] = [0, *itertools.accumulate(sizes)][:-1]
        shards = [
            dataclasses.replace(shard, index=start + shard.index)
            for start, part in zip(starts[name], parts, strict=True)
            for shard in part
        ]
        splits.append(Split(name, tuple(shards)))
    return starts, tuple(splits)


def _merged_schema(sources: Sequence[RldsSource], common: bool) -> Schema:
    """Merges the schemas.

    Raises:
      UsageError: fields cannot be merged; lists each with the reason.
    """
    wrong: list[str] = []
    parts = []
    for kind in ("steps", "metadata"):
        fields: list[Mapping[str, Field]] = [getattr(source.schema, kind) for source in sources]
        merged = {}
        for path in dict.fromkeys(path for own in fields for path in own):
            without = [source.dataset for source, own in zip(sources, fields, strict=True) if path not in own]
            if without and common:
                continue
            try:
                if without:
                    raise _DifferError(f"missing in {' and '.join(without)} (--from=merged_common leaves it out)")
                merged[path] = _merged_field([own[path] for own in fields], sources)
            except _DifferError as error:
                wrong.append(f"{path}: {error}")
        parts.append(merged)
    if wrong:
        raise UsageError("--from=merged: these datasets cannot be merged:", *(f"  {line}" for line in wrong))
    return Schema(parts[0], {**parts[1], FROM.path: FROM})


def _common_value(values: Sequence[Fact]) -> Fact | None:
    """The value of all datasets; None if they differ."""
    return values[0] if len({*values}) == 1 else None


class _DifferError(ValueError):
    """Fields that cannot be merged."""


def _merged_field(fields: Sequence[Field], sources: Sequence[RldsSource]) -> Field:
    first = fields[0]
    slow = next((field for field in fields if not field.fast), None)
    if slow is not None:
        raise _DifferError(f"a {slow.feature} cannot be decoded without TFDS")
    if any(field.feature == "ClassLabel" for field in fields) and len({str(s.texts) for s in sources}) > 1:
        raise _DifferError("the class names differ or are missing")
    images = {field.encoding in _IMAGES for field in fields}
    if len(images) > 1:
        raise _DifferError("images in only some of the datasets")
    said = " and ".join(dict.fromkeys(f"{field.dtype}{field.shape}" for field in fields))
    if images == {True}:
        if len({field.dtype for field in fields}) > 1 or len({field.shape[-1] for field in fields}) > 1:
            raise _DifferError(f"images of {said}")
        shape = tuple(
            sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*(f.shape for f in fields), strict=True)
        )
        encoding = first.encoding if len({field.encoding for field in fields}) == 1 else "jpeg"
        return Field(first.path, first.dtype, shape, encoding, "Image")
    if len({field.shape for field in fields}) > 1:
        raise _DifferError(f"{said}")
    dtypes = [field.numpy_dtype for field in fields]
    if len({dtype.kind for dtype in dtypes}) > 1:
        raise _DifferError(f"{said}")
    dtype = first.dtype if len(set(dtypes)) == 1 else np.result_type(*dtypes).name
    plain = "bytes" if dtype == "bfloat16" else "none"
    encoding = first.encoding if len({field.encoding for field in fields}) == 1 else plain
    merged = Field(first.path, dtype, first.shape, encoding, first.feature)
    return merged.with_names(_common_value([field.names for field in fields]) or ())
