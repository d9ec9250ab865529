"""RLDS again: the episodes that the check and the connectors let through, as TFDS stores them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.checking.verdicts import Unjudged
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.connecting import Connecting
from rlds_beam.episodes.schema import Schema
from rlds_beam.episodes.violations import BadEpisode
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.arrayrecord_writing import check_writable
from rlds_beam.formats.dataset_info import SplitInfo, dataset_info_json
from rlds_beam.formats.rlds_features import edited_features, same_storage
from rlds_beam.formats.tfrecord_framing import OVERHEAD
from rlds_beam.output.base import Effort, FileOutput
from rlds_beam.output.columns.options import ColumnsFormat, ColumnsOptions
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.files import to_json
from rlds_beam.output.manifest import VERSION
from rlds_beam.output.record_files import open_record_file
from rlds_beam.output.rlds.records import RecordEncoder
from rlds_beam.output.shards import ShardInfo
from rlds_beam.reading.base import Source, TfdsMetadata
from rlds_beam.reading.plan import WorkRange

FEATURES, DATASET_INFO = "features.json", "dataset_info.json"

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_NAME = re.compile(r"[a-z][a-z0-9_]*", re.IGNORECASE)
_CARRIED = (
    "description", "citation", "location", "redistributionInfo", "releaseNotes", "moduleName", "configName",
    "configDescription", "configTags", "supervisedKeys", "disableShuffling",
)  # fmt: skip
"""What of a dataset_info.json is as true of the edited dataset."""


@dataclasses.dataclass(frozen=True)
class RldsOutput(FileOutput):
    """A dataset of episodes in TFDS's layout, a record for each.

    Attributes:
      directory, name: as of `FileOutput`; the name, too, is the directory's, where that is called `NAME/1.0.0`.
      version: of the dataset, or of the directory.
      format: of the files.
      schema: of the episodes that are written.
      stored: how the records that are read hold their fields; None where they are not RLDS.
      features: the text of features.json.
      info: what dataset_info.json says besides the files.
      labels: the texts of files with the names of classes, by file name.
    """

    directory: str
    name: str
    version: str
    format: ColumnsFormat
    schema: Schema
    stored: Schema | None
    features: str
    info: Mapping[str, Any]
    labels: Mapping[str, str]

    holds = "episode"

    @classmethod
    def create(cls, source: Source, directory: str, options: Any) -> RldsOutput:
        return cls._create(source, source.schema, directory, options)

    @classmethod
    def create_connected(cls, source: Source, connecting: Connecting, directory: str, options: Any) -> RldsOutput:
        connecting.refuse_columns("--to=columns")
        if not connecting.connectors:
            return cls.create(source, directory, options)
        return cls._create(source, _with_discount(connecting.probed.schema), directory, options)

    @classmethod
    def _create(cls, source: Source, schema: Schema, directory: str, options: Any) -> RldsOutput:
        kind = ColumnsOptions.of(options).format
        if kind == "parquet":
            raise UsageError("--format=parquet is for --to=columns; --to=rlds writes tfrecord or array_record")
        if kind == "array_record":
            check_writable(directory)
        tfds = source.tfds or TfdsMetadata("")
        stored = None if source.tfds is None else source.schema
        if stored is not None and _unchanged(schema, stored):
            features = tfds.features
        else:
            features = to_json(edited_features(schema, tfds.features, stored))
        name, version = _name_and_version(source, directory)
        info = _carried(tfds.info)
        info.setdefault("description", f"Episodes of {source.dataset}, written by rlds-beam.")
        return cls(directory, name, version, kind, schema, stored, features, info, tfds.labels)

    @property
    def metadata(self) -> tuple[str, ...]:
        return (FEATURES, DATASET_INFO, *self.labels)

    @property
    def effort(self) -> Effort:
        return Effort(decodes_images=False)

    @property
    def unjudged(self) -> Unjudged:
        return Unjudged()

    def plan(self) -> dict[str, Any]:
        return {
            "rlds": {
                "format": self.format,
                "features": json.loads(self.features),
                "info": self.info,
                "labels": self.labels,
            }
        }

    def describe(self) -> tuple[list[str], dict[str, str]]:
        written = self.schema.recorded
        return [*(f"steps/{field}" for field in written.steps.values()), *map(str, written.metadata.values())], {}

    def predict(self, steps: Iterable[int]) -> int:
        return sum(1 for _ in steps)

    def count(self, batch: Batch) -> int:
        return len(batch.episodes)

    def measure(self, batches: Sequence[Batch]) -> int | None:
        encoder, size = self.encoder(), 0
        for batch in batches:
            for episode in batch.episodes:
                try:
                    size += len(encoder.encode(episode, batch.read)) + OVERHEAD
                except BadEpisode:  # it is going to be rejected, and kept as it was read
                    size += len(episode.payload) + OVERHEAD
                except RldsBeamError:  # which is for a worker to say
                    return None
        return size

    def encoder(self) -> RecordEncoder:
        """Episodes as records."""
        return RecordEncoder(self.schema, self.stored)

    def file(self, work: WorkRange) -> str:
        """The name that TFDS expects."""
        return f"{self.name}-{work.split}.{self.format}-{work.index:05d}-of-{work.of:05d}"

    def open_range(self, work: WorkRange) -> RldsWriter:
        return RldsWriter(self, storage.join(self.directory, self.file(work)))

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        """Writes the metadata; a split without episodes is left out, and its empty files are removed."""
        splits = []
        for split in dict.fromkeys(commit.split for commit in commits):
            own = [commit.shard for commit in commits if commit.split == split]
            if any(shard.records for shard in own):
                splits.append(SplitInfo(split, tuple(s.records for s in own), sum(s.bytes for s in own)))
            else:
                storage.remove_files(self.directory, [commit.file for commit in commits if commit.split == split])
        if splits:
            storage.write_text(storage.join(self.directory, FEATURES), self.features)
            info = dataset_info_json(self.name, self.version, splits, file_format=self.format)
            storage.write_text(storage.join(self.directory, DATASET_INFO), to_json({**info, **self.info}))
            for name, text in self.labels.items():
                storage.write_text(storage.join(self.directory, name), text)
        return {"version": self.version, "format": self.format}


class RldsWriter:
    """Writes episodes to one file (`output.base.FileRangeWriter`).

    Attributes:
      predicted: episodes so far.
    """

    def __init__(self, output: RldsOutput, path: str):
        self.predicted = 0
        self._encoder, self._file = output.encoder(), open_record_file(output.format, path)

    def write(self, batch: Batch) -> None:
        records = [self._encoder.encode(episode, batch.read) for episode in batch.episodes]
        for episode, record in zip(batch.episodes, records, strict=True):  # all that can fail has not
            self._file.add(record, episode.key)
        self.predicted += len(records)

    def finish(self) -> ShardInfo:
        return self._file.commit()

    def abort(self) -> None:
        self._file.abort()


def _with_discount(schema: Schema) -> Schema:
    """Connectors may have changed a discount that records do not hold: it is written."""
    steps = {p: dataclasses.replace(f, optional=False, feature="Scalar") if f.optional else f
             for p, f in schema.steps.items()}  # fmt: skip
    return dataclasses.replace(schema, steps=steps)


def _unchanged(schema: Schema, stored: Schema) -> bool:
    pairs = ((schema.steps, stored.steps), (schema.metadata, stored.metadata))
    return all(
        new.keys() == old.keys() and all(same_storage(field, old[path]) for path, field in new.items())
        for new, old in pairs
    )


def _name_and_version(source: Source, directory: str) -> tuple[str, str]:
    """Those of the directory, `…/NAME/1.0.0` as TFDS looks for it, or of the dataset."""
    parent, last = storage.split(directory.rstrip("/"))
    above = storage.split(parent)[1]
    own = source.dataset.split("/")[-1]
    version = next((v for v in (last, own) if _VERSION.fullmatch(v)), VERSION)
    of_config = above in source.dataset.split("/")[1:-1]  # …/NAME/CONFIG/1.0.0
    named = _VERSION.fullmatch(last) and _NAME.fullmatch(above) and not of_config
    return (above if named else source.name), version


def _carried(info: str | None) -> dict[str, Any]:
    content = json.loads(info) if info is not None else {}
    return {name: content[name] for name in _CARRIED if name in content}
