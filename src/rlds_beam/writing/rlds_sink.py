"""Episodes of a program become an RLDS dataset: what `write_rlds` and `WriteToRlds` share.

An episode is checked and encoded where it comes in, so a bad one is found at once, and its records are stored. When the
order of all episodes is known, each shard copies its records (`keyed_parts`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import xxhash

from rlds_beam import naming, storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.given_meaning import check_names, name_fields, with_attributes
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.encoding.metadata import encode
from rlds_beam.encoding.tfds.dataset_info import FEATURES
from rlds_beam.encoding.tfds.features import parse_features
from rlds_beam.encoding.tfds.rlds_dataset import features_json
from rlds_beam.encoding.tfrecord.framing import OVERHEAD
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import MAX_NAME, Schema, is_name
from rlds_beam.errors import FailedRuleError, UsageError, Violation
from rlds_beam.formats.format_options import RldsOptions
from rlds_beam.formats.rlds.output import RldsOutput
from rlds_beam.formats.rlds.source import FORMATS
from rlds_beam.output.commits import RangeCommit, commit_range, rejected_path
from rlds_beam.output.directory import check_output, make_ready
from rlds_beam.output.manifest import load_manifest
from rlds_beam.output.plans import OUTPUT_FORMAT, OutputPlan, check_files, read_plan, remove_output
from rlds_beam.output.range_conversion import DatasetCommitter
from rlds_beam.output.shards import RejectedWriter, WrittenFile, open_record_file
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.processing.report import Report, check_source
from rlds_beam.reading.base import Decoder, Source, Split, TfdsMetadata, WorkRange
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.reading.meaning import MAX_RATE, Meaning
from rlds_beam.writing.episodes import ArrayEpisodes
from rlds_beam.writing.keyed_parts import (
    KeyedSink,
    PackedElement,
    PlacedElement,
    StoredElement,
    read_stored,
    remove_parts,
)

FROM = "write_rlds"
"""The source in the plan of a directory that a program writes."""
SHARD_BYTES = 256 << 20
"""Default size of a shard."""

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclasses.dataclass(frozen=True)
class ArraySource(Source):
    """Episodes that a program holds; they have no files.

    Attributes:
      dataset, schema, files, decoder, splits, violations: as in `Source`.
      features: the text of features.json.
      description: describes the dataset.
    """

    dataset: str
    schema: Schema
    files: RecordFormat
    decoder: Decoder
    splits: tuple[Split, ...]
    features: str
    description: str | None = None

    violations = ()
    has_files = False

    @classmethod
    def open(cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None) -> Source:
        raise UsageError("episodes of a program have no files to open: use rlds_beam.write_rlds")

    @property
    def tfds(self) -> TfdsMetadata:
        described = {} if self.description is None else {"description": self.description}
        return TfdsMetadata(self.features, json.dumps(described))


@dataclasses.dataclass(frozen=True)
class WriteSettings:
    """The settings of `write_rlds` and `WriteToRlds`, checked.

    Attributes:
      directory: the dataset's directory.
      dataset: its name and version.
      shard_bytes: the size at which a shard ends.
      format: the file format.
      description: describes the dataset, for dataset_info.json.
      check: what to do with an episode that breaks a rule.
      meaning: the rate, the robot, and the names of values.
    """

    directory: str
    dataset: str
    shard_bytes: int
    format: RldsOptions
    description: str | None
    check: CheckOptions
    meaning: Meaning = dataclasses.field(default_factory=Meaning)

    @classmethod
    def of(
        cls,
        directory: str,
        *,
        name: str | None = None,
        version: str | None = None,
        shard_bytes: int = SHARD_BYTES,
        format: Literal["tfrecord", "array_record"] = "tfrecord",
        description: str | None = None,
        check: CheckOptions | None = None,
        fps: float | None = None,
        robot_type: str | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> WriteSettings:
        """Checks the settings; the name and version default to those of the directory, `NAME/1.0.0`.

        Raises:
          UsageError: a setting cannot be used.
        """
        parent, last = storage.split(directory.rstrip("/"))
        versioned = _VERSION.fullmatch(last) is not None
        named = storage.split(parent)[1] if versioned else last
        name = name or (named if _NAME.fullmatch(named) else "episodes")
        version = version or (last if versioned else "1.0.0")
        if not _NAME.fullmatch(name):
            raise UsageError(f"name={name!r}: expected lowercase letters, digits, and _, starting with a letter")
        if not _VERSION.fullmatch(version):
            raise UsageError(f"version={version!r}: expected three numbers, for example 1.0.0")
        if shard_bytes < 1:
            raise UsageError(f"shard_bytes={shard_bytes}: expected a number of bytes")
        if fps is not None and not 0 < fps <= MAX_RATE:
            raise UsageError(f"fps={fps}: expected steps per second, above 0 and up to {MAX_RATE:,}")
        if robot_type is not None and not (robot_type and is_name(robot_type)):
            raise UsageError(f"robot_type={robot_type!r}: expected printable text of 1 to {MAX_NAME} characters")
        named_values = {path: check_names(own, f"names[{path!r}]") for path, own in (names or {}).items()}
        meaning = Meaning(fps, robot_type, named_values)
        options, check = RldsOptions(format=format), check or CheckOptions()
        return cls(directory, f"{name}/{version}", shard_bytes, options, description, check, meaning)

    @property
    def name(self) -> str:
        return self.dataset.partition("/")[0]

    def source(self, schema: Schema, splits: Sequence[str]) -> ArraySource:
        """The source of episodes with this schema (`ArrayEpisodes.schema`)."""
        features = encode(features_json(schema))
        parsed = parse_features(features, FEATURES)
        files, decoder = FORMATS[self.format.format], EpisodeDecoder(parsed)
        named = tuple(Split(naming.check_name(split, "the split"), ()) for split in splits)
        source = ArraySource(self.dataset, parsed, files, decoder, named, features, self.description)
        return cast(
            ArraySource,
            with_attributes(
                source,
                schema=name_fields(parsed, self.meaning.names),
                fps=self.meaning.fps,
                robot=self.meaning.robot,
            ),
        )

    def output(self, source: ArraySource) -> RldsOutput:
        """The output of the source's episodes."""
        connecting = ConnectorRunner.for_source(Configuration(), source)
        output = RldsOutput.create(source, connecting, self.directory, self.format)
        name, version = self.dataset.split("/")
        return dataclasses.replace(output, name=name, version=version)

    def plan(self, source: ArraySource, output: RldsOutput) -> OutputPlan:
        """The plan of the directory, without its shards: their number is not known yet."""
        checked = dataclasses.asdict(self.check)
        del checked["fail"]
        content: Mapping[str, Any] = {
            "format": OUTPUT_FORMAT,
            "from": FROM,
            "to": "rlds",
            "dataset": self.dataset,
            "splits": {split.name: {"slice": [0, None]} for split in source.splits},
            "shard_bytes": self.shard_bytes,
            "check": checked,
            **output.plan(),
        }
        return OutputPlan.of(content)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RldsSink(KeyedSink):
    """Checks episodes of arrays and writes them as RLDS. The elements are (split, key, episode).

    Attributes:
      settings: the settings.
      episodes: converts the episodes.
      splits: the names of the splits.
      strict: raise FailedRuleError for a bad episode.
      finds_duplicates: whether an episode may not repeat one that was packed before: if one process packs all, whose
        keys are positions.
    """

    settings: WriteSettings
    episodes: ArrayEpisodes
    splits: tuple[str, ...]
    strict: bool
    finds_duplicates: bool = False

    @property
    def directory(self) -> str:  # type: ignore[override]
        return self.settings.directory

    @functools.cached_property
    def source(self) -> ArraySource:
        return self.settings.source(self.episodes.schema, self.splits)

    @functools.cached_property
    def output(self) -> RldsOutput:
        return self.settings.output(self.source)

    @functools.cached_property
    def output_plan(self) -> OutputPlan:
        return self.settings.plan(self.source, self.output)

    def open(self) -> None:
        remove_all(self.directory)
        make_ready(self.directory, self.output_plan)

    def packer(self) -> Callable[[tuple[str, Any, Any]], PackedElement]:
        connecting = ConnectorRunner.for_source(Configuration(), self.source)
        encoder, ignored, verified = self.output.encoder(), self.output.ignored_values, False
        seen: dict[tuple[str, bytes], int] = {}

        def pack(element: tuple[str, Any, Any]) -> PackedElement:
            nonlocal verified
            split, key, content = element
            if type(key) not in (str, int):
                raise UsageError(f"the key of an episode is {key!r:.60}: expected text or an integer")
            episode = self.episodes.episode(content, EpisodeKey(self.settings.dataset, split, 0, 0))
            if self.finds_duplicates and not episode.faults:
                first = seen.setdefault((split, xxhash.xxh3_128_digest(episode.payload)), key)
                if first != key:
                    original = EpisodeKey(self.settings.dataset, split, 0, first)
                    fault = Violation("duplicate_episode", f"byte-identical to {original}")
                    episode = episode.replace(faults=(fault,))
            records: list[bytes] = []
            steps: list[int] = []

            def encode(batch: Batch) -> None:
                for each in batch.episodes:
                    records.append(encoder.encode(each, batch.read))
                    steps.append(len(each))

            verdict = check_and_connect(episode, self.settings.check, connecting, ignored, encode).verdict
            rejected = verdict.rejected
            if rejected is not None and self.strict:
                raise describe_refusal(rejected, repr(key))
            if rejected is None and not verified:
                self.output.verify(episode.payload, episode)
                verified = True
            # The verdict is completed when the position is known; until then, its episodes are only their lengths.
            stored = (dataclasses.replace(verdict, episodes=()), records, steps)
            # Numbers come before texts, which cannot be compared with them.
            return PackedElement(split, (type(key) is str, key), stored, len(episode.payload) + OVERHEAD)

        return pack

    def bounds(self, weight: int) -> Sequence[int]:
        return range(self.settings.shard_bytes, weight, self.settings.shard_bytes)

    def describe_equal_keys(self, stored: StoredElement) -> str:
        return f"two episodes of split {stored.split[1]} have the key {stored.key[1]!r}: keys must be unique"

    def plan(self, ranges: Sequence[WorkRange]) -> DatasetCommitter:
        if not ranges:
            raise UsageError(f"{self.directory}: there are no episodes to write")
        check_files(name for work in ranges for name in self.output.files(work))
        check, digest = self.settings.check, self.output_plan.digest
        return DatasetCommitter(
            self.source, check, self.output, tuple(ranges), check_source(self.source, check), digest
        )

    def write(
        self, work: WorkRange, placed: Sequence[PlacedElement], plan: object
    ) -> tuple[RangeCommit, list[Rejection]]:
        del plan
        (file,) = self.output.files(work)
        report, writer = Report(), open_record_file(self.output.format, storage.below(self.directory, file))
        try:
            with RejectedWriter(rejected_path(self.directory, work)) as rejected:
                for each, (verdict, records, steps) in zip(placed, read_stored(placed), strict=True):
                    key = EpisodeKey(self.settings.dataset, work.split, 0, each.position)
                    rejection = verdict.rejected
                    if rejection is not None:
                        rejection = dataclasses.replace(rejection, key=key)
                        line = {**rejection.to_json(), "id": each.stored.key[1]}
                        rejected.write(rejection.payload, line, key)
                    # Stubs of the accepted episodes, which have only their steps.
                    stubs = tuple(Episode(key, {"is_first": np.broadcast_to(np.False_, length)}) for length in steps)
                    report.add(dataclasses.replace(verdict, key=key, episodes=stubs, rejected=rejection))
                    for record in records:
                        writer.add(record, key)
                        report.items_predicted += 1
                kept, info = rejected.commit(), writer.commit()
        finally:
            writer.abort()
        report.items_written, report.bytes_written = info.records, info.bytes
        files = [WrittenFile(file, info, report.items_predicted)]
        digest = self.output_plan.digest
        return commit_range(self.directory, work, files, rejected=kept, report=report, plan=digest), []

    def commit(self, plan: DatasetCommitter) -> Report:
        return plan.commit()


