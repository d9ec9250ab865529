"""The work of a conversion: one range of input after the other, and the dataset at the end."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from rlds_beam import storage
from rlds_beam.checking.dataset import check_counts
from rlds_beam.checking.report import Report
from rlds_beam.checking.verdicts import Verdict
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.output import manifest
from rlds_beam.output.manifest import REPORT, RangeCommit, rejected_path, shard_path
from rlds_beam.output.shards import RejectedWriter, ShardWriter
from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import WorkRange
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.trajectories.converter import Conversion, Converter, record_encoder
from rlds_beam.trajectories.record_encoding import Encoded


@dataclasses.dataclass(frozen=True)
class RangeConverter:
    """Turns a range of input into a finished shard. Pickles.

    Attributes:
      reader: of the dataset.
      conversion: how records become items.
      output: directory that `manifest.open_output` made ready.
      name: of the dataset that is written.
    """

    reader: EpisodeReader
    conversion: Conversion
    output: str
    name: str

    def convert(self, work: WorkRange, duplicates: Mapping[EpisodeKey, EpisodeKey]) -> RangeCommit:
        """Reads, checks, converts and writes one range, and commits it.

        Nothing of it is there under its final name before all of it is; a range that is converted
        again gives the same bytes. A range that is done, in an earlier life of a job that an engine
        started again, is left as it is.

        Raises:
          FailedRuleError: a rule whose policy is `fail` is broken.
          NotVerifiedError: another number of items was written than predicted.
        """
        done = manifest.read_commit(self.output, work)
        if done is not None:
            return done
        report, converter = Report(), Converter(self.conversion, record_encoder(self.conversion))
        path = shard_path(self.output, self.name, work)
        with ShardWriter(path) as shard, RejectedWriter(rejected_path(self.output, work)) as rejected:
            for segment in work.segments:
                for episode in self.reader.read(work.split, segment):
                    report.add(_write(episode, converter.convert(episode, duplicates), shard, rejected))
                    del episode  # It may be large: nothing of it is held while the next one is read.
            for items in converter.finish():
                shard.write(items.chunks, items.count)
            kept, written = rejected.commit(), shard.commit()
        report.items_predicted, report.items_written = converter.predicted, written.records
        report.bytes_written = written.bytes
        return manifest.commit_range(
            self.output, work, path, written,
            fields=self.conversion.fields, predicted=converter.predicted, rejected=kept, report=report.to_json(),
        )  # fmt: skip


def _write(
    episode: Episode, converted: tuple[Verdict, list[Encoded]], shard: ShardWriter, rejected: RejectedWriter
) -> Verdict:
    """Writes what became of one record; gives its verdict."""
    verdict, encoded = converted
    if verdict.rejected is not None:
        rejected.write(verdict.rejected.payload, verdict.rejected.to_json(), episode.key)
    for items in encoded:
        shard.write(items.chunks, items.count, episode.key)
    return verdict


@dataclasses.dataclass(frozen=True)
class DatasetCommitter:
    """Finishes the dataset when all of its ranges are. Pickles.

    Attributes:
      output, name: as of the ranges.
      source: what was read.
      conversion: how.
      ranges: all of the plan.
      preflight: the report on the dataset as a whole (`checking.dataset.check_source`).
    """

    output: str
    name: str
    source: Source
    conversion: Conversion
    ranges: tuple[WorkRange, ...]
    preflight: Report

    def commit(self) -> Report:
        """Checks what is there, writes the report and the metadata, and the manifest last.

        Raises:
          NotVerifiedError: what is there is not what was predicted.
          FailedRuleError: a shard holds another number of records than it should, and
            `short_shard` is to fail.
        """
        commits = manifest.read_commits(self.output)
        report = self.preflight.merge(*(Report.from_json(c.report) for c in commits.values()))
        report = report.merge(check_counts(self.source, report.shards, self.conversion.check))
        storage.write_text(storage.join(self.output, REPORT), json.dumps(report.to_json(), indent=2) + "\n")
        description = f"Trajectories of {self.source.dataset}, made by rlds-beam."
        manifest.commit_dataset(self.output, self.name, self.ranges, self.conversion.fields, description=description)
        return report
