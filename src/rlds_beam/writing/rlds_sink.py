"""Episodes of a program become an RLDS dataset: what `write_rlds` and `WriteToRlds` share.

An episode is checked and encoded where it comes in, so a bad one is found at once, and its records are stored. When the
order of all episodes is known, each shard copies its records (`keyed_parts`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xxhash

from rlds_beam import storage
from rlds_beam.checking.verdicts import Rejection, Verdict
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.encoding.tfrecord.framing import OVERHEAD
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import FailedRuleError, UsageError, Violation
from rlds_beam.formats.rlds.output import RldsOutput
from rlds_beam.output.commits import RangeCommit, commit_range, rejected_path
from rlds_beam.output.directory import check_output, make_ready
from rlds_beam.output.manifest import load_manifest
from rlds_beam.output.plans import OutputPlan, add_files, read_plan, remove_output
from rlds_beam.output.range_conversion import DatasetCommitter
from rlds_beam.output.shards import RejectedWriter, WrittenFile, open_record_file
from rlds_beam.processing.dataset import check_source
from rlds_beam.processing.ranges import check_and_connect
from rlds_beam.processing.report import Report
from rlds_beam.reading.plan import WorkRange
from rlds_beam.writing.episodes import ArrayEpisodes
from rlds_beam.writing.keyed_parts import (
    Duplicates,
    KeyedSink,
    PackedElement,
    PlacedElement,
    StoredElement,
    read_stored,
    remove_parts,
)
from rlds_beam.writing.source import ArraySource, WriteSettings

FROM = "write_rlds"
"""The source in the plan of a directory that a program writes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RldsSink(KeyedSink):
    """Checks episodes of arrays and writes them as RLDS. The elements are (split, key, episode).

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

    @property
    def directory(self) -> str:  # type: ignore[override]
        return self.settings.directory

    @functools.cached_property
    def source(self) -> ArraySource:
        return self.settings.source(self.episodes.schema, self.splits)

    @functools.cached_property
    def output(self) -> RldsOutput:
        return self.settings.output(self.source)

    @functools.cached_property
    def output_plan(self) -> OutputPlan:
        return self.settings.plan(self.source, self.output)

    def open(self) -> None:
        remove_all(self.directory)
        make_ready(self.directory, self.output_plan)

    def packer(self) -> Callable[[tuple[str, Any, Any]], PackedElement]:
        connecting = ConnectorRunner.for_source(Configuration(), self.source)
        encoder, ignored, verified = self.output.encoder(), self.output.ignored_values, False

        def pack(element: tuple[str, Any, Any]) -> PackedElement:
            nonlocal verified
            split, key, content = element
            if type(key) not in (str, int):
                raise UsageError(f"the key of an episode is {key!r:.60}: expected text or an integer")
            episode = self.episodes.episode(content, EpisodeKey(self.settings.dataset, split, 0, 0))
            records: list[bytes] = []
            steps: list[int] = []

            def encode(batch: Batch) -> None:
                for each in batch.episodes:
                    records.append(encoder.encode(each, batch.read))
                    steps.append(len(each))

            verdict = check_and_connect(episode, self.settings.check, connecting, ignored, encode).verdict
            rejected = verdict.rejected
            if rejected is not None and self.strict:
                raise describe_refusal(rejected, repr(key))
            if rejected is None and not verified:
                self.output.verify(episode.payload, episode)
                verified = True
            # The verdict is completed when the position is known; until then, its episodes are only their lengths.
            stored = (dataclasses.replace(verdict, episodes=()), records, steps)
            digest = b"" if rejected is not None else xxhash.xxh3_128_digest(episode.payload)
            # Numbers come before texts, which cannot be compared with them.
            return PackedElement(split, (type(key) is str, key), stored, len(episode.payload) + OVERHEAD, digest)

        return pack

    def bounds(self, weight: int) -> Sequence[int]:
        return range(self.settings.shard_bytes, weight, self.settings.shard_bytes)

    def describe_equal_keys(self, stored: StoredElement) -> str:
        return f"two episodes of split {stored.split[1]} have the key {stored.key[1]!r}: keys must be unique"

    def plan(self, ranges: Sequence[WorkRange]) -> DatasetCommitter:
        if not ranges:
            raise UsageError(f"{self.directory}: there are no episodes to write")
        add_files(self.directory, [name for work in ranges for name in self.output.files(work)])
        check, digest = self.settings.check, self.output_plan.digest
        return DatasetCommitter(
            self.source, check, self.output, tuple(ranges), check_source(self.source, check), digest
        )

    def write(
        self, work: WorkRange, placed: Sequence[PlacedElement], plan: object, duplicates: Duplicates
    ) -> tuple[RangeCommit, list[Rejection]]:
        del plan
        (file,) = self.output.files(work)
        report, writer = Report(), open_record_file(self.output.format, storage.below(self.directory, file))
        try:
            with RejectedWriter(rejected_path(self.directory, work)) as rejected:
                for each, (verdict, records, steps) in zip(placed, read_stored(placed), strict=True):
                    key = EpisodeKey(self.settings.dataset, work.split, 0, each.position)
                    verdict = self._complete(verdict, key, records, steps, duplicates)
                    report.add(verdict)
                    if verdict.rejected is not None:
                        if self.strict:
                            raise describe_refusal(verdict.rejected, repr(each.stored.key[1]))
                        line = {**verdict.rejected.to_json(), "id": each.stored.key[1]}
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
        digest = self.output_plan.digest
        return commit_range(self.directory, work, files, rejected=kept, report=report, plan=digest), []

    def _complete(
        self, verdict: Verdict, key: EpisodeKey, records: list[bytes], steps: list[int], duplicates: Duplicates
    ) -> Verdict:
        """The verdict on an episode whose position is known, with stubs of its episodes that have only their steps."""
        if verdict.rejected is not None:
            return dataclasses.replace(verdict, key=key, rejected=dataclasses.replace(verdict.rejected, key=key))
        stubs = tuple(Episode(key, {"is_first": np.broadcast_to(np.False_, length)}) for length in steps)
        original = duplicates.get((key.split, key.position))
        if original is None:
            return dataclasses.replace(verdict, key=key, episodes=stubs)
        fault = Violation("duplicate_episode", f"byte-identical to {dataclasses.replace(key, position=original)}")
        violations = (*verdict.violations, fault)
        if self.settings.check.policy(fault.rule) == "accept":
            return dataclasses.replace(verdict, key=key, episodes=stubs, violations=violations)
        rejection = Rejection(key, fault.rule, violations, records[0])
        return dataclasses.replace(verdict, key=key, violations=violations, rejected=rejection)

    def commit(self, plan: DatasetCommitter) -> Report:
        report = plan.commit()
        remove_parts(self.directory)
        return report


def describe_refusal(rejection: Rejection, name: str | int) -> FailedRuleError:
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
    if load_manifest(directory) is not None:
        raise UsageError(f"{directory} holds a finished dataset: choose another directory, or pass overwrite=True")
    if existing.content.get("from") != FROM:
        raise UsageError(
            f"{directory} holds the unfinished output of another job: choose another directory, or pass overwrite=True"
        )


def remove_all(directory: str) -> None:
    """Removes everything that was written, finished or not."""
    remove_parts(directory)
    remove_output(directory)