def describe_refusal(rejection: Rejection, name: str | int) -> FailedRuleError:
    """The error for a bad episode, called by its key."""
    more = len(rejection.violations) - 1
    others = f" (and {more} more)" if more else ""
    return FailedRuleError(
        f"episode {name} of split {rejection.key.split}: {rejection.rule}: {rejection.detail}{others}. Nothing was "
        "written; strict=False writes the good episodes, and keeps the bad ones in rejected/"
    )


def check_directory(directory: str, *, overwrite: bool) -> None:
    """Checks that a new dataset may be written to a directory. Writes nothing.

    An unfinished one of an earlier run is replaced, because its episodes cannot be read again.

    Raises:
      UsageError: it holds something else, or a dataset, and `overwrite` is False.
    """
    existing = read_plan(directory)
    check_output(directory, existing or OutputPlan.of({}), overwrite=overwrite)
    if existing is None or overwrite:
        return
    if load_manifest(directory) is not None:
        raise UsageError(f"{directory} holds a finished dataset: choose another directory, or pass overwrite=True")
    if existing.content.get("from") != FROM:
        raise UsageError(
            f"{directory} holds the unfinished output of another job: choose another directory, or pass overwrite=True"
        )


def remove_all(directory: str) -> None:
    """Removes everything that was written, finished or not."""
    remove_parts(directory)
    remove_output(directory)
