"""The verdict on a record: its episodes are accepted, repaired, or rejected; and sums of counts."""

from __future__ import annotations

import dataclasses
import functools
import heapq
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from rlds_beam import worker_status
from rlds_beam.encoding.metadata import Count
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import BadEpisode, Violation


@dataclasses.dataclass(frozen=True)
class IgnoredValues:
    """The values that an output does not use; they are checked only with `check_unused`.

    Attributes:
      fields: the step fields that the output leaves out.
      last_step: whether the action, reward, and discount of the last step are void, as RLDS specifies, or not used; a
        last action that `Episode.last_action_is_real` is always checked.
    """

    fields: frozenset[str] = frozenset()
    last_step: bool = True

    @classmethod
    def from_last_action(cls, last_action: str, fields: Iterable[str] = ()) -> IgnoredValues:
        """These fields, and the values of last steps unless their actions are `real` (`Source.last_action`)."""
        return cls(frozenset(fields), last_step=last_action != "real")


class Recorded(Protocol):
    """An object that knows the record from which it was read: an episode, or its items."""

    @property
    def key(self) -> EpisodeKey: ...

    @property
    def payload(self) -> bytes: ...


@dataclasses.dataclass(frozen=True)
class Rejection:
    """A rejected record, with its original bytes.

    Attributes:
      key: where the record was read.
      rule: the first rule (in the order of `RULES`) that rejects it: one with the policy reject, or one that is still
        broken after a repair.
      violations: all violations that are not accepted, followed by those that remain after a repair.
      payload: the record exactly as read.
    """

    key: EpisodeKey
    rule: str
    violations: tuple[Violation, ...]
    payload: bytes

    @classmethod
    def from_bad_episode(cls, episode: Recorded, bad: BadEpisode) -> Rejection:
        """Rejects an episode, or its items, for violations found only when it was converted or written."""
        return cls(episode.key, bad.violations[0].rule, bad.violations, episode.payload)

    @property
    def detail(self) -> str:
        """The detail of the rejecting rule's violation."""
        return _describe(next(v for v in self.violations if v.rule == self.rule))

    def to_json(self) -> dict[str, Any]:
        """The record's line in `rejected/`."""
        violations = [
            {name: value for name, value in dataclasses.asdict(v).items() if value is not None} for v in self.violations
        ]
        return {"key": str(self.key), "rule": self.rule, "detail": self.detail, "violations": violations}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result for one record: its episodes are accepted, or the whole record is rejected.

    Attributes:
      key: the key of the record (part 0).
      episodes: the accepted episode; several (`key.part` 0, 1, ...) if a repair split the record.
      violations: every violation found in the record as read, in the order of `RULES`.
      rejected: the rejected record if `episodes` is empty; otherwise None.
      repaired: the rules whose violations were repaired.
      size: the size of the record as read, in bytes.
    """

    key: EpisodeKey
    episodes: tuple[Episode, ...]
    violations: tuple[Violation, ...] = ()
    rejected: Rejection | None = None
    repaired: tuple[str, ...] = ()
    size: int = 0

    @property
    def breaches(self) -> dict[str, Violation]:
        """The first violation of each broken rule, including rules broken only after a repair."""
        everything = (*self.violations, *(self.rejected.violations if self.rejected else ()))
        return {v.rule: v for v in reversed(everything)}

    def outcomes(self) -> dict[str, str]:
        """Broken rule -> what was done about it: `accepted`, `repaired`, or `rejected`."""
        reasons = {v.rule for v in self.rejected.violations} if self.rejected else set()
        return {
            rule: "rejected" if rule in reasons else "repaired" if rule in self.repaired else "accepted"
            for rule in self.breaches
        }


def count_verdict(verdict: Verdict) -> None:
    """Counts a record that this process has finished (`worker_status`)."""
    steps = sum(map(len, verdict.episodes))
    worker_status.count(records=1, bytes=verdict.size, steps=steps, rejected=verdict.rejected is not None)


Counts = TypeVar("Counts", bound="Addable")


class Addable(Protocol):
    """Counts that can be added."""

    def add(self: Counts, other: Counts, /) -> Counts: ...


def merge_counts(parts: Iterable[Mapping[str, Counts]]) -> dict[str, Counts]:
    """Adds the counts by name, in order of first appearance."""
    total: dict[str, Counts] = {}
    for part in parts:
        for name, counts in part.items():
            total[name] = total[name].add(counts) if name in total else counts
    return total


def sums(one: Any, *others: Any) -> dict[str, int]:
    """The sum of each field of structs of one type whose default is 0."""
    return {name: sum(getattr(each, name) for each in (one, *others)) for name in _numbers(type(one))}  # type: ignore[arg-type]


@functools.cache
def _numbers(kind: type[msgspec.Struct]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind) if field.default == 0]


def _describe(violation: Violation) -> str:
    return f"{violation.field}: {violation.detail}" if violation.field else violation.detail


SAMPLES = 5
"""The number of samples per rule; those with the smallest keys are kept."""


class Sample(msgspec.Struct, frozen=True):
    """A violation: the key of the episode as text, and what is wrong with it."""

    key: str
    detail: str

    @property
    def place(self) -> tuple[EpisodeKey, str]:
        """What samples are sorted by."""
        return EpisodeKey.parse(self.key), self.detail


def _smallest(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    return tuple(heapq.nsmallest(SAMPLES, samples, key=lambda sample: sample.place))


class RuleCount(msgspec.Struct, frozen=True):
    """The records or shards that broke a rule, by outcome.

    `samples` are the violations with the smallest keys, each with its detail.
    """

    accepted: Count = 0
    repaired: Count = 0
    rejected: Count = 0
    samples: tuple[Sample, ...] = ()

    def add(self, other: RuleCount) -> RuleCount:
        """Returns the sum."""
        return RuleCount(**sums(self, other), samples=_smallest((*self.samples, *other.samples)))

    def count(self, violation: Violation, key: EpisodeKey, outcome: str) -> RuleCount:
        """Returns the counts with one more violation."""
        detail, samples = _describe(violation), self.samples
        if len(samples) < SAMPLES or (key, detail) < samples[-1].place:
            samples = _smallest((*samples, Sample(str(key), detail)))
        counted: dict[str, Any] = {outcome: getattr(self, outcome) + 1, "samples": samples}
        return msgspec.structs.replace(self, **counted)
