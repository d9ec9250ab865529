"""TF-Agents trajectory TFRecords as a source: `--from=trajectories`, for `TFRecordObserver` and `--to=trajectories`.

A record holds one frame, described by the `.spec` next to the file (or by the manifest of `--to=trajectories` with
--items=frames or --items=episodes). An episode is the frames from a FIRST to the next LAST; its payload is their framed
records. In a frame, reward and discount belong to the step after it, as in RLDS:

    frame   step_type  FIRST MID   LAST          RLDS    is_first    T F F
            reward     r0    r1    (void)                is_last     F F T
            discount   d0    d1    (void)                is_terminal F F T   if d1 is 0

Items cut from episodes (pairs, sequences) repeat frames, and are refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.base import Damage, Headers, Record
from rlds_beam.encoding.example.reader import Feature, parse_example
from rlds_beam.encoding.structured_values import signature_leaves
from rlds_beam.encoding.tfrecord.file import TFRecordFormat
from rlds_beam.encoding.tfrecord.rows import frame
from rlds_beam.encoding.wire import MalformedError, WireMessage
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import FIRST, LAST, Field, Schema
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.formats.arrays.array_episodes import FLAG_FIELDS, number_field
from rlds_beam.formats.arrays.array_files import SourceOfFiles, no_features, select_splits
from rlds_beam.formats.trajectories.output import SPEC, read_fields
from rlds_beam.formats.trajectories.written_items import make_spec
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.output.directory import is_output
from rlds_beam.output.files import MANIFEST
from rlds_beam.output.manifest import read_manifest
from rlds_beam.reading.base import Shard
from rlds_beam.reading.directory_listing import names_in
from rlds_beam.reading.meaning import KEY, Meaning
from rlds_beam.trajectories.record_decoding import TrajectoryDecoder
from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec
from rlds_beam.typing import Array

Jpegs: TypeAlias = "Mapping[str, tuple[str, ...]]"

_FRAMING = 12, 4  # bytes before and after a payload
_OWN = ("step_type", "next_step_type", "reward", "discount")


@dataclasses.dataclass(frozen=True)
class EpisodesOfFrames:
    """TFRecord files of frames, read as records of episodes (`encoding.base.RecordFormat`).

    Files are not splittable: an episode's beginning is known only from the frames before it.

    Attributes:
      whole: whether each record of a file is already an episode.
    """

    whole: bool
    name: str = "trajectories"
    unit: str = "bytes"

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Record | Damage]:
        held: list[bytes] = []
        first = 0
        for record in TFRecordFormat().read(path):
            if isinstance(record, Damage):
                if held:
                    yield Record(first, b"".join(held))
                    held = []
                yield record
                continue
            kind = None if self.whole else step_type(record.payload)
            if held and kind == FIRST:  # the previous episode has no end
                yield Record(first, b"".join(held))
                held = []
            first = first if held else record.position
            held.append(frame(record.payload))
            if self.whole or kind == LAST:
                yield Record(first, b"".join(held))
                held = []
        if held:
            yield Record(first, b"".join(held))

    def scan(self, path: str, start: int = 0, stop: int | None = None) -> Headers:
        return Headers.of(self.read(path, start, stop))

    def is_splittable(self, path: str) -> bool:
        return False

    def end(self, path: str, size: int) -> int:
        return size

    def positions(self, path: str, low: int, high: int) -> tuple[int, int | None]:
        raise UsageError(f"{path}: its number of episodes is unknown, so it cannot be sliced")


def step_type(payload: bytes) -> int | None:
    """The step type of a frame; None if it cannot be read."""
    try:
        values = _step_types(parse_example(payload).get("step_type", Feature(None)))
    except MalformedError:
        return None
    return int(values[0]) if len(values) else None


def _step_types(feature: Feature) -> Array:
    """Step types as int32, which TF-Agents writes as bytes."""
    if feature.kind == "int64":
        return feature.ints()
    if feature.kind != "bytes":
        return np.zeros(0, np.int32)
    data = b"".join(feature.strings())
    return np.frombuffer(data[: len(data) // 4 * 4], "<i4")


def split_payloads(framed: bytes) -> Iterator[bytes]:
    """The payloads of framed records. Raises MalformedError if the framing is invalid."""
    at, (before, after) = 0, _FRAMING
    while at < len(framed):
        size = int.from_bytes(framed[at : at + 8], "little")
        if at + before + size + after > len(framed):
            raise MalformedError("the records of the frames are cut short")
        yield framed[at + before : at + before + size]
        at += before + size + after


@dataclasses.dataclass(frozen=True)
class FramesDecoder:
    """Decodes frames into episodes (`reading.base.Decoder`).

    Attributes:
      schema: the fields of an episode.
      spec: the spec of the frames.
      jpegs: see `TrajectoryDecoder`.
    """

    schema: Schema
    spec: TrajectorySpec
    jpegs: Jpegs

    def decode(self, payload: bytes, key: EpisodeKey) -> Episode:
        try:
            rows = [np.frombuffer(record, np.uint8)[None] for record in split_payloads(payload)]
            columns = TrajectoryDecoder(self.spec, self.jpegs).decode(rows)
        except (MalformedError, ValueError) as error:
            raise BadEpisode(Violation("not_an_example", f"not the frames of a trajectory: {error}")) from None
        types, discount = columns["step_type"], columns["discount"]
        assert not isinstance(types, EncodedImages) and not isinstance(discount, EncodedImages)
        last = types == LAST
        terminal = last & bool((discount[-2:] == 0).any())
        steps = {path: column for path, column in columns.items() if path not in ("step_type", "next_step_type")}
        steps |= {"is_first": types == FIRST, "is_last": last, "is_terminal": terminal}
        return Episode(key, {path: steps[path] for path in self.schema.steps}, {}, payload)


@dataclasses.dataclass(frozen=True)
class TrajectoriesSource(SourceOfFiles):
    """Trajectory TFRecords. Attributes: see `Source`."""

    last_action = "void"
    told_by_files = True

    @classmethod
    def recognize(cls, path: str) -> str | None:
        names = names_in(path)
        if not names:
            return storage.split(path)[1] + SPEC if storage.exists(path + SPEC) else None
        return next((name for name in names if name.endswith(SPEC) and name.removesuffix(SPEC) in names), None)

    @classmethod
    def open(
        cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None
    ) -> TrajectoriesSource:
        no_features("trajectories", features)
        if isinstance(input, str) and storage.isdir(input) and is_output(input):
            manifest = read_manifest(input)
            spec, jpegs = make_spec(read_fields(manifest, input))
            meaning = Meaning.from_json(manifest.get(KEY, {}), storage.join(input, MANIFEST))
            named: dict[str, list[str]] = {}
            for shard in (entry for entry in manifest["shards"] if entry["records"]):
                named.setdefault(shard["split"], []).append(storage.join(input, shard["file"]))
            name, where = manifest["name"], input
        else:
            paths = _files(input)
            spec, jpegs, meaning = _spec(paths[0]), {}, Meaning()
            named, where = {"train": paths}, paths[0]
            name = naming.to_name(storage.split(paths[0])[1].split(".")[0])
        if spec.item_shape not in ((), (None,)):
            raise UsageError(
                f"{where} holds items of {spec.item_shape[0]} frames, cut from episodes, and not the episodes: read it "
                "with rlds_beam.open_dataset or load_trajectories. --from=trajectories reads outputs of --items=frames "
                "and --items=episodes"
            )
        schema = meaning.name(_schema(spec, jpegs))
        shards = {
            name: tuple(Shard(i, path, storage.size(path), None) for i, path in enumerate(paths))
            for name, paths in named.items()
        }
        files = EpisodesOfFrames(spec.item_shape == (None,))
        decoder, chosen = FramesDecoder(schema, spec, jpegs), select_splits(shards, split, name)
        return cls(f"{name}/1.0.0", schema, decoder, chosen, files, (), meaning.fps, meaning.robot)


def _files(input: str | Sequence[str]) -> list[str]:
    patterns = storage.paths_in(input)
    files: list[str] = []
    for pattern in patterns:
        names = storage.files_below(pattern, "*") if storage.isdir(pattern) else storage.glob(pattern)
        files += [path for path in names if storage.exists(path + SPEC)]
    if not files:
        raise UsageError(f"{','.join(patterns)}: there is no file with its {SPEC} next to it")
    return files


def _spec(path: str) -> TrajectorySpec:
    """The spec of a file's records, from the `.spec` next to it."""
    try:
        (record,) = TFRecordFormat().read(path + SPEC)
        leaves = [*signature_leaves(WireMessage(record.payload))]
    except (MalformedError, ValueError) as error:
        raise UsageError(f"{path}{SPEC} is not a TF-Agents spec: {error}") from error
    shapes = {leaf.path: leaf.shape for leaf in leaves}
    missing = [name for name in _OWN if shapes.get(name) is None]
    if missing:
        raise UsageError(f"{path}{SPEC} is not a trajectory spec: it has no {missing[0]}")
    item = shapes["step_type"] or ()
    for leaf in leaves:
        if leaf.shape is None or None in leaf.shape[len(item) :] or leaf.dtype in ("unknown", "string"):
            raise UsageError(
                f"{path}{SPEC}: {leaf.path} is {leaf.dtype} with shape {leaf.shape}, which is not supported"
            )
    own = (
        SpecLeaf(leaf.path, leaf.dtype, tuple(size or 0 for size in (leaf.shape or ())[len(item) :])) for leaf in leaves
    )
    return TrajectorySpec(tuple(own), item)


def _schema(spec: TrajectorySpec, jpegs: Jpegs) -> Schema:
    fields = {}
    for leaf in spec.leaves:
        if leaf.path not in ("step_type", "next_step_type"):
            fields[leaf.path] = (
                Field(leaf.path, leaf.dtype, leaf.shape, "jpeg", "Image")
                if leaf.path in jpegs
                else number_field(leaf.path, leaf.dtype, leaf.shape)
            )
    return Schema(fields | FLAG_FIELDS)
