"""Episodes in any order, from any number of workers, become the ranges of an output in the order of their keys.

    bundles   each stores its episodes in a part, in the order in which they come
    plan      one worker sorts the keys, and cuts each split into ranges
    ranges    each reads its episodes from the parts, in order, and writes them as a conversion does

So equal episodes give equal bytes, and a worker holds one episode at a time.
"""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import itertools
import pickle
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection, count_verdict
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.episodes.conformance import Conformance
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.output.base import Output
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.files import PARTS
from rlds_beam.output.range_conversion import finish_range
from rlds_beam.output.shards import ShardWriter
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.processing.report import Report
from rlds_beam.reading.plan import MAX_RANGES, RANGE_BYTES, WorkRange


class StoredEpisode(NamedTuple):
    """The place of a stored episode.

    Attributes:
      key: its key.
      part: the path of the part.
      offset, size: its bytes in the part.
      digest: their digest.
      weight: about the size of the episode, the same for equal episodes.
    """

    key: EpisodeKey
    part: str
    offset: int
    size: int
    digest: bytes
    weight: int


class EpisodePart:
    """Stores the episodes of a bundle in a part of the output `directory`."""

    def __init__(self, directory: str):
        storage.makedirs(storage.below(directory, PARTS))
        self._path = storage.below(directory, PARTS, f"episodes-{uuid.uuid4().hex}")
        self._file, self._stored, self._offset = ShardWriter(self._path), list[StoredEpisode](), 0

    def add(self, episode: Episode) -> None:
        """Stores an episode."""
        content = pickle.dumps(episode, protocol=5)
        self._file.write([content], 1, episode.key)
        weight = _weight(episode)
        stored = StoredEpisode(episode.key, self._path, self._offset, len(content), _digest(content), weight)
        self._stored.append(stored)
        self._offset += len(content)

    def finish(self) -> list[StoredEpisode]:
        """Completes the part."""
        self._file.commit()
        return self._stored

    def abort(self) -> None:
        """Removes the part; does nothing after `finish`."""
        self._file.abort()


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=32).digest()


def _weight(episode: Episode) -> int:
    """The size of its record, or of its arrays if it was not read from a file. Sizes of pickles differ by process."""
    columns = episode.steps.values()
    return len(episode.payload) or sum(column.nbytes for column in columns if isinstance(column, np.ndarray))


class StoredRange(NamedTuple):
    """A range of the output, and its episodes in order."""

    work: WorkRange
    episodes: tuple[StoredEpisode, ...]


def cut_ranges(stored: Iterable[StoredEpisode], splits: Sequence[str], shards: int | None) -> list[StoredRange]:
    """Sorts episodes by their keys, and cuts each split into ranges of about equal size.

    Args:
      splits: the splits, in order.
      shards: the largest number of ranges of a split; None chooses by size, as a conversion does.

    Raises:
      UsageError: two episodes have the same key, or an episode is in another split.
    """
    in_order = sorted(stored, key=lambda episode: (episode.key.split, episode.key))
    for before, after in itertools.pairwise(in_order):
        if before.key == after.key:
            raise UsageError(
                f"two episodes have the key {after.key}: keys must be unique. If your step splits episodes, number "
                "them: dataclasses.replace(key, part=1)"
            )
    ranges: list[StoredRange] = []
    by_split = {split: tuple(own) for split, own in itertools.groupby(in_order, key=lambda episode: episode.key.split)}
    if unknown := by_split.keys() - set(splits):
        raise UsageError(
            f"an episode is in the split {min(unknown)}, but the source has {', '.join(splits)}: the split of a key "
            "must stay"
        )
    for split in (split for split in splits if split in by_split):
        groups = _cut(by_split[split], shards)
        ranges += [StoredRange(WorkRange(split, i, len(groups), ()), group) for i, group in enumerate(groups)]
    return ranges


def _cut(episodes: Sequence[StoredEpisode], shards: int | None) -> list[tuple[StoredEpisode, ...]]:
    weights = [max(1, episode.weight) for episode in episodes]
    total = sum(weights)
    count = min(MAX_RANGES, -(-total // RANGE_BYTES)) if shards is None else shards
    bounds = [total * i // count for i in range(1, count)]
    groups: list[list[StoredEpisode]] = [[] for _ in range(count)]
    for episode, weight, end in zip(episodes, weights, itertools.accumulate(weights), strict=True):
        groups[bisect.bisect_right(bounds, end - weight // 2 - 1)].append(episode)
    return [tuple(group) for group in groups if group]


def read_stored(episodes: Iterable[StoredEpisode]) -> Iterator[Episode]:
    """Reads stored episodes. Raises NotVerifiedError if a part has changed since it was written."""
    for part, own in itertools.groupby(episodes, key=lambda stored: stored.part):
        with storage.open_read(part) as file:
            for stored in own:
                file.seek(stored.offset)
                content = file.read(stored.size)
                if _digest(content) != stored.digest:  # never unpickle what others wrote
                    raise NotVerifiedError(f"{part} has changed since it was written: run the pipeline again")
                episode: Episode = pickle.loads(content)
                del content
                yield episode
                del episode  # not held while the next one is read


@dataclasses.dataclass(frozen=True)
class StoredRangeWriter:
    """Checks and writes the episodes of stored ranges. Picklable.

    Attributes:
      check: the policy of each rule.
      connecting: the connectors that run over the accepted episodes.
      plan: the `OutputPlan.digest` of the pipeline.
    """

    check: CheckOptions
    connecting: ConnectorRunner
    plan: str

    def write(self, stored: StoredRange, output: Output) -> tuple[RangeCommit, list[Rejection]]:
        """Writes the episodes of a range and commits it. Can be repeated.

        Returns:
          The commit, and the rejected episodes.

        Raises:
          FailedRuleError: a rule whose policy is `fail` is broken.
          UsageError: an episode has a column that is not in the schema.
        """
        report, rejections = Report(), list[Rejection]()
        schema, ignored = self.connecting.probed.given, self.connecting.ignored_values(output.ignored_values)
        conformance, writer = Conformance(schema), output.open_range(stored.work)

        def write(batch: Batch) -> None:
            writer.write(batch.replace(read=None))  # the record as read may have other values

        try:
            for episode in read_stored(stored.episodes):
                if not episode.faults:
                    schema.check(episode)
                    if faults := conformance.violations(episode):
                        episode = episode.replace(faults=tuple(faults))
                record = check_and_connect(episode, self.check, self.connecting, ignored, write, sound=episode.sound)
                report.add(record)
                count_verdict(record.verdict)
                if record.verdict.rejected is not None:
                    rejections.append(record.verdict.rejected)
                del episode, record
            return finish_range(output, stored.work, writer, report, None, self.plan), rejections
        finally:
            writer.abort()
