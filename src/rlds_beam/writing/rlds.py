"""`rlds_beam.write_rlds`; the sink that it shares with `WriteToRlds`, and what that shares with `WriteEpisodes`.

An episode is converted, and checked if `strict`, where it comes in, so a bad one is found at once. Its record is stored
(`keyed_parts`), and each shard then copies its records, as a conversion does.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypedDict, Unpack

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.connectors.base import with_attributes
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.dry_run import name_fields
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.metadata import encode
from rlds_beam.encoding.tfds.dataset_info import FEATURES, TfdsMetadata
from rlds_beam.encoding.tfds.features import parse_features
from rlds_beam.encoding.tfds.rlds_dataset import features_json
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import BadEpisode, FailedRuleError, UsageError, Violation
from rlds_beam.formats.format_options import RldsOptions
from rlds_beam.formats.outputs import check_files
from rlds_beam.formats.rlds.output import RldsOutput, name_and_version
from rlds_beam.formats.rlds.source import FORMATS, RldsSource
from rlds_beam.output.directory import lock_output
from rlds_beam.output.plans import OutputPlan, remove_output
from rlds_beam.output.range_conversion import DatasetCommitter, RangeConverter
from rlds_beam.output.shards import RejectedWriter
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.processing.report import Report, check_source
from rlds_beam.reading.base import Details, Source, WorkRange
from rlds_beam.reading.meaning import Meaning
from rlds_beam.text import some
from rlds_beam.writing.arrays import ArrayEpisodes, ImageEncoding
from rlds_beam.writing.keyed_parts import (
    FROM,
    KeyedSink,
    Place,
    StoredElement,
    check_directory,
    read_stored,
    write_all,
)


class WriteOptions(TypedDict, total=False):
    """The options of `write_rlds` and `WriteToRlds`.

    Attributes:
      fps: steps per second.
      robot_type: the name of the robot.
      names: the names of the values of vectors, by field: `{"action": ["x", "y", "z", "gripper"]}`.
      images: how pixels (uint8 or uint16 arrays [T, height, width, channels]) are stored: `png` (exact, the default),
        `jpeg` (lossy), or `raw`; or a dict of these by field. Encoded images are copied.
      schema: fields whose dtype and shape are given, for example `None` for a size that varies between episodes.
        Lists of numbers take its dtypes.
      check: the policy of each rule, as for other jobs.
      num_shards: files per split, at most; by size if not given.
      overwrite: replace a dataset that rlds-beam wrote there.
    """

    fps: float
    robot_type: str
    names: Mapping[str, Sequence[str]]
    images: ImageEncoding | Mapping[str, ImageEncoding]
    schema: Schema
    check: CheckOptions
    num_shards: int
    overwrite: bool


def write_rlds(
    directory: str | os.PathLike[str],
    episodes: Iterable[Any] | Mapping[str, Iterable[Any]],
    *,
    split: str = "train",
    strict: bool = True,
    **options: Unpack[WriteOptions],
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
      strict: stop at the first bad episode. Otherwise it is kept in `directory/rejected`, with the reason.
      options: those of `WriteOptions`: `fps`, `robot_type`, `names`, `images`, `schema`, `check`, `num_shards`, and
        `overwrite`.

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
    check_directory(path, overwrite=options.get("overwrite", False))
    with lock_output(path):
        contents = _contents(by_split)
        first = next(contents, None)
        if first is None:
            raise UsageError(f"write_rlds({path!r}): there are no episodes, so the fields are unknown")
        called = f"0 of split {first[0]}, which gives the fields"
        sink = RldsSink.create(path, first[2], called, strict=strict, **options)
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
      converter: converts ranges.
      committer: completes the dataset.
    """

    converter: RangeConverter
    committer: DatasetCommitter

    @classmethod
    def from_source(
        cls, source: Source, to: str, converter: RangeConverter, report: Report, more: Mapping[str, Any], **fields: Any
    ) -> Self:
        """Makes the sink of an output; `more` is what else the bytes depend on, `fields` are the other attributes."""
        output, checked = converter.output, dataclasses.asdict(converter.check)
        del checked["fail"]  # it may end a job, but does not change what is written
        content = {
            "from": FROM,
            "to": to,
            "dataset": source.dataset,
            "splits": {split.name: {"slice": [split.start, split.stop]} for split in source.splits},
            "check": checked,
        }
        plan = OutputPlan.from_content({**content, **output.plan(), **more})
        # Without shards, of which there may be many; their counts do not hold if episodes were dropped.
        named = with_attributes(source, splits=())
        return cls(
            directory=output.directory,
            output_plan=plan,
            splits=tuple(split.name for split in source.splits),
            converter=dataclasses.replace(converter, plan=plan.digest),
            committer=DatasetCommitter(named, converter.check, output, (), report, plan.digest),
            **fields,
        )

    def assign_ranges(self, ranges: Mapping[Place, WorkRange]) -> Self:
        works = tuple(ranges.values())
        output = self.converter.output.with_ranges(works)
        check_files(output, works, self.output_plan.content["to"])
        converter = dataclasses.replace(self.converter, output=output)
        committer = dataclasses.replace(self.committer, output=output, ranges=works)
        return dataclasses.replace(self, ranges=ranges, converter=converter, committer=committer)

    def commit(self) -> Report:
        return self.committer.commit()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RldsSink(EpisodeSink):
    """Writes episodes of arrays as RLDS. The elements are (split, key, episode), and are stored as records.

    Attributes:
      episodes: converts the episodes.
      strict: raise FailedRuleError for a bad episode.
    """

    episodes: ArrayEpisodes
    strict: bool

    keeps_rejected = True

    @classmethod
    def create(
        cls,
        directory: str,
        like: Any,
        called: str,
        *,
        strict: bool,
        fps: float | None = None,
        robot_type: str | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
        images: ImageEncoding | Mapping[str, ImageEncoding] = "png",
        schema: Schema | None = None,
        check: CheckOptions | None = None,
        num_shards: int | None = None,
        overwrite: bool = False,
    ) -> RldsSink:
        """The sink of episodes with the fields of `like`.

        Args:
          called: names `like` in errors.

        Raises:
          UsageError: an argument cannot be used.
          FailedRuleError: `like` is no episode of arrays.
        """
        given = {"fps": fps, "robot": robot_type, "names": names}
        meaning = Meaning.from_json({name: value for name, value in given.items() if value is not None}, directory)
        try:
            episodes = ArrayEpisodes.declared(images, schema or Schema({})).like(like)
        except BadEpisode as bad:
            raise _refuse(called, bad.violations) from None
        features = encode(features_json(episodes.schema))
        source = RldsSource(
            dataset="/".join(name_and_version(directory, "episodes/1.0.0")),
            schema=name_fields(parse_features(features, FEATURES), meaning.names),
            files=FORMATS["tfrecord"],
            splits=(),
            details=Details(tfds=TfdsMetadata(features)),
            meaning=meaning.of_fields(),
        )
        connecting = ConnectorRunner.for_source(Configuration(), source)
        output = RldsOutput.create(source, connecting, directory, RldsOptions())
        check = check or CheckOptions()
        return cls.from_source(
            source,
            "rlds",
            RangeConverter(check, connecting, output),
            check_source(source, check),
            {"num_shards": num_shards},
            shards=num_shards,
            overwrite=overwrite,
            episodes=episodes,
            strict=strict,
        )

    def pack(self, element: tuple[str, Any, Any]) -> tuple[str, Any, Any, int]:
        split, key, content = element
        if type(key) not in (str, int):
            raise UsageError(f"the key of an episode is {key!r:.60}: expected text or an integer")
        episode = self.episodes.episode(content, EpisodeKey(self.committer.source.dataset, split, 0, 0))
        if self.strict:
            check, connecting = self.converter.check, self.converter.connecting
            ignored = connecting.ignored_values(self.converter.output.ignored_values)
            rejected = check_and_connect(episode, check, connecting, ignored, bool).verdict.rejected
            if rejected is not None:
                raise _refuse(f"{key!r} of split {split}", rejected.violations)
        return split, key, (episode.payload, episode.faults), len(episode.payload)

    def write_range(self, work: WorkRange, elements: Sequence[StoredElement]) -> list[Rejection]:
        def reject(writer: RejectedWriter, rejection: Rejection) -> None:
            line = {**rejection.to_json(), "id": elements[rejection.key.position].key}
            writer.write(rejection.payload, line, rejection.key)

        self.converter.convert(work, self._read(work, elements), reject=reject)
        return []

    def _read(self, work: WorkRange, elements: Sequence[StoredElement]) -> Iterator[Episode]:
        source = self.committer.source
        for position, (payload, faults) in enumerate(read_stored(elements)):
            key = EpisodeKey(source.dataset, work.split, work.index, position)
            if faults:
                yield Episode(key, {}, payload=payload, faults=faults)
            else:
                yield source.decoder.decode(payload, key)


def _refuse(called: str, violations: Sequence[Violation]) -> FailedRuleError:
    """The error for a bad episode."""
    return FailedRuleError(
        f"episode {called}: {some([*map(str, violations)])}. Nothing was written; strict=False writes the good "
        "episodes, and keeps the bad ones in rejected/"
    )
