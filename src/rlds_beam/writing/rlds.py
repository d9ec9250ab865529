"""`rlds_beam.write_rlds`; the sink that it shares with `WriteToRlds`, and what that shares with `WriteEpisodes`.

An episode is converted, and checked if `strict`, where it comes in, so a bad one is found at once. Its record is stored
(`keyed_parts`), and each shard then copies its records, as a conversion does.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import xxhash

from rlds_beam import naming, storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.connectors.base import with_attributes
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
from rlds_beam.errors import BadEpisode, FailedRuleError, UsageError, Violation
from rlds_beam.formats.format_options import RldsOptions
from rlds_beam.formats.outputs import check_files
from rlds_beam.formats.rlds.output import RldsOutput
from rlds_beam.formats.rlds.source import FORMATS, RldsSource
from rlds_beam.output.directory import lock_output
from rlds_beam.output.plans import OUTPUT_FORMAT, OutputPlan, remove_output
from rlds_beam.output.range_conversion import DatasetCommitter, RangeConverter
from rlds_beam.output.shards import RejectedWriter
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.processing.report import Report, check_source
from rlds_beam.reading.base import Source, Split, WorkRange
from rlds_beam.reading.meaning import MAX_RATE, Meaning
from rlds_beam.text import some
from rlds_beam.writing.arrays import ArrayEpisodes, ImageEncoding
from rlds_beam.writing.keyed_parts import (
    FROM,
    KeyedSink,
    PackedElement,
    Place,
    StoredElement,
    check_directory,
    read_stored,
    write_all,
)

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
      FailedRuleError: an episode breaks a rule. Then, or if the iterator fails, nothing remains of the dataset.
    """
    path, by_split = os.fspath(directory), {split: episodes}
    if isinstance(episodes, Mapping):
        if {"observation", "action", "steps"} & {str(name).partition("/")[0] for name in episodes}:
            raise UsageError("episodes is one episode: pass a list of episodes, for example [episode]")
        by_split = {str(name): own for name, own in episodes.items()}
    check_directory(path, overwrite=overwrite)
    with lock_output(path):
        contents = _contents(by_split)
        first = next(contents, None)
        if first is None:
            raise UsageError(f"write_rlds({path!r}): there are no episodes, so the fields are unknown")
        sink = RldsSink.create(
            path,
            first[2],
            f"0 of split {first[0]}, which gives the fields",
            splits=(*by_split,),
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
            overwrite=overwrite,
            seen={},
        )
        elements = itertools.chain([first], contents)
        del first  # not held while the next one is made
        try:
            report: Report = write_all(sink, elements)
        except BaseException:
            remove_output(path)
            raise
    return report


