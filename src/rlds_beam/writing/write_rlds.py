"""`rlds_beam.write_rlds`: episodes of a program become a checked RLDS dataset, one by one."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import xxhash

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.encoding.tfrecord.framing import OVERHEAD
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import BadEpisode, FailedRuleError, RldsBeamError, UsageError, Violation
from rlds_beam.formats.format_options import RldsOptions
from rlds_beam.formats.rlds.output import RldsOutput, RldsWriter
from rlds_beam.formats.rlds.parts import (
    FinishedPart,
    check_directory,
    commit_parts,
    find_range,
    in_parts,
    open_parts,
    rejected_part,
    remove_all,
    remove_parts,
)
from rlds_beam.options import Options, check_names
from rlds_beam.output.directory import lock_output
from rlds_beam.output.range_conversion import DatasetCommitter
from rlds_beam.output.shards import RejectedWriter
from rlds_beam.processing.dataset import check_source
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.processing.report import Report
from rlds_beam.text import count, format_size, join_lines
from rlds_beam.writing.episodes import ArrayEpisodes
from rlds_beam.writing.source import SHARD_BYTES, WriteSettings, ends_shard
from rlds_beam.writing.step_columns import ImageEncoding, ImageStorage


@dataclasses.dataclass(frozen=True, repr=False)
class WriteOutcome:
    """A dataset that `write_rlds` has written.

    Attributes:
      directory: its directory, for `tfds.builder_from_directory`.
      schema: the fields of an episode.
      report: the counts: `report.episodes`, `report.steps`, `report.rejected`, and the broken rules.
      seconds: how long it took.
    """

    directory: str
    schema: Schema
    report: Report
    seconds: float

    def __repr__(self) -> str:
        return f"<WriteOutcome: {self.report.line()}; {self.directory}>"

    def __str__(self) -> str:
        return "\n".join([self.report.summary(), join_lines(self.lines())])

    def lines(self) -> list[str]:
        """The lines printed after the report."""
        size = format_size(self.report.bytes_written)
        return [f"output    {self.directory}: {count(self.report.episodes, 'episode')}, {size}"]


@check_names(Options)
def write_rlds(
    directory: str | os.PathLike[str],
    episodes: Iterable[Any] | Mapping[str, Iterable[Any]],
    *,
    split: str = "train",
    name: str | None = None,
    version: str | None = None,
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
) -> WriteOutcome:
    """Checks episodes of arrays and writes them as an RLDS dataset, which TFDS opens.

        episode = {"observation": {"state": states, "image": pixels}, "action": actions, "reward": rewards,
                   "language_instruction": "open the drawer", "terminated": True, "metadata": {"operator": "Ada"}}
        rlds_beam.write_rlds("data/my_robot/1.0.0", [episode])

    Runs in this process, without Beam, and holds one episode at a time. Arrays keep their dtype. The fields are those
    of the first episode. Reward (0), discount (1, then 0 if the episode terminates), and the flags `is_first`,
    `is_last`, and `is_terminal` are added if they are missing. The action, reward, and discount may have one value
    fewer than the observation: the last step of RLDS has none. The dataset exists only when all of it is written.

    Args:
      directory: the dataset's directory, best `NAME/1.0.0`.
      episodes: the episodes, for example a generator; or a dict of them, by split. An episode is a dict of step
        fields, nested or not: arrays, tensors, or lists with a value for each step, lists of PNG or JPEG files as
        bytes, or one text for all steps. Other keys: `metadata` (a dict, the episode's own fields), and `terminated`
        or `truncated` (how it ended; by default it was cut off). Also taken: `{"steps": [{...}, ...], ...}` as
        TFDS's builders yield it, and `rlds_beam.Episode`.
      split: the name of the split, if `episodes` is not a dict.
      name, version: of the dataset; by default those of the directory.
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

    Raises:
      UsageError: an argument or the directory cannot be used; nothing was written.
      FailedRuleError: an episode breaks a rule; nothing remains of the dataset.
      RldsBeamError: the iterator failed; nothing remains of the dataset.
    """
    began, path = time.monotonic(), os.fspath(directory)
    by_split = _by_split(episodes, split)
    encodings, options = ImageStorage.of(images), RldsOptions(format=format)
    settings = WriteSettings.of(
        path, name, version, shard_bytes, options, description, check or CheckOptions(), fps, robot_type, names
    )
    check_directory(path, overwrite=overwrite)
    with lock_output(path):
        contents = _contents(by_split, settings.dataset)
        converter, read = first_schema(contents, encodings, schema, strict=strict)
        if converter is None:
            what = f"none of {count(len(read), 'episode')} could be read" if read else "there are no episodes"
            raise UsageError(f"write_rlds({path!r}): {what}, so the fields are unknown")
        try:
            report = _write(ArrayWriter(settings, converter, (*by_split,), strict=strict), read, contents)
        except BaseException:
            remove_all(path)
            raise
    return WriteOutcome(path, converter.schema, report, time.monotonic() - began)


def _write(writer: ArrayWriter, read: list[Any], contents: Iterator[tuple[EpisodeKey, Any]]) -> Report:
    """Writes the episodes already read, then the others."""
    try:
        while read:
            key, content = read.pop(0)
            writer.add(content, key)
        for key, content in contents:
            writer.add(content, key)
            del content  # it may be large: free it before the next
        return writer.finish()
    finally:
        writer.abort()


def _by_split(episodes: Any, split: str) -> dict[str, Iterable[Any]]:
    """The episodes of each split."""
    if isinstance(episodes, Mapping):
        if {"observation", "action", "steps"} & {str(name).partition("/")[0] for name in episodes}:
            raise UsageError("episodes is one episode: pass a list of episodes, for example [episode]")
        if not episodes:
            raise UsageError("episodes is an empty dict: expected episodes by split")
        by_split = {str(name): own for name, own in episodes.items()}
    else:
        by_split = {split: episodes}
    for name, own in by_split.items():
        if not isinstance(own, Iterable) or isinstance(own, str | bytes | Mapping):
            raise UsageError(f"the episodes of split {name} are a {type(own).__name__}: expected a list or a generator")
    return by_split


def _contents(by_split: Mapping[str, Iterable[Any]], dataset: str) -> Iterator[tuple[EpisodeKey, Any]]:
    """All episodes with their keys, whose position is their number in the split."""
    for split, episodes in by_split.items():
        iterator = None
        for number in itertools.count():
            try:
                iterator = iter(episodes) if iterator is None else iterator
                content = next(iterator)
            except StopIteration:
                break
            except Exception as error:
                raise RldsBeamError(
                    f"episode {number} of split {split}: the iterator raised {type(error).__name__}: {error}. Nothing "
                    "remains of the dataset"
                ) from error
            yield EpisodeKey(dataset, split, 0, number), content
            del content


class Digests:
    """Finds records that are equal to earlier ones: 16 bytes of memory for each."""

    def __init__(self) -> None:
        self._seen: dict[bytes, EpisodeKey] = {}

    def mark_duplicate(self, episode: Episode) -> Episode:
        """The episode, with the fault `duplicate_episode` if it is equal to an earlier one."""
        if episode.faults or not len(episode):
            return episode
        earlier = self._seen.setdefault(xxhash.xxh3_128_digest(episode.payload), episode.key)
        if earlier == episode.key:
            return episode
        return episode.replace(faults=(Violation("duplicate_episode", f"byte-identical to {earlier}"),))


class ArrayWriter:
    """Writes episodes of one schema, split by split. The caller holds the lock of the directory.

    Args:
      settings: the settings.
      episodes: converts the episodes.
      splits: the names of the splits.
      strict: raise FailedRuleError for the first bad episode; otherwise it is kept in `rejected/`.
    """

    def __init__(self, settings: WriteSettings, episodes: ArrayEpisodes, splits: tuple[str, ...], *, strict: bool):
        self._settings, self._episodes, self._strict = settings, episodes, strict
        self._source = settings.source(episodes.schema, splits)
        self._output = settings.output(self._source)
        self._plan = settings.plan(self._source, self._output)
        self._connecting = ConnectorRunner.for_source(Configuration(), self._source)
        self._ignored = self._output.ignored_values
        self._digests = Digests()
        self._parts: list[FinishedPart] = []
        self._open: _OpenPart | None = None
        open_parts(settings.directory, self._plan)

    def add(self, content: Any, key: EpisodeKey) -> None:
        """Checks and writes an episode. Raises FailedRuleError if it breaks a rule, and the writer is strict."""
        episode = self._digests.mark_duplicate(self._episodes.episode(content, key))
        part = self._part(key.split, len(episode.payload))
        record = check_and_connect(episode, self._settings.check, self._connecting, self._ignored, part.writer.write)
        rejected = record.verdict.rejected
        if rejected is not None and self._strict:
            raise describe_refusal(rejected)
        part.report.add(record)
        if rejected is not None:
            part.rejected.add(rejected)
        else:
            if not part.bytes:
                self._output.verify(episode.payload, episode)
            part.bytes += len(episode.payload) + OVERHEAD

    def finish(self) -> Report:
        """Completes the dataset."""
        self._close()
        ranges = commit_parts(self._output, self._parts, self._plan)
        remove_parts(self._settings.directory)
        dataset_report = check_source(self._source, self._settings.check)
        committer = DatasetCommitter(
            self._source, self._settings.check, self._output, ranges, dataset_report, self._plan.digest
        )
        return committer.commit()

    def abort(self) -> None:
        """Closes the files of an unfinished part."""
        if self._open is not None:
            self._open.abort()

    def _part(self, split: str, size: int) -> _OpenPart:
        part = self._open
        if part is None or part.split != split or ends_shard(self._settings.shard_bytes, part.bytes, size):
            self._close()
            index = sum(part.work.split == split for part in self._parts)
            part = self._open = _OpenPart(self._output, split, index)
        return part

    def _close(self) -> None:
        if self._open is not None:
            self._parts.append(self._open.finish())
            self._open = None


class _OpenPart:
    """A part that is being written."""

    def __init__(self, output: RldsOutput, split: str, index: int):
        self.split, self.bytes, self.report = split, 0, Report()
        self._work = find_range(split, index)
        self.rejected = RejectedWriter(rejected_part(output, self._work))
        self.writer = RldsWriter(in_parts(output), self._work)

    def finish(self) -> FinishedPart:
        kept, files = self.rejected.commit(), self.writer.finish()
        self.report.items_predicted = self.writer.predicted
        self.report.items_written = sum(file.shard.records for file in files if file.role == "items")
        self.report.bytes_written = sum(file.shard.bytes for file in files)
        return FinishedPart(self._work, files, kept, self.report)

    def abort(self) -> None:
        self.rejected.abort()
        self.writer.abort()


def first_schema(
    contents: Iterator[tuple[EpisodeKey, Any]], images: ImageStorage, declared: Schema | None, *, strict: bool
) -> tuple[ArrayEpisodes | None, list[tuple[EpisodeKey, Any]]]:
    """Reads episodes up to the first one that has a schema.

    Returns:
      What converts the episodes, None if none has a schema; and the episodes read.

    Raises:
      FailedRuleError: the first episode is bad, and `strict` is set.
    """
    read = []
    for key, content in contents:
        read.append((key, content))
        try:
            return ArrayEpisodes.of_first(content, images, declared), read
        except BadEpisode as bad:
            if strict:
                raise describe_refusal(Rejection(key, bad.violations[0].rule, bad.violations, b"")) from None
            read[-1] = (key, Episode(key, {}, faults=bad.violations))
    return None, read


def describe_refusal(rejection: Rejection, name: str | None = None) -> FailedRuleError:
    """The error for a bad episode, called `name` or by its position."""
    key = rejection.key
    more = len(rejection.violations) - 1
    others = f" (and {more} more)" if more else ""
    return FailedRuleError(
        f"episode {key.position if name is None else name} of split {key.split}: {rejection.rule}: "
        f"{rejection.detail}{others}. Nothing was written; strict=False writes the good episodes, and keeps the bad "
        "ones in rejected/"
    )
