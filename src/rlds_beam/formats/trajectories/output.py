"""Write trajectory TFRecords for TF-Agents and TFDS."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, TypedDict

from rlds_beam import naming, storage
from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.metadata import Count, convert
from rlds_beam.encoding.tfds.dataset_info import DATASET_INFO, FEATURES
from rlds_beam.encoding.tfrecord.framing import frame
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import TrajectoryOptions
from rlds_beam.output.base import Description, Output
from rlds_beam.output.commits import EarlierOutput, RangeCommit, split_infos, write_tfds_metadata
from rlds_beam.output.files import MANIFEST
from rlds_beam.output.shards import ShardInfo, ShardWriter
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.reading.meaning import Meaning
from rlds_beam.trajectories.converter import JPEG_QUALITY, WindowItemConversion, WindowItemConverter
from rlds_beam.trajectories.frames import frame_count
from rlds_beam.trajectories.items import Items, UnusedSteps, check_length
from rlds_beam.trajectories.options import CASTS, FrameOptions, Images, ItemOptions
from rlds_beam.trajectories.record_encoding import PreparedItems, TrajectoryEncoder
from rlds_beam.trajectories.spec import TrajectorySpec, encode_spec, trajectory_spec

SPEC = ".spec"
BATCH_BYTES = 1 << 20
"""Target size of the items encoded together."""


@dataclasses.dataclass(frozen=True)
class TrajectoryOutput(Output):
    """A dataset of trajectory TFRecords in TFDS's layout, each with the `.spec` that TF-Agents needs.

    Attributes:
      directory: where the files go.
      name: the name of the dataset.
      conversion: how episodes become items.
      description: the dataset's description, for TFDS.
      meaning: what is known of the dataset.
    """

    directory: str
    name: str
    conversion: WindowItemConversion
    description: str = "Trajectories, made by rlds-beam."
    meaning: Meaning = dataclasses.field(default_factory=Meaning)

    sidecars = (SPEC,)
    metadata = (FEATURES, DATASET_INFO)
    options_class = TrajectoryOptions

    @classmethod
    def create(
        cls, source: Source, connectors: ConnectorRunner, directory: str, options: TrajectoryOptions
    ) -> TrajectoryOutput:
        frames, items = FrameOptions.from_options(options), ItemOptions.from_options(options)
        spec = trajectory_spec(connectors.schema, frames, items, options.keep)
        output = cls.from_options(directory, source.name, spec, options.images, source)
        _ = output.conversion.fields  # raises if the format cannot hold a leaf
        return output

    @classmethod
    def from_options(
        cls, directory: str, name: str, spec: TrajectorySpec, images: Images, source: Source | None
    ) -> TrajectoryOutput:
        """The output of items.

        Args:
          source: the dataset that they are made from; None if unknown.
        """
        conversion = WindowItemConversion.from_spec(spec, images)
        if source is None:
            meaning = Meaning(names=spec.names, representations=spec.representations)
            return cls(directory, name, conversion, meaning=meaning)
        meaning = dataclasses.replace(
            source.meaning,
            names=spec.names,
            last_action="unknown",
            representations=spec.representations,
        )
        return cls(directory, name, conversion, f"Trajectories of {source.dataset}, made by rlds-beam.", meaning)

    @property
    def whole_shards(self) -> bool:
        return self.conversion.items.across_episodes

    @property
    def ignored_values(self) -> IgnoredValues:
        return self.conversion.ignored_values

    def plan(self) -> dict[str, Any]:
        return {**self.conversion.plan(), **self.meaning.entry()}

    def describe(self) -> Description:
        records, left_out = self.conversion.describe()
        for path, why in left_out.items():
            if why.startswith(("text", "an episode field")):  # a record can hold it, a trajectory cannot
                left_out[path] = f"{why}; --keep={shlex.quote(path)} stores it next to the trajectory"
        return Description(records, left_out, "frame")

    def predict(self, batches: Iterable[Batch]) -> int:
        return self.conversion.predict(episode for batch in batches for episode in batch.episodes)

    def check_batch(self, batch: Batch) -> None:
        for episode in batch.episodes:
            check_length(frame_count(episode, self.conversion.frames), self.conversion.items)

    def append_to(self, earlier: EarlierOutput, ranges: Sequence[WorkRange], directory: str) -> Self:
        del earlier, ranges
        return dataclasses.replace(self, directory=directory)

    def file(self, work: WorkRange) -> str:
        """The name that TFDS expects."""
        return naming.shard_name(self.name, work.split, "tfrecord", work.number)

    def open_range(self, work: WorkRange) -> TrajectoryWriter:
        return TrajectoryWriter(storage.below(self.directory, self.file(work)), self.conversion)

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        fields = self.conversion.fields
        kept = self.conversion.kept_fields
        splits = split_infos(self.directory, [(commit.split, file) for commit in commits for file in commit.files])
        written = {field.path: field for field in (*fields, *kept)}
        write_tfds_metadata(self.directory, self.name, splits, written, description=self.description)
        held = {"kept": fields_json(kept)} if kept else {}
        return {"fields": fields_json(fields), **held, **self.meaning.entry()}


class TrajectoryWriter:
    """Writes the items of episodes to one TFRecord file (`processing.ranges.RangeWriter`)."""

    def __init__(self, path: str, conversion: WindowItemConversion):
        self._path, self._fields = path, conversion.fields
        self._encoder = TrajectoryEncoder(
            conversion.spec, conversion.images, keep=conversion.keep, jpeg_quality=JPEG_QUALITY
        )
        self._converter = WindowItemConverter(conversion, self._encoder.prepare)
        self._shard = ShardWriter(path)
        self._waiting: list[tuple[PreparedItems, object]] = []
        self._waiting_bytes = 0

    @property
    def predicted(self) -> int:
        return self._converter.predicted

    @property
    def unused_steps(self) -> Mapping[str, UnusedSteps]:
        return self._converter.unused_steps

    def write(self, batch: Batch) -> None:
        for items in self._converter.encode(batch.episodes):
            self._add(items, batch.episodes[0].key)

    def write_items(self, items: Items) -> None:
        """Writes items that were converted before, from one episode; all or none of them.

        Raises:
          BadEpisode: they cannot be written.
        """
        self._add(self._converter.encode_items(items), items.key)

    def _add(self, items: PreparedItems, key: object) -> None:
        if items.windows.count:
            self._waiting.append((items, key))
            self._waiting_bytes += items.size
        if self._waiting_bytes >= BATCH_BYTES:
            self._write()

    def _write(self) -> None:
        self._shard.write(self._encoder.encode_all([items for items, _ in self._waiting]).buffers, 0)
        for items, key in self._waiting:
            self._shard.write((), items.windows.count, key)
        self._waiting, self._waiting_bytes = [], 0

    def finish(self) -> ShardInfo:
        for items in self._converter.finish():
            self._add(items, None)
        self._write()
        info = self._shard.commit()
        storage.write_bytes(self._path + SPEC, frame(encode_spec(self._fields)))
        return info

    def abort(self) -> None:
        self._shard.abort()


def fields_json(fields: Iterable[Field]) -> list[dict[str, Any]]:
    """The fields of a record, as in the manifest."""
    return [{"path": f.path, "dtype": f.dtype, "shape": list(f.shape), "encoding": f.encoding} for f in fields]


def read_fields(manifest: Mapping[str, Any], path: str) -> list[Field]:
    """Reads `fields_json` from the manifest of the output at `path`.

    Raises:
      UsageError: the output has another format, or the manifest is not one that rlds-beam writes.
    """
    fields = manifest.get("fields")
    of_objects = isinstance(fields, list) and all(isinstance(field, dict) for field in fields)
    if not of_objects or "step_type" not in [field.get("path") for field in fields or ()]:
        raise UsageError(f"{path} holds no trajectories: it was converted with another --to")
    convert(fields, list[_Field], storage.join(path, MANIFEST))
    return [Field(f["path"], f["dtype"], tuple(f["shape"]), f["encoding"]) for f in fields or ()]


def read_kept_fields(manifest: Mapping[str, Any], path: str) -> list[Field]:
    """The extra fields in the records of the output at `path`.

    Raises:
      UsageError: the manifest is not one that rlds-beam writes.
    """
    kept = convert(manifest.get("kept", []), list[_KeptField], storage.join(path, MANIFEST))
    return [Field(f["path"], f["dtype"], tuple(f["shape"]), f["encoding"]) for f in kept]


class _Field(TypedDict):
    path: str
    dtype: Literal[CASTS]  # type: ignore[valid-type]
    shape: list[Count | None]
    encoding: Literal["none", "bytes", "jpeg"]


class _KeptField(TypedDict):
    path: str
    dtype: Literal[(*CASTS, "bool", "string")]  # type: ignore[valid-type]
    shape: list[Count | None]
    encoding: Literal["none", "bytes"]
