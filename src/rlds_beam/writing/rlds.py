"""`rlds_beam.write_rlds`, and the sink that it shares with `WriteToRlds`: episodes of a program become an RLDS dataset.

An episode is checked and encoded where it comes in, so a bad one is found at once, and its records are stored. When the
order of all episodes is known, each shard copies its records (`keyed_parts`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import xxhash

from rlds_beam import naming, storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.configuration import Configuration, check_names
from rlds_beam.connectors.dry_run import name_fields
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.metadata import encode
from rlds_beam.encoding.tfds.dataset_info import FEATURES
from rlds_beam.encoding.tfds.features import parse_features
from rlds_beam.encoding.tfds.rlds_dataset import features_json
from rlds_beam.encoding.tfrecord.framing import OVERHEAD
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import MAX_NAME, Schema, is_name
from rlds_beam.errors import BadEpisode, FailedRuleError, RldsBeamError, UsageError, Violation
from rlds_beam.formats.format_options import RldsOptions
from rlds_beam.formats.rlds.output import RldsOutput
from rlds_beam.formats.rlds.source import FORMATS
from rlds_beam.output.commits import commit_range, load_manifest, rejected_path
from rlds_beam.output.directory import check_output, lock_output, make_ready
from rlds_beam.output.plans import OUTPUT_FORMAT, OutputPlan, check_files, read_plan, remove_output
from rlds_beam.output.range_conversion import DatasetCommitter
from rlds_beam.output.shards import RejectedWriter, WrittenFile, open_record_file
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.processing.report import Report, check_source
from rlds_beam.reading.base import Source, Split, TfdsMetadata, WorkRange
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.reading.meaning import MAX_RATE
from rlds_beam.text import count
from rlds_beam.writing.arrays import ArrayEpisodes, ImageEncoding, check_images
from rlds_beam.writing.keyed_parts import (
    KeyedSink,
    PackedElement,
    PlacedElement,
    StoredElement,
    read_stored,
    write_all,
)

FROM = "write_rlds"
"""The source in the plan of a directory that a program writes."""
SHARD_BYTES = 256 << 20
"""Default size of a shard."""

_VERSION = re.compile(r"\d+\.\d+\.\d+")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def write_rlds(
    directory: str | os.PathLike[str],
    episodes: Iterable[Any] | Mapping[str, Iterable[Any]],
    *,
    split: str = "train",
    description: str | None = None,
    fps: float | None = None,
    robot_type: str | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    images: ImageEncoding | Mapping[str, ImageEncoding] = "png",
    schema: Schema | None = None,
    check: CheckOptions | None = None,
    strict: bool = True,
    format: Literal["tfrecord", "array_record"] = "tfrecord",
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> Report:
    """Checks episodes of arrays and writes them as an RLDS dataset, which TFDS opens.

        episode = {"observation": {"state": states, "image": pixels}, "action": actions, "reward": rewards,
                   "language_instruction": "open the drawer", "terminated": True, "metadata": {"operator": "Ada"}}
        rlds_beam.write_rlds("data/my_robot/1.0.0", [episode])

    Runs in this process, without Beam, and holds one episode at a time; the disk needs room for the dataset twice.
    Arrays keep their dtype. The fields are those of the first episode. Reward (0), discount (1, then 0 if the episode
    terminates), and the flags `is_first`, `is_last`, and `is_terminal` are added if they are missing. The action,
    reward, and discount may have one value fewer than the observation: the last step of RLDS has none. The dataset
    exists only when all of it is written.

    Args:
      directory: the dataset's directory, best `NAME/1.0.0`: its name and version.
      episodes: the episodes, for example a generator; or a dict of them, by split. An episode is a dict of step
        fields, nested or not: arrays, tensors, or lists with a value for each step, lists of PNG or JPEG files as
        bytes, or one text for all steps. Other keys: `metadata` (a dict, the episode's own fields), and `terminated`
        or `truncated` (how it ended; by default it was cut off). Also taken: `{"steps": [{...}, ...], ...}` as
        TFDS's builders yield it, and `rlds_beam.Episode`.
      split: the name of the split, if `episodes` is not a dict.
      description: describes the dataset.
      fps: steps per second.
      robot_type: the name of the robot.
      names: the names of the values of vectors, by field: `{"action": ["x", "y", "z", "gripper"]}`.
      images: how pixels (uint8 or uint16 arrays [T, height, width, channels]) are stored: `png` (exact), `jpeg`
        (lossy), or `raw`; or a dict of these by field. Encoded images are copied.
      schema: fields whose dtype and shape are given, for example `None` for a size that varies between episodes.
        Lists of numbers take its dtypes.
      check: the policy of each rule, as for other jobs.
      strict: stop at the first bad episode. Otherwise it is kept in `directory/rejected`, with the reason.
      format: the file format.
      shard_bytes: the size of a shard.
      overwrite: replace a dataset that rlds-beam wrote there.

    Returns:
      The counts: `report.episodes`, `report.steps`, `report.rejected`, and the broken rules.

    Raises:
      UsageError: an argument or the directory cannot be used; nothing was written.
      FailedRuleError: an episode breaks a rule; nothing remains of the dataset.
      RldsBeamError: the iterator failed; nothing remains of the dataset.
    """
    path, by_split = os.fspath(directory), _by_split(episodes, split)
    sink = RldsSink.create(
        path,
        images=images,
        schema=schema,
        strict=strict,
        shard_bytes=shard_bytes,
        format=format,
        description=description,
        check=check,
        fps=fps,
        robot_type=robot_type,
        names=names,
    )
    check_directory(path, overwrite=overwrite)
    with lock_output(path):
        contents, read = _contents(by_split), list[tuple[str, int, Any]]()
        for element in contents:
            read.append(element)
            own_split, number, content = element
            try:
                sink = sink.like(content, own_split, number)
                break
            except FailedRuleError:
                if strict:
                    raise
        else:
            what = f"none of {count(len(read), 'episode')} could be read" if read else "there are no episodes"
            raise UsageError(f"write_rlds({path!r}): {what}, so the fields are unknown")
        del element, content
        again = (read.pop(0) for _ in range(len(read)))  # they are not held after that
        try:
            sink = dataclasses.replace(sink, splits=(*by_split,), finds_duplicates=True)
            report: Report = write_all(sink, itertools.chain(again, contents))
        except BaseException:
            remove_output(path)
            raise
    return report


def _by_split(episodes: Any, split: str) -> dict[str, Iterable[Any]]:
    by_split = {split: episodes}
    if isinstance(episodes, Mapping):
        if {"observation", "action", "steps"} & {str(name).partition("/")[0] for name in episodes}:
            raise UsageError("episodes is one episode: pass a list of episodes, for example [episode]")
        by_split = {str(name): own for name, own in episodes.items()}
    for name, own in by_split.items():
        if not isinstance(own, Iterable) or isinstance(own, str | bytes | Mapping):
            raise UsageError(f"the episodes of split {name} are a {type(own).__name__}: expected a list or a generator")
    return by_split


def _contents(by_split: Mapping[str, Iterable[Any]]) -> Iterator[tuple[str, int, Any]]:
    """The split of each episode, its number in the split, and its content."""
    for split, episodes in by_split.items():
        number = 0
        try:
            for content in episodes:
                yield split, number, content
                del content  # not held while the next one is made
                number += 1
        except Exception as error:
            raise RldsBeamError(
                f"episode {number} of split {split}: the iterator raised {type(error).__name__}: {error}. Nothing "
                "remains of the dataset"
            ) from error


class ArraySource(Source):
    """Episodes that a program holds; they have no files.

    Args:
      sink: what is known of the dataset.
    """

    violations = ()
    has_files = False

    def __init__(self, sink: RldsSink):
        features = encode(features_json(sink.episodes.schema))
        parsed = parse_features(features, FEATURES)
        described = {} if sink.description is None else {"description": sink.description}
        self.dataset, self.fps, self.robot = sink.dataset, sink.fps, sink.robot
        self.schema = name_fields(parsed, sink.names)
        self.files, self.decoder = FORMATS[sink.format.format], EpisodeDecoder(parsed)
        self.splits = tuple(Split(naming.check_name(split, "the split"), ()) for split in sink.splits)
        self._tfds = TfdsMetadata(features, json.dumps(described))

    @classmethod
    def open(cls, input: str | Sequence[str], *, split: str | None = None, features: str | None = None) -> Source:
        raise UsageError("episodes of a program have no files to open: use rlds_beam.write_rlds")

    @property
    def tfds(self) -> TfdsMetadata:
        return self._tfds


@dataclasses.dataclass(frozen=True, kw_only=True)
class RldsSink(KeyedSink):
    """Checks episodes of arrays and writes them as RLDS. The elements are (split, key, episode).

    Attributes:
      directory: the dataset's directory.
      dataset: its name and version.
      shard_bytes: the size at which a shard ends.
      format: the file format.
      description, fps, robot, names: what is known of the dataset.
      check: what to do with an episode that breaks a rule.
      strict: raise FailedRuleError for a bad episode.
      finds_duplicates: whether an episode may not repeat one that was packed before: if one process packs all, whose
        keys are positions.
      episodes: converts the episodes; until `like`, it has only the declared fields.
      splits: the names of the splits.
    """

    directory: str
    dataset: str
    shard_bytes: int
    format: RldsOptions
    description: str | None
    fps: float | None
    robot: str | None
    names: Mapping[str, tuple[str, ...]]
    check: CheckOptions
    strict: bool
    finds_duplicates: bool = False
    episodes: ArrayEpisodes
    splits: tuple[str, ...] = ()

    @classmethod
    def create(
        cls,
        directory: str,
        *,
        images: ImageEncoding | Mapping[str, ImageEncoding],
        schema: Schema | None,
        strict: bool,
        shard_bytes: int = SHARD_BYTES,
        format: Literal["tfrecord", "array_record"] = "tfrecord",
        description: str | None = None,
        check: CheckOptions | None = None,
        fps: float | None = None,
        robot_type: str | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> RldsSink:
        """Checks the arguments of `write_rlds`; the name and the version are those of the directory, `NAME/1.0.0`.

        Raises:
          UsageError: an argument cannot be used.
        """
        parent, last = storage.split(directory.rstrip("/"))
        versioned = _VERSION.fullmatch(last) is not None
        name, version = (storage.split(parent)[1], last) if versioned else (last, "1.0.0")
        if shard_bytes < 1:
            raise UsageError(f"shard_bytes={shard_bytes}: expected a number of bytes")
        if fps is not None and not 0 < fps <= MAX_RATE:
            raise UsageError(f"fps={fps}: expected steps per second, above 0 and up to {MAX_RATE:,}")
        if robot_type is not None and not (robot_type and is_name(robot_type)):
            raise UsageError(f"robot_type={robot_type!r}: expected printable text of 1 to {MAX_NAME} characters")
        return cls(
            directory=directory,
            dataset=f"{name if _NAME.fullmatch(name) else 'episodes'}/{version}",
            shard_bytes=shard_bytes,
            format=RldsOptions(format=format),
            description=description,
            fps=fps,
            robot=robot_type,
            names={path: check_names(own, f"names[{path!r}]") for path, own in (names or {}).items()},
            check=check or CheckOptions(),
            strict=strict,
            episodes=ArrayEpisodes.declared(check_images(images), schema or Schema({})),
        )

    def like(self, content: Any, split: str, name: str | int) -> RldsSink:
        """The sink of episodes with the fields of this one.

        Raises:
          FailedRuleError: it is no episode of arrays; the error says its `name`.
        """
        try:
            return dataclasses.replace(self, episodes=self.episodes.like(content))
        except BadEpisode as bad:
            key = EpisodeKey(self.dataset, split, 0, 0)
            raise _refuse(Rejection(key, bad.violations[0].rule, bad.violations, b""), name) from None

    @functools.cached_property
    def source(self) -> ArraySource:
        return ArraySource(self)

    @functools.cached_property
    def output(self) -> RldsOutput:
        connecting = ConnectorRunner.for_source(Configuration(), self.source)
        name, version = self.dataset.split("/")
        output = RldsOutput.create(self.source, connecting, self.directory, self.format)
        return dataclasses.replace(output, name=name, version=version)

    @functools.cached_property
    def output_plan(self) -> OutputPlan:
        """The plan of the directory, without its shards: their number is not known yet."""
        checked = dataclasses.asdict(self.check)
        del checked["fail"]
        content: Mapping[str, Any] = {
            "format": OUTPUT_FORMAT,
            "from": FROM,
            "to": "rlds",
            "dataset": self.dataset,
            "splits": {split: {"slice": [0, None]} for split in self.splits},
            "shard_bytes": self.shard_bytes,
            "check": checked,
            **self.output.plan(),
        }
        return OutputPlan.of(content)

    def open(self) -> None:
        remove_output(self.directory)
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
            episode = self.episodes.episode(content, EpisodeKey(self.dataset, split, 0, 0))
            if self.finds_duplicates and not episode.faults:
                first = seen.setdefault((split, xxhash.xxh3_128_digest(episode.payload)), key)
                if first != key:
                    original = EpisodeKey(self.dataset, split, 0, first)
                    fault = Violation("duplicate_episode", f"byte-identical to {original}")
                    episode = episode.replace(faults=(fault,))
            records: list[bytes] = []
            steps: list[int] = []

            def encode(batch: Batch) -> None:
                for each in batch.episodes:
                    records.append(encoder.encode(each, batch.read))
                    steps.append(len(each))

            verdict = check_and_connect(episode, self.check, connecting, ignored, encode).verdict
            rejected = verdict.rejected
            if rejected is not None and self.strict:
                raise _refuse(rejected, repr(key))
            if rejected is None and not verified:
                self.output.verify(episode.payload, episode)
                verified = True
            # The verdict is completed when the position is known; until then, its episodes are only their lengths.
            stored = (dataclasses.replace(verdict, episodes=()), records, steps)
            # Numbers come before texts, which cannot be compared with them.
            return PackedElement(split, (type(key) is str, key), stored, len(episode.payload) + OVERHEAD)

        return pack

    def bounds(self, weight: int) -> Sequence[int]:
        return range(self.shard_bytes, weight, self.shard_bytes)

    def describe_equal_keys(self, stored: StoredElement) -> str:
        return f"two episodes of split {stored.split[1]} have the key {stored.key[1]!r}: keys must be unique"

    def plan(self, ranges: Sequence[WorkRange]) -> DatasetCommitter:
        if not ranges:
            raise UsageError(f"{self.directory}: there are no episodes to write")
        check_files(name for work in ranges for name in self.output.files(work))
        report, digest = check_source(self.source, self.check), self.output_plan.digest
        return DatasetCommitter(self.source, self.check, self.output, tuple(ranges), report, digest)

    def write_range(self, work: WorkRange, placed: Sequence[PlacedElement], plan: object) -> list[Rejection]:
        del plan
        (file,) = self.output.files(work)
        report, writer = Report(), open_record_file(self.output.format, storage.below(self.directory, file))
        try:
            with RejectedWriter(rejected_path(self.directory, work)) as rejected:
                for each, (verdict, records, steps) in zip(placed, read_stored(placed), strict=True):
                    key = EpisodeKey(self.dataset, work.split, 0, each.position)
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
        commit_range(self.directory, work, files, rejected=kept, report=report, plan=self.output_plan.digest)
        return []

    def commit(self, plan: DatasetCommitter) -> Report:
        return plan.commit()


def _refuse(rejection: Rejection, name: str | int) -> FailedRuleError:
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
    if load_manifest(directory) is not None or existing.content.get("from") != FROM:
        raise UsageError(
            f"{directory} holds a finished dataset, or the output of another job: choose another directory, or pass "
            "overwrite=True"
        )
