"""Episodes with keys, written in any order by any number of workers, become shards in the order of the keys.

    bundles     each writes a part with the records of its episodes, in the order in which they come
    plan        one worker sorts the keys, and cuts the dataset into shards as `ArrayWriter` does
    shards      each copies its records from the parts

So the same episodes give the same bytes: those that `write_rlds` writes if it gets them in the order of their keys.

Unlike `output.stored_episodes`, a bundle checks and encodes its episodes, and stores only their records. A bad episode
is found at once, and the verdicts are known before the shards are cut, as in `write_rlds`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash

from rlds_beam import storage
from rlds_beam.checking.verdicts import Rejection, Verdict
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.encoding.base import Damage
from rlds_beam.encoding.tfrecord.file import TFRecordFormat
from rlds_beam.encoding.tfrecord.framing import OVERHEAD
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import NotVerifiedError, UsageError, Violation
from rlds_beam.formats.rlds.output import RldsOutput
from rlds_beam.formats.rlds.parts import open_parts, remove_parts
from rlds_beam.output.commits import RangeCommit, commit_range, rejected_path
from rlds_beam.output.files import PARTS
from rlds_beam.output.plans import OutputPlan, add_files
from rlds_beam.output.range_conversion import DatasetCommitter
from rlds_beam.output.shards import RejectedWriter, WrittenFile, open_record_file
from rlds_beam.processing.dataset import check_source
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.processing.report import Report
from rlds_beam.reading.plan import WorkRange
from rlds_beam.writing.episodes import ArrayEpisodes
from rlds_beam.writing.source import ArraySource, WriteSettings, ends_shard
from rlds_beam.writing.write_rlds import describe_refusal

Key = str | int


class Written(NamedTuple):
    """An episode in a part.

    Attributes:
      split: its split.
      key: its key.
      part: the path of the part.
      offset: where its records begin.
      sizes: the size of each record: one, or several if a repair split the episode; a rejected episode has one.
      size: the size of the record before repairs.
      steps: the steps of each record.
      digest: the digest of the record before repairs; empty if it is rejected.
      violations: the broken rules.
      repaired: the rules whose violations were repaired.
      rejected: the rule that rejects it; None if it is accepted.
    """

    split: str
    key: Key
    part: str
    offset: int
    sizes: tuple[int, ...]
    size: int
    steps: tuple[int, ...]
    digest: bytes
    violations: tuple[Violation, ...]
    repaired: tuple[str, ...]
    rejected: str | None


class ShardPlan(NamedTuple):
    """A shard: its range, and its episodes with their positions in the split."""

    work: WorkRange
    episodes: tuple[tuple[int, Written], ...]


@dataclasses.dataclass(frozen=True)
class KeyedWriter:
    """Writes episodes with keys. Picklable.

    Attributes:
      settings: the settings.
      episodes: converts the episodes.
      splits: the names of the splits.
      strict: raise FailedRuleError for a bad episode.
    """

    settings: WriteSettings
    episodes: ArrayEpisodes
    splits: tuple[str, ...]
    strict: bool

    @functools.cached_property
    def source(self) -> ArraySource:
        return self.settings.source(self.episodes.schema, self.splits)

    @functools.cached_property
    def output(self) -> RldsOutput:
        return self.settings.output(self.source)

    @functools.cached_property
    def plan(self) -> OutputPlan:
        return self.settings.plan(self.source, self.output)

    def open(self) -> None:
        """Prepares the directory."""
        open_parts(self.settings.directory, self.plan)

    def open_bundle(self) -> KeyedBundle:
        """Opens the part of a bundle."""
        return KeyedBundle(self)

    def plan_shards(self, written: Iterable[Written]) -> list[ShardPlan]:
        """Sorts the episodes by key and cuts them into shards. Writes nothing but the names of the shards.

        Raises:
          UsageError: two episodes have the same key, or there are no episodes.
          FailedRuleError: two episodes are equal, and `strict` is set.
        """
        in_order = sorted(written, key=lambda episode: (self.splits.index(episode.split), episode.key))
        if not in_order:
            raise UsageError(f"WriteToRlds({self.settings.directory!r}): there are no episodes")
        for before, after in itertools.pairwise(in_order):
            if (before.split, before.key) == (after.split, after.key):
                raise UsageError(
                    f"two episodes of split {before.split} have the key {before.key!r}: keys must be unique"
                )
        shards: list[ShardPlan] = []
        for split, own in itertools.groupby(in_order, key=lambda episode: episode.split):
            groups = _cut(self._without_duplicates(split, own), self.settings.shard_bytes)
            shards += [ShardPlan(WorkRange(split, i, len(groups), ()), tuple(group)) for i, group in enumerate(groups)]
        add_files(self.settings.directory, [name for shard in shards for name in self.output.files(shard.work)])
        return shards

    def write_shard(self, shard: ShardPlan) -> RangeCommit:
        """Copies the records of a shard from the parts, and commits it. Can be repeated."""
        (file,) = self.output.files(shard.work)
        report, path = Report(), storage.below(self.settings.directory, file)
        writer = open_record_file(self.output.format, path)
        try:
            with RejectedWriter(rejected_path(self.settings.directory, shard.work)) as rejected:
                for position, episode in shard.episodes:
                    key = EpisodeKey(self.settings.dataset, episode.split, 0, position)
                    records = list(_records(episode))
                    verdict = _verdict(episode, key, records)
                    report.add(verdict)
                    if verdict.rejected is not None:
                        line = {**verdict.rejected.to_json(), "id": episode.key}
                        rejected.write(verdict.rejected.payload, line, key)
                        continue
                    for record in records:
                        writer.add(record, key)
                        report.items_predicted += 1
                kept, info = rejected.commit(), writer.commit()
        finally:
            writer.abort()
        report.items_written, report.bytes_written = info.records, info.bytes
        files = [WrittenFile(file, info, report.items_predicted)]
        return commit_range(
            self.settings.directory, shard.work, files, rejected=kept, report=report, plan=self.plan.digest
        )

    def commit(self, ranges: Iterable[str]) -> Report:
        """Completes the dataset when all shards are written.

        Args:
          ranges: the names of the ranges.
        """
        works = [_parse_range(name) for name in sorted(ranges)]
        check = self.settings.check
        committer = DatasetCommitter(
            self.source, check, self.output, tuple(works), check_source(self.source, check), self.plan.digest
        )
        report = committer.commit()
        remove_parts(self.settings.directory)
        return report

    def _without_duplicates(self, split: str, own: Iterable[Written]) -> Iterator[tuple[int, Written]]:
        """The episodes of a split with their positions; those equal to an earlier one are rejected."""
        seen: dict[bytes, int] = {}
        for position, episode in enumerate(own):
            earlier = seen.setdefault(episode.digest, position) if episode.digest else position
            if earlier == position:
                yield position, episode
                continue
            original = EpisodeKey(self.settings.dataset, split, 0, earlier)
            fault = Violation("duplicate_episode", f"byte-identical to {original}")
            accepted = self.settings.check.policy(fault.rule) == "accept"
            if self.strict and not accepted:
                rejection = Rejection(dataclasses.replace(original, position=position), fault.rule, (fault,), b"")
                raise describe_refusal(rejection, repr(episode.key))
            violations = (*episode.violations, fault)
            yield position, episode._replace(violations=violations, rejected=None if accepted else fault.rule)


class KeyedBundle:
    """Writes the episodes of a bundle to a part."""

    def __init__(self, writer: KeyedWriter):
        self._writer, self._written = writer, list[Written]()
        name = f"bundle-{uuid.uuid4().hex}-00000-of-00000"
        self._path = storage.below(writer.settings.directory, PARTS, name)
        self._file = open_record_file("tfrecord", self._path)
        self._connecting = ConnectorRunner.for_source(Configuration(), writer.source)
        self._encoder, self._ignored = writer.output.encoder(), writer.output.ignored_values
        self._at, self._verified = 0, False

    def add(self, split: str, key: Any, content: Any) -> None:
        """Checks and writes an episode.

        Raises:
          UsageError: its key is not text or an integer.
          FailedRuleError: it breaks a rule, and the writer is strict.
        """
        if type(key) not in (str, int):
            raise UsageError(f"the key of an episode is {key!r:.60}: expected text or an integer")
        writer = self._writer
        episode = writer.episodes.episode(content, EpisodeKey(writer.settings.dataset, split, 0, 0))
        records: list[tuple[bytes, int]] = []

        def encode(batch: Batch) -> None:
            records.extend((self._encoder.encode(episode, batch.read), len(episode)) for episode in batch.episodes)

        verdict = check_and_connect(episode, writer.settings.check, self._connecting, self._ignored, encode).verdict
        rejected = verdict.rejected
        if rejected is not None and writer.strict:
            raise describe_refusal(rejected, repr(key))
        if rejected is not None:
            records = [(rejected.payload, 0)]
        elif not self._verified:
            writer.output.verify(episode.payload, episode)
            self._verified = True
        for record, _ in records:
            self._file.add(record, key)
        sizes, steps = tuple(len(record) for record, _ in records), tuple(steps for _, steps in records)
        digest = b"" if rejected is not None else xxhash.xxh3_128_digest(episode.payload)
        violations = verdict.violations if rejected is None else rejected.violations
        rule = None if rejected is None else rejected.rule
        stored = Written(
            split,
            key,
            self._path,
            self._at,
            sizes,
            len(episode.payload),
            steps,
            digest,
            violations,
            verdict.repaired,
            rule,
        )
        self._written.append(stored)
        self._at += sum(sizes) + OVERHEAD * len(sizes)

    def finish(self) -> list[Written]:
        """Completes the part."""
        self._file.commit()
        return self._written

    def abort(self) -> None:
        """Removes the part; does nothing after `finish`."""
        self._file.abort()


def _cut(episodes: Iterable[tuple[int, Written]], shard_bytes: int) -> list[list[tuple[int, Written]]]:
    """Cuts a split into shards, as `ArrayWriter` does."""
    groups: list[list[tuple[int, Written]]] = []
    filled = 0
    for position, episode in episodes:
        if not groups or ends_shard(shard_bytes, filled, episode.size):
            groups.append([])
            filled = 0
        groups[-1].append((position, episode))
        filled += episode.size + OVERHEAD if episode.rejected is None else 0
    return groups


def _records(episode: Written) -> Iterator[bytes]:
    """The records of an episode, read from its part; raises NotVerifiedError if they changed."""
    files, offset = TFRecordFormat(), episode.offset
    for size in episode.sizes:
        (record,) = list(files.read(episode.part, offset, offset + 1))
        if isinstance(record, Damage) or len(record.payload) != size:
            raise NotVerifiedError(f"{episode.part} has changed since it was written: run the pipeline again")
        yield record.payload
        offset += size + OVERHEAD


def _verdict(episode: Written, key: EpisodeKey, records: Sequence[bytes]) -> Verdict:
    """The verdict on an episode, with stubs that have only its steps."""
    if episode.rejected is not None:
        rejection = Rejection(key, episode.rejected, episode.violations, records[0])
        return Verdict(key, (), episode.violations, rejection, size=episode.size)
    stubs = tuple(Episode(key, {"is_first": np.broadcast_to(np.False_, steps)}) for steps in episode.steps)
    return Verdict(key, stubs, episode.violations, repaired=episode.repaired, size=episode.size)


def _parse_range(name: str) -> WorkRange:
    """The inverse of `str(work)`."""
    split, index, _, of = name.rsplit("-", 3)
    return WorkRange(split, int(index), int(of), ())
