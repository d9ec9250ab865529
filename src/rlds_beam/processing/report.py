"""The report of a job: counts that workers add up in any order; and the checks of a dataset as a whole."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

from rlds_beam.checking.rules import ADVICE, REPORTED, RULES, CheckOptions
from rlds_beam.checking.verdicts import RuleCount, Verdict, merge_counts, sums
from rlds_beam.connectors.counts import (
    Connected,
    Dropped,
    imbalance,
    merge_connected,
    merge_dropped,
    summary_lines,
)
from rlds_beam.encoding.metadata import Count
from rlds_beam.encoding.tfds.dataset_info import DATASET_INFO, FEATURES
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import FailedRuleError, NotVerifiedError, UsageError, Violation
from rlds_beam.reading.base import Source
from rlds_beam.reading.reader import sample_episodes
from rlds_beam.text import count, format_size, shorten
from rlds_beam.trajectories.items import UnusedSteps, merge_unused, unused_lines

EMPTY = "nothing: the input has no episodes"
"""The message of every command for an empty dataset."""

OUTCOMES = ("accepted", "repaired", "rejected")


_NAMED = 5
"""The fields left out for the same reason that are named."""


class Processed(NamedTuple):
    """The outcome of one record.

    Attributes:
      verdict: whether it was accepted.
      connected: the counts of each connector.
      dropped: connector -> the number of accepted episodes it dropped; the one that dropped the last comes last.
      written: False if no episode was left to write.
    """

    verdict: Verdict
    connected: tuple[Connected, ...] = ()
    dropped: Mapping[str, int] = {}
    written: bool = True


class Report(msgspec.Struct):
    """The report of a job, an accumulator: `add` records one by one and `merge` in any order, with the same result.

    Attributes:
      records: the records read; always valid + repaired + rejected.
      valid: the records accepted unchanged (a violation may have been accepted).
      repaired, rejected: the records repaired, and the records rejected.
      episodes: the accepted episodes (a repair may split a record into several).
      steps: the steps of the accepted episodes.
      bytes: the size of the records read, without framing.
      items_predicted, items_written: the training items, as calculated and as counted.
      bytes_written: the size of the output; 0 if unknown (TF-Agents' observers do not report it).
      left_out: input fields that are not written -> the reason.
      notes: what to know about how the input is read, for example how much of it is missing.
      dropped: connector -> the accepted episodes that it dropped. Every record read is written, rejected, or dropped.
      connectors: the counts of each connector, in order; empty without connectors.
      unused: reason -> the steps of accepted episodes that are in no item; empty if all are in one.
      rules: the broken rules.
      shards: `EpisodeKey.shard_name` -> the records read from the shard.
    """

    records: Count = 0
    valid: Count = 0
    repaired: Count = 0
    rejected: Count = 0
    episodes: Count = 0
    steps: Count = 0
    bytes: Count = 0
    items_predicted: Count = 0
    items_written: Count = 0
    bytes_written: Count = 0
    rules: dict[str, RuleCount] = msgspec.field(default_factory=dict)
    shards: dict[str, Count] = msgspec.field(default_factory=dict)
    unused: dict[str, UnusedSteps] = msgspec.field(default_factory=dict)
    dropped: dict[str, Dropped] = msgspec.field(default_factory=dict)
    connectors: tuple[Connected, ...] = ()
    left_out: dict[str, str] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def add(self, record: Verdict | Processed) -> Report:
        """Counts one record in place; returns itself, as a Beam CombineFn requires."""
        verdict, connected, dropped, written = record if isinstance(record, Processed) else Processed(record)
        self.records += 1
        shard = verdict.key.shard_name
        self.shards[shard] = self.shards.get(shard, 0) + 1
        self.bytes += verdict.size
        self.episodes += len(verdict.episodes)
        self.steps += sum(map(len, verdict.episodes))
        if verdict.rejected:
            self.rejected += 1
        elif verdict.repaired:
            self.repaired += 1
        else:
            self.valid += 1
        if connected:
            self.connectors = merge_connected((self.connectors, connected))
        if dropped:
            last = None if written else list(dropped)[-1]
            counts = {name: Dropped(int(name == last), count) for name, count in dropped.items()}
            self.dropped = merge_dropped((self.dropped, counts))
        if verdict.violations:
            breaches = verdict.breaches
            for rule, outcome in verdict.outcomes().items():
                self.add_violation(breaches[rule], verdict.key, outcome)
        return self

    def add_violation(self, violation: Violation, key: EpisodeKey, outcome: str = "rejected") -> Report:
        """Counts a violation alone, in place: for example of a shard (`missing_shard`), whose key has position 0."""
        self.rules[violation.rule] = self.rules.get(violation.rule, RuleCount()).count(violation, key, outcome)
        return self

    def merge(self, *others: Report) -> Report:
        """Returns the sum as a new report; order and grouping do not matter."""
        reports = (self, *others)
        rules, shards = merge_counts(report.rules for report in reports), Counter[str]()
        for report in reports:
            shards.update(report.shards)
        return Report(
            **sums(*reports),
            rules={rule: rules[rule] for rule in RULES if rule in rules},
            shards=dict(sorted(shards.items())),
            unused=merge_unused(report.unused for report in reports),
            left_out={path: why for report in reports for path, why in report.left_out.items()},
            dropped=merge_dropped(report.dropped for report in reports),
            connectors=merge_connected(report.connectors for report in reports),
            notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
        )

    def check(self) -> None:
        """Checks the counts: every record is valid, repaired, or rejected, and no episode is lost between connectors.

        Raises:
          NotVerifiedError: the counts do not add up.
        """
        if self.records != self.valid + self.repaired + self.rejected:
            read = f"{self.records:,} records were read, but {self.valid:,} are valid, {self.repaired:,} repaired, and "
            raise NotVerifiedError(f"{read}{self.rejected:,} rejected")
        if (wrong := imbalance(self.episodes, self.steps, self.connectors)) is not None:
            raise NotVerifiedError(f"--connectors: {wrong}")

    def __repr__(self) -> str:
        return f"<Report: {self.line()}>"

    def line(self) -> str:
        """The report in one line: `20 records read, 18 valid, 2 rejected (2 missing_is_last), 522 items written`."""
        broken = [
            f"{self.rules[rule].rejected:,} {rule}"
            for rule in RULES
            if rule in self.rules and self.rules[rule].rejected
        ]
        rejected = [f"{self.rejected:,} rejected" + (f" ({', '.join(broken)})" if broken else "")]
        parts = [f"{count(self.records, 'record')} read", f"{self.valid:,} valid"] if self.records else []
        parts += [f"{self.repaired:,} repaired"] if self.repaired else []
        parts += rejected if self.rejected else []
        parts += [f"{dropped.records:,} dropped by {name}" for name, dropped in self.dropped.items()]
        parts += [f"{count(self.items_written, 'item')} written"] if self.items_written else []
        return ", ".join(parts or ["nothing read"])

    def __str__(self) -> str:
        return self.summary()

    def summary(self, repair: Collection[str] = ()) -> str:
        """The report for a terminal: what was read, the results, and advice.

        Args:
          repair: the rules that the job repaired; they are not advised again.
        """
        lines = []
        if self.records or not self.items_written:  # otherwise items were pushed, not episodes
            outcomes = [f"{number:,} {what}" for what in ("valid", "repaired") if (number := getattr(self, what))]
            checked = f"{count(self.records, 'episode')}: {', '.join([*outcomes, f'{self.rejected:,} rejected'])}"
            lines = [f"read      {count(self.records, 'record')}, {format_size(self.bytes)}"]
            lines.append(f"checked   {checked if self.records else EMPTY}")
        for rule in RULES:
            if rule in self.rules:
                lines += _rule_lines(rule, self.rules[rule], repair)
        if self.episodes:
            lines.append(f"accepted  {count(self.episodes, 'episode')}, {count(self.steps, 'step')}")
        lines += summary_lines(self.connectors, self.dropped)
        lines += unused_lines(self.unused)
        lines += [f"left out  {line}" for line in left_out_lines(self.left_out)]
        lines += [f"note      {note}" for note in self.notes]
        if self.items_predicted or self.items_written:
            agrees = "as" if self.items_written == self.items_predicted else f"NOT the {self.items_predicted:,}"
            items = f"{count(self.items_written, 'item')} ({agrees} predicted)"
            lines.append(f"written   {items}" + (f", {format_size(self.bytes_written)}" if self.bytes_written else ""))
        return "\n".join(lines)


def _rule_lines(rule: str, count: RuleCount, repair: Collection[str]) -> list[str]:
    """The lines for one rule: counts, meaning, one sample, and advice unless it was followed."""
    outcomes = ", ".join(f"{getattr(count, name):,} {name}" for name in OUTCOMES if getattr(count, name))
    lines = [f"  {rule}: {outcomes}; {RULES[rule]}"]
    if count.samples:
        lines.append(f"    for example {count.samples[0].key} ({count.samples[0].detail})")
    if count.rejected:
        tried = f"--repair={rule} did not help: these records break another rule, or break one after the repair"
        lines.append(f"    {tried if rule in repair else ADVICE[rule]}")
    elif rule in REPORTED:
        lines.append(f"    {ADVICE[rule]}")
    return lines


def left_out_lines(left_out: Mapping[str, str]) -> list[str]:
    """Returns a line for each reason, `path, path, ... (why)`; FIELD in a shared reason is one of its paths."""
    groups: dict[str, list[str]] = {}
    for path, why in left_out.items():
        groups.setdefault(why.replace(f"={shlex.quote(path)}", "=FIELD"), []).append(path)
    lines = []
    for why, paths in groups.items():
        names = ", ".join(map(shorten, paths[:_NAMED])) + f", and {len(paths) - _NAMED} more" * (len(paths) > _NAMED)
        lines.append(f"{names} ({left_out[paths[0]] if len(paths) == 1 else why})")
    return lines


_FIRST_EPISODES = 5  # compared with the schema
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
    report = Report(left_out=dict(source.details.left_out), notes=source.details.notes)
    for violation in (*source.details.violations, *_schema_mismatch(source)):
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
    report, policy = Report(), options.policy("short_shard")
    said = "the dataset's metadata" if source.details.tfds is None else DATASET_INFO
    for split in source.splits:
        for shard, low, high in split.taken:
            key = EpisodeKey(source.dataset, split.name, shard.index, 0)
            records = read.get(key.shard_name, 0)
            if high is None or records == high - low:
                continue
            of_slice = " of the slice" if split.sliced else ""
            detail = f"{shard.path} holds {count(records, 'record')}{of_slice}; {said} says {high - low:,}"
            if policy == "fail":
                raise FailedRuleError(f"short_shard: {detail}. {ADVICE['short_shard'].capitalize()}")
            report.add_violation(
                Violation("short_shard", detail), key, "accepted" if policy == "accept" else "rejected"
            )
    return report


def _schema_mismatch(source: Source) -> Iterator[Violation]:
    """Yields a violation if all of the first records break the schema in the same way."""
    episodes = sample_episodes(source, most=_FIRST_EPISODES, unreadable=True)
    samples = [{(fault.rule, fault.field): fault for fault in episode.faults} for episode in episodes]
    if len(samples) < _ENOUGH:
        return
    for rule, field in set.intersection(*map(set, samples)):
        if rule in ("missing_field", "wrong_dtype_or_shape"):
            said = "the dataset's schema" if source.details.tfds is None else FEATURES
            detail = f"{said} does not fit the records: {samples[0][rule, field]}"
            yield Violation("schema_mismatch", f"{detail} (the same in all of the first {len(samples)})")
