"""Writes a program's episodes one by one as a checked RLDS dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import xxhash

from rlds_beam.checking.verdicts import Rejection
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.encoding.tfrecord.framing import OVERHEAD
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import BadEpisode, FailedRuleError, Violation
from rlds_beam.formats.rlds.output import RldsOutput, RldsWriter
from rlds_beam.formats.rlds.parts import (
    FinishedPart,
    commit_parts,
    in_parts,
    open_parts,
    part_of,
    rejected_part,
    remove_parts,
)
from rlds_beam.output.range_conversion import DatasetCommitter
from rlds_beam.output.shards import RejectedWriter
from rlds_beam.processing.dataset import check_source
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.processing.report import Report
from rlds_beam.writing.columns import ImageStorage
from rlds_beam.writing.episodes import ArrayEpisodes
from rlds_beam.writing.source import WriteSettings, ends_shard


class Digests:
    """Finds records that are equal to earlier ones: 16 bytes of memory for each."""

    def __init__(self) -> None:
        self._seen: dict[bytes, EpisodeKey] = {}

    def checked(self, episode: Episode) -> Episode:
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
        """Checks and writes an episode.

        Raises:
          FailedRuleError: it breaks a rule, and the writer is strict.
        """
        episode = self._digests.checked(self._episodes.episode(content, key))
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
        self._work = part_of(split, index)
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
