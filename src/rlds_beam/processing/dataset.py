"""Checks a dataset as a whole: its files and schema before the work, and the record counts after it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from rlds_beam.checking.rules import ADVICE, CheckOptions
from rlds_beam.encoding.tfds.dataset_info import DATASET_INFO, FEATURES
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import FailedRuleError, UsageError, Violation
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Segment, Shard, Source, Split
from rlds_beam.reading.framing import reading_shard
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.text import count

_SAMPLES = 5
_ENOUGH = 3  # With fewer bad records, the schema may still be right.


def check_source(source: Source, options: CheckOptions) -> Report:
    """Compares a dataset's files with its metadata, and its first records with its schema.

    Returns:
      A report that counts the accepted violations.

    Raises:
      UsageError: a violation is not accepted, or `reject` names a field that the dataset does not have. No record was
        converted.
    """
    if options.reject is not None:
        from rlds_beam.checking.signals.conditions import check_fields, parse_reject

        check_fields(parse_reject(options.reject), source.schema)
    report = Report(left_out=dict(source.left_out), notes=tuple(source.notes))
    for violation in (*source.violations, *_schema_mismatch(source)):
        if options.policy(violation.rule) != "accept":
            raise UsageError(
                f"{violation}. {ADVICE[violation.rule].capitalize()}, or continue with the existing files: "
                f"--accept={violation.rule}"
            )
        report.add_violation(violation, EpisodeKey(source.dataset, "all", 0, 0), "accepted")
    return report


def check_counts(source: Source, read: Mapping[str, int], options: CheckOptions) -> Report:
    """Compares the number of records read from each shard with dataset_info.json.

    Args:
      source: the dataset; for a sliced split, only the records in the slice count.
      read: `split:shard` -> number of records, as in `Report.shards`.
      options: `short_shard` may be accepted.

    Returns:
      A report with a `short_shard` for each shard that holds another number.

    Raises:
      FailedRuleError: there is one, and its policy is `fail`.
    """
    report = Report()
    policy = options.policy("short_shard")
    for split in source.splits:
        for shard, expected, of_slice in _expected(split):
            key = EpisodeKey(source.dataset, split.name, shard.index, 0)
            records = read.get(key.shard_name, 0)
            if records == expected:
                continue
            said = "the dataset's metadata" if source.tfds is None else DATASET_INFO
            detail = f"{shard.path} holds {count(records, 'record')}{of_slice}; {said} says {expected:,}"
            if policy == "fail":
                raise FailedRuleError(f"short_shard: {detail}. {ADVICE['short_shard'].capitalize()}")
            report.add_violation(
                Violation("short_shard", detail), key, "accepted" if policy == "accept" else "rejected"
            )
    return report


def _expected(split: Split) -> Iterator[tuple[Shard, int, str]]:
    """The number of records that dataset_info.json states for each shard, if it does, and of what slice."""
    if not split.sliced:
        yield from ((shard, shard.records, "") for shard in split.shards if shard.records is not None)
        return
    name = f"{split.name}[{split.start or ''}:{'' if split.stop is None else split.stop}]"
    for shard, low, high in split.taken:
        yield shard, high - low, f" of {name}"


def _schema_mismatch(source: Source) -> Iterator[Violation]:
    """Yields a violation if all of the first records break the schema in the same way."""
    samples = [{(v.rule, v.field): v for v in episode.faults} for episode in first_episodes(source, _SAMPLES)]
    if len(samples) < _ENOUGH:
        return
    for rule, field in set.intersection(*map(set, samples)):
        if rule in ("missing_field", "wrong_dtype_or_shape"):
            said = "the dataset's schema" if source.tfds is None else FEATURES
            detail = f"{said} does not fit the records: {samples[0][rule, field]}"
            yield Violation("schema_mismatch", f"{detail} (the same in all of the first {len(samples)})")


def first_episodes(source: Source, most: int) -> Iterator[Episode]:
    """The first episodes of the first shards. Raises UsageError if a shard cannot be read."""
    reader = EpisodeReader(source)
    sound = ((split.name, shard) for split in source.splits for shard in split.shards if shard.size)
    shards = [*itertools.islice(sound, most)]
    each = -(-most // max(1, len(shards)))
    for split, shard in shards:
        with reading_shard(shard):
            yield from itertools.islice(reader.read(split, Segment(shard)), each)
