"""Episodes of a program as the source of an output."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rlds_beam import naming, storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.given_meaning import check_names, name_fields, with_attributes
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.encoding.metadata import encode
from rlds_beam.encoding.tfds.dataset_info import FEATURES
from rlds_beam.encoding.tfds.features import parse_features
from rlds_beam.encoding.tfds.rlds_dataset import features_json
from rlds_beam.episodes.schema import MAX_NAME, Schema, is_name
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import RldsOptions
from rlds_beam.formats.rlds.output import RldsOutput
from rlds_beam.formats.rlds.source import FORMATS
from rlds_beam.output.plans import OUTPUT_FORMAT, OutputPlan
from rlds_beam.reading.base import Decoder, Source, Split, TfdsMetadata
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.reading.meaning import MAX_RATE, Meaning

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
        name: str | None,
        version: str | None,
        shard_bytes: int,
        format: RldsOptions,
        description: str | None,
        check: CheckOptions,
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
        return cls(directory, f"{name}/{version}", shard_bytes, format, description, check, meaning)

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
            "from": "write_rlds",
            "to": "rlds",
            "dataset": self.dataset,
            "splits": {split.name: {"slice": [0, None]} for split in source.splits},
            "shard_bytes": self.shard_bytes,
            "check": checked,
            **output.plan(),
        }
        return OutputPlan.of(content, output.metadata)
