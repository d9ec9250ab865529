"""Findings of rules, signals, and checks of the dataset: the episodes."""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import xxhash

from rlds_beam.checking.rules import ADVICE, REPORTED, RULES
from rlds_beam.checking.signals import texts
from rlds_beam.checking.verdicts import Verdict
from rlds_beam.episodes.episode import Episode, EpisodeKey

MAX_LISTED = 10_000
"""Findings of one check that are listed, those with the smallest keys; all are counted."""

Level = Literal["error", "warning", "note"]
"""`error`: the episode is rejected. `warning`: it is only counted. `note`: an option repaired or accepted it."""


class Check(NamedTuple):
    """A rule, a signal, or a check of the whole dataset.

    Attributes:
      id: its kind and name, because a rule and a signal may have one name: `signal/jump`.
      summary: its meaning, in one line.
      remedy: what to do about a finding.
    """

    id: str
    summary: str
    remedy: str


def list_checks() -> dict[str, Check]:
    """Every rule, signal, and check of the dataset by id, in the order of reports."""
    from rlds_beam.checking.signals.base import SIGNALS
    from rlds_beam.checking.signals.dataset import DATASET_CHECKS, REMEDIES

    checks = [Check(f"rule/{rule}", text, ADVICE[rule]) for rule, text in RULES.items()]
    checks += [Check(f"signal/{s.name}", s.summary, s.remedy) for s in SIGNALS.values()]
    checks += [Check(f"dataset/{name}", text, REMEDIES[name]) for name, text in DATASET_CHECKS.items()]
    return {check.id: check for check in checks}


class Finding(NamedTuple):
    """A finding.

    Attributes:
      check: the id of its check.
      level: how serious it is.
      key: the key of the episode or shard; empty for the whole dataset.
      detail: what was found.
      field: the field, if it is about one.
      step: the index of the step, if known.
    """

    check: str
    level: Level
    key: str
    detail: str
    field: str | None = None
    step: int | None = None


@dataclasses.dataclass(frozen=True)
class Findings:
    """The findings in a dataset.

    Attributes:
      listed: at most `MAX_LISTED` of each check, by check and key.
      counts: check -> the number of its findings of each level.
      tasks: the number of different instructions; 0 if the dataset has none.
    """

    listed: tuple[Finding, ...] = ()
    counts: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    tasks: int = 0

    def left_out(self, check: str) -> int:
        """The number of findings of a check that are not listed."""
        return sum(self.counts.get(check, {}).values()) - sum(finding.check == check for finding in self.listed)

    def add(self, findings: Iterable[Finding], counts: Mapping[str, Mapping[str, int]]) -> Findings:
        """The findings with those of other checks at the end."""
        return dataclasses.replace(self, listed=(*self.listed, *findings), counts={**self.counts, **counts})

    def to_json(self) -> dict[str, Any]:
        """The findings as JSON."""
        return {"listed": [finding._asdict() for finding in self.listed], "counts": self.counts, "tasks": self.tasks}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Findings:
        """The inverse of `to_json`."""
        return cls(tuple(Finding(**finding) for finding in content["listed"]), content["counts"], content["tasks"])


class FindingLog:
    """Lists the violations of records, an accumulator: `add` records and `merge` logs in any order. Picklable.

    Args:
      instructions: the fields with the task, whose different texts are counted.
    """

    def __init__(self, instructions: tuple[str, ...] = ()):
        self.instructions = instructions
        self._found: dict[str, list[tuple[EpisodeKey, Finding]]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._tasks: set[int] = set()

    def add(self, episode: Episode, verdict: Verdict) -> None:
        """Adds one record as read, and the result of its check."""
        key = episode.key
        for found in texts.instructions(episode, self.instructions) if self.instructions else ():
            self._tasks.update(xxhash.xxh3_64_intdigest(text.encode()) for text in found if text.strip())
        for rule, outcome in verdict.outcomes().items() if verdict.violations or verdict.rejected else ():
            violation = verdict.breaches[rule]
            level: Level = "error" if outcome == "rejected" else "warning" if rule in REPORTED else "note"
            finding = Finding(f"rule/{rule}", level, str(key), violation.detail, violation.field, violation.step)
            self._counts[finding.check, level] += 1
            self._found.setdefault(finding.check, []).append((key, finding))
            if len(self._found[finding.check]) > 2 * MAX_LISTED:
                self._cut()

    def merge(self, *others: FindingLog) -> FindingLog:
        """The records of all logs, as a new one."""
        merged = FindingLog(self.instructions)
        for log in (self, *others):
            for check, found in log._found.items():
                merged._found.setdefault(check, []).extend(found)
            merged._counts.update(log._counts)
            merged._tasks |= log._tasks
        merged._cut()
        return merged

    def _cut(self) -> None:
        self._found = {check: heapq.nsmallest(MAX_LISTED, found) for check, found in self._found.items()}

    def finish(self, others: Sequence[Finding] = (), counts: Mapping[str, int] = {}) -> Findings:
        """All findings.

        Args:
          others: findings of signals and of the dataset, by check and key.
          counts: how many there are of each of their checks, if not all are listed.
        """
        self._cut()
        order = {check: place for place, check in enumerate(list_checks())}
        listed = [finding for found in self._found.values() for _, finding in found] + list(others)
        listed.sort(key=lambda finding: order[finding.check])
        totals: dict[str, dict[str, int]] = {}
        for (check, level), number in self._counts.items():
            totals.setdefault(check, {})[level] = number
        of_others = Counter(finding.check for finding in others)
        totals |= {check: {"warning": number} for check, number in {**of_others, **counts}.items() if number}
        totals = {check: totals[check] for check in order if check in totals}
        return Findings(tuple(listed), totals, len(self._tasks))