def _contents(by_split: Mapping[str, Iterable[Any]]) -> Iterator[tuple[str, int, Any]]:
    """The split of each episode, its number in the split, and its content."""
    for split, episodes in by_split.items():
        numbers = itertools.count()
        for content in episodes:
            yield split, next(numbers), content
            del content  # not held while the next one is made


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeSink(KeyedSink):
    """Checks the episodes of each range, and writes them as a conversion does.

    Attributes:
      source: the dataset of the episodes.
      converter: converts ranges.
      report: the report on the dataset as a whole.
    """

    source: Source
    converter: RangeConverter
    report: Report

    @classmethod
    def of(cls, source: Source, to: str, converter: RangeConverter, more: Mapping[str, Any], **fields: Any) -> Self:
        """Makes the sink of an output.

        Args:
          more: what else the bytes depend on.
          fields: the other attributes.
        """
        output, checked = converter.output, dataclasses.asdict(converter.check)
        del checked["fail"]  # it may end a job, but does not change what is written
        content = {
            "format": OUTPUT_FORMAT,
            "from": FROM,
            "to": to,
            "dataset": source.dataset,
            "splits": {split.name: {"slice": [split.start, split.stop]} for split in source.splits},
            "check": checked,
        }
        plan = OutputPlan.of({**content, **output.plan(), **more})
        return cls(
            directory=output.directory,
            output_plan=plan,
            splits=tuple(split.name for split in source.splits),
            # Without shards, of which there may be many; their counts do not hold if episodes were dropped.
            source=with_attributes(source, splits=()),
            converter=dataclasses.replace(converter, plan=plan.digest),
            **fields,
        )

    def with_ranges(self, ranges: Mapping[Place, WorkRange]) -> Self:
        works = tuple(ranges.values())
        output = self.converter.output.with_ranges(works)
        check_files(output, works, self.output_plan.content["to"])
        return dataclasses.replace(self, ranges=ranges, converter=dataclasses.replace(self.converter, output=output))

    @property
    def committer(self) -> DatasetCommitter:
        """Completes the dataset."""
        converter, ranges = self.converter, tuple(self.ranges.values())
        return DatasetCommitter(
            self.source, converter.check, converter.output, ranges, self.report, self.output_plan.digest
        )

    def commit(self) -> Report:
        return self.committer.commit()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RldsSink(EpisodeSink):
    """Writes episodes of arrays as RLDS. The elements are (split, key, episode), and are stored as records.

    Attributes:
      episodes: converts the episodes.
      shard_bytes: the size at which a shard ends.
      strict: raise FailedRuleError for a bad episode.
      seen: the digests of the records before -> their keys, to find episodes that repeat one. Only if one process packs
        all; None otherwise.
    """

    episodes: ArrayEpisodes
    shard_bytes: int
    strict: bool
    seen: dict[tuple[str, bytes], int] | None

    equal_keys = "two episodes of split {0.split} have the key {0.key[1]!r}: keys must be unique"
    keeps_rejected = True

    @classmethod
    def create(
        cls,
        directory: str,
        like: Any,
        called: str,
        *,
        splits: Sequence[str],
        images: ImageEncoding | Mapping[str, ImageEncoding] = "png",
        schema: Schema | None = None,
        strict: bool = False,
        shard_bytes: int = SHARD_BYTES,
        format: Literal["tfrecord", "array_record"] = "tfrecord",
        description: str | None = None,
        check: CheckOptions | None = None,
        fps: float | None = None,
        robot_type: str | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
        overwrite: bool = False,
        seen: dict[tuple[str, bytes], int] | None = None,
    ) -> RldsSink:
        """The sink of episodes with the fields of `like`. The name and version are the directory's, `NAME/1.0.0`.

        Args:
          called: names `like` in errors.

        Raises:
          UsageError: an argument cannot be used.
          FailedRuleError: `like` is no episode of arrays.
        """
        if shard_bytes < 1:
            raise UsageError(f"shard_bytes={shard_bytes}: expected a number of bytes")
        if fps is not None and not 0 < fps <= MAX_RATE:
            raise UsageError(f"fps={fps}: expected steps per second, above 0 and up to {MAX_RATE:,}")
        if robot_type is not None and not (robot_type and is_name(robot_type)):
            raise UsageError(f"robot_type={robot_type!r}: expected printable text of 1 to {MAX_NAME} characters")
        checked_names = {path: check_names(own, f"names[{path!r}]") for path, own in (names or {}).items()}
        parent, last = storage.split(directory.rstrip("/"))
        name, version = (storage.split(parent)[1], last) if _VERSION.fullmatch(last) else (last, "1.0.0")
        try:
            episodes = ArrayEpisodes.declared(images, schema or Schema({})).like(like)
        except BadEpisode as bad:
            raise _refuse(called, bad.violations) from None
        features = encode(features_json(episodes.schema))
        source = RldsSource(
            dataset=f"{name if _NAME.fullmatch(name) else 'episodes'}/{version}",
            features=features,
            schema=name_fields(parse_features(features, FEATURES), checked_names),
            files=FORMATS[format],
            splits=tuple(Split(naming.check_name(split, "the split"), ()) for split in splits),
            info=json.dumps({} if description is None else {"description": description}),
            meaning=Meaning(fps, robot_type),
        )
        connecting = ConnectorRunner.for_source(Configuration(), source)
        output = RldsOutput.create(source, connecting, directory, RldsOptions(format=format))
        check = check or CheckOptions()
        return cls.of(
            source,
            "rlds",
            RangeConverter(check, connecting, output),
            {"shard_bytes": shard_bytes},
            overwrite=overwrite,
            report=check_source(source, check),
            episodes=episodes,
            shard_bytes=shard_bytes,
            strict=strict,
            seen=seen,
        )

    def pack(self, element: tuple[str, Any, Any]) -> PackedElement:
        split, key, content = element
        if type(key) not in (str, int):
            raise UsageError(f"the key of an episode is {key!r:.60}: expected text or an integer")
        episode = self.episodes.episode(content, EpisodeKey(self.source.dataset, split, 0, 0))
        payload, faults = episode.payload, episode.faults
        if self.seen is not None and not faults:
            first = self.seen.setdefault((split, xxhash.xxh3_128_digest(payload)), key)
            if first != key:
                faults = (Violation("duplicate_episode", f"byte-identical to episode {first}"),)
        if self.strict:
            check, connecting = self.converter.check, self.converter.connecting
            ignored = connecting.ignored_values(self.converter.output.ignored_values)
            episode = episode.replace(faults=faults)
            rejected = check_and_connect(episode, check, connecting, ignored, bool).verdict.rejected
            if rejected is not None:
                raise _refuse(f"{key!r} of split {split}", rejected.violations)
        # Numbers come before texts, which cannot be compared with them.
        return PackedElement(split, (type(key) is str, key), (payload, faults), len(payload) + OVERHEAD)

    def write_range(self, work: WorkRange, elements: Sequence[StoredElement]) -> list[Rejection]:
        def reject(writer: RejectedWriter, rejection: Rejection) -> None:
            line = {**rejection.to_json(), "id": elements[rejection.key.position].key[1]}
            writer.write(rejection.payload, line, rejection.key)

        self.converter.convert(work, self._read(work, elements), reject=reject)
        return []

    def _read(self, work: WorkRange, elements: Sequence[StoredElement]) -> Iterator[Episode]:
        for position, (payload, faults) in enumerate(read_stored(elements)):
            key = EpisodeKey(self.source.dataset, work.split, work.index, position)
            readable = all(fault.rule == "duplicate_episode" for fault in faults)
            episode = self.source.decoder.decode(payload, key) if readable else Episode(key, {}, payload=payload)
            yield episode.replace(faults=faults)

    def bounds(self, weight: int) -> Sequence[int]:
        return range(self.shard_bytes, weight, self.shard_bytes)


def _refuse(called: str, violations: Sequence[Violation]) -> FailedRuleError:
    """The error for a bad episode."""
    return FailedRuleError(
        f"episode {called}: {some([*map(str, violations)])}. Nothing was written; strict=False writes the good "
        "episodes, and keeps the bad ones in rejected/"
    )
