"""The verdict on one episode: which rules it breaks, and what is done with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from rlds_beam import worker_status
from rlds_beam.checking.connected import Connected
from rlds_beam.checking.options import CheckOptions
from rlds_beam.checking.propensities import LOG as LOG_PROPENSITY
from rlds_beam.checking.propensities import NAMES as PROPENSITIES
from rlds_beam.checking.propensities import propensity_violations
from rlds_beam.checking.repairing import repair_episode
from rlds_beam.checking.rules import ADVICE, RULES, VALUE_RULES
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.flags import FLAGS
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.errors import BadEpisode, FailedRuleError, Violation
from rlds_beam.images.checking import check_images
from rlds_beam.images.encoded_images import EncodedImages

_ORDER = {rule: i for i, rule in enumerate(RULES)}
_PROPENSITIES = frozenset((*PROPENSITIES, LOG_PROPENSITY))
_VOID = ("action", "reward", "discount", *PROPENSITIES, LOG_PROPENSITY)
"""Fields that mean nothing on a step that is_last (RLDS); the columns below them are named `action/...`."""


@dataclasses.dataclass(frozen=True)
class IgnoredValues:
    """The values that an output has no use for: they are not looked at, unless `check_unused` asks for it.

    Attributes:
      fields: step fields that it leaves out.
      last_step: whether the action, reward and discount of the last step are void to it, as RLDS says they are.
    """

    fields: frozenset[str] = frozenset()
    last_step: bool = True


@dataclasses.dataclass(frozen=True)
class Rejection:
    """A record that is rejected, with its original bytes.

    Attributes:
      key: where it was read.
      rule: the first rule (in the order of `RULES`) that rejects it: one with the policy reject,
        or, where a repair did not help, one that is still broken after it.
      violations: all violations that are not accepted, followed by those that a repair did not remove.
      payload: the record exactly as it was read.
    """

    key: EpisodeKey
    rule: str
    violations: tuple[Violation, ...]
    payload: bytes

    @classmethod
    def of(cls, episode: Episode, bad: BadEpisode) -> Rejection:
        """The episode, for what was found only when it was converted or written."""
        return cls(episode.key, bad.violations[0].rule, bad.violations, episode.payload)

    @property
    def detail(self) -> str:
        """What was found by the rejecting rule, for a person."""
        violation = next(v for v in self.violations if v.rule == self.rule)
        return f"{violation.field}: {violation.detail}" if violation.field else violation.detail

    def to_json(self) -> dict[str, Any]:
        """The line about the record in `rejected/`."""
        violations = [
            {name: value for name, value in dataclasses.asdict(v).items() if value is not None} for v in self.violations
        ]
        return {"key": str(self.key), "rule": self.rule, "detail": self.detail, "violations": violations}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result for one record: its episodes are accepted, or the whole record is rejected.

    Attributes:
      key: of the record (part 0).
      episodes: the accepted episode; several (`key.part` 0, 1, ...) where a repair split the record.
      violations: every breach found in the record as it was read, in the order of `RULES`.
      rejected: the record, where `episodes` is empty; otherwise None.
      repaired: rules that were broken and no longer are.
      size: bytes of the record as it was read.
      dropped: accepted episodes that connectors dropped, by the name of the connector; the one that dropped the last
        of them comes last.
      written: False where none was left to be written.
      connected: what each connector did; empty if the record is rejected.
    """

    key: EpisodeKey
    episodes: tuple[Episode, ...]
    violations: tuple[Violation, ...] = ()
    rejected: Rejection | None = None
    repaired: tuple[str, ...] = ()
    size: int = 0
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    written: bool = True
    connected: tuple[Connected, ...] = ()

    @property
    def breaches(self) -> dict[str, Violation]:
        """The first breach of each broken rule, including those that appear only after a repair."""
        everything = (*self.violations, *(self.rejected.violations if self.rejected else ()))
        return {v.rule: v for v in reversed(everything)}

    def outcomes(self) -> dict[str, str]:
        """What was done about each broken rule: `accepted`, `repaired` or `rejected`."""
        reasons = {v.rule for v in self.rejected.violations} if self.rejected else set()
        return {
            rule: "rejected" if rule in reasons else "repaired" if rule in self.repaired else "accepted"
            for rule in self.breaches
        }


def count_verdict(verdict: Verdict) -> None:
    """Counts a record that this process has done (`worker_status`)."""
    steps = sum(map(len, verdict.episodes))
    worker_status.count(records=1, bytes=verdict.size, steps=steps, rejected=verdict.rejected is not None)


def validate_episode(episode: Episode, options: CheckOptions, ignored: IgnoredValues = IgnoredValues()) -> Verdict:
    """Looks at every rule of an episode in one pass, and does what the options say.

    A record is accepted or rejected as a whole. It is rejected when it breaks a rule whose policy is
    reject. When every rule that it breaks is to be repaired (or accepted), it is repaired and
    looked at again, and rejected if it still breaks a rule that is not accepted.

    Args:
      episode: as read; `episode.faults` (what reading found wrong) are breaches like all others.
      options: the policy of each rule.
      ignored: values that are not checked. Void ones that are NaN or infinite become 0 in the accepted episode, unless
        `non_finite` is accepted.

    Raises:
      FailedRuleError: the policy of a broken rule is `fail`.
    """
    void: list[str] = []
    violations = find_violations(episode, options, ignored, void)
    if not violations:
        return Verdict(episode.key, (_without_void(episode, void),), size=len(episode.payload))
    by_policy: dict[str, list[Violation]] = {}
    for violation in violations:
        by_policy.setdefault(options.policy(violation.rule), []).append(violation)
    if "fail" in by_policy:
        raise FailedRuleError(_failure(episode.key, by_policy["fail"]))
    rejecting, repairing = by_policy.get("reject", []), by_policy.get("repair", [])
    episodes: tuple[Episode, ...] = (episode,)
    remaining: list[Violation] = []
    if repairing and not rejecting:
        episodes = repair_episode(episode, [rule for rule in options.repair if options.policy(rule) == "repair"])
        remaining = [v for part in episodes for v in _not_accepted(find_violations(part, options, ignored), options)]
        rejecting = sorted(remaining, key=_by_rule)
    if not rejecting:
        repaired = tuple(dict.fromkeys(v.rule for v in repairing))
        episodes = tuple(_without_void(part, void) for part in episodes)
        return Verdict(episode.key, episodes, violations, repaired=repaired, size=len(episode.payload))
    reasons = tuple(dict.fromkeys([*_not_accepted(violations, options), *remaining]))
    rejection = Rejection(episode.key, rejecting[0].rule, reasons, episode.payload)
    return Verdict(episode.key, (), violations, rejection, size=len(episode.payload))


def find_violations(
    episode: Episode,
    options: CheckOptions,
    ignored: IgnoredValues = IgnoredValues(),
    void: list[str] | None = None,
) -> tuple[Violation, ...]:
    """Every breach of a rule in the episode, in the order of `RULES`; no policy is looked at.

    Args:
      ignored: values that are not checked.
      void: is given the paths of columns that have void values which are NaN or infinite.
    """
    violations = [*episode.faults, *_look(episode, options, ignored, [] if void is None else void)]
    return tuple(sorted(violations, key=_by_rule)) if violations else ()


def _look(episode: Episode, options: CheckOptions, ignored: IgnoredValues, void: list[str]) -> Iterator[Violation]:
    if not len(episode):
        # What could not be read has no steps either, and says why; a copy of an empty episode is still empty.
        if all(fault.rule in VALUE_RULES for fault in episode.faults):
            yield Violation("empty_episode", "0 steps")
        return
    steps = episode.steps
    yield from _boundaries(steps)
    for path, column in steps.items():
        if isinstance(column, EncodedImages):
            yield from _images(path, column, options)
        elif _is_float(column.dtype) and np.count_nonzero(np.isfinite(column)) < column.size:
            bad, is_void = ~np.isfinite(column), _is_void(path, ignored)
            if is_void and bad[_last(steps)].any() and options.policy("non_finite") != "accept":
                void.append(path)
            if options.check_unused:
                yield from _element("non_finite", path, column, bad)
            elif path not in ignored.fields:
                yield from _element("non_finite", path, column, _meant(bad, steps) if is_void else bad)
    discount = steps.get("discount")
    if isinstance(discount, np.ndarray):
        yield from _discount(discount, None if options.check_unused or not ignored.last_step else steps)
    if options.propensity_fn is not None or not _PROPENSITIES.isdisjoint(steps):
        yield from propensity_violations(episode, options.propensity_fn, options.check_unused)


def _is_void(path: str, ignored: IgnoredValues) -> bool:
    return ignored.last_step and path.partition("/")[0] in _VOID


def _last(steps: Mapping[str, Column]) -> np.ndarray[Any, Any]:
    """bool [T]: the steps that are is_last; none where there is no such field."""
    return np.asarray(steps["is_last"], bool) if "is_last" in steps else np.zeros(len(next(iter(steps.values()))), bool)


def _meant(bad: np.ndarray[Any, Any], steps: Mapping[str, Column]) -> np.ndarray[Any, Any]:
    """`bad`, False on the steps that are is_last."""
    return bad & ~_last(steps).reshape(-1, *[1] * (bad.ndim - 1))


def _without_void(episode: Episode, void: Iterable[str]) -> Episode:
    """The episode with 0 in the place of void values that are NaN or infinite, in the columns at these paths.

    A learner masks them by a product, which leaves NaN what it is.
    """
    changed: dict[str, Column] = {}
    for path in void:
        column = np.array(episode.steps[path])
        bad = ~np.isfinite(column)
        column[bad & ~_meant(bad, episode.steps)] = 0
        changed[path] = column
    return episode.replace(steps={**episode.steps, **changed}) if changed else episode


def _is_float(dtype: np.dtype[Any]) -> bool:
    kind = dtype.kind
    # bfloat16 is of no kind that numpy knows (V, like a structured dtype).
    return kind == "f" or (kind == "V" and dtype.name == "bfloat16")


def _images(path: str, column: EncodedImages, options: CheckOptions) -> Iterator[Violation]:
    violations = check_images(column, options.max_image_pixels, path)
    if options.decode_images and not violations:  # never the pixels of an image whose header is not trusted
        try:
            column.decode(path)
        except BadEpisode as bad:
            violations = list(bad.violations)
    yield from violations


def _boundaries(steps: Mapping[str, Column]) -> Iterator[Violation]:
    missing = [name for name in FLAGS if name not in steps]
    if missing:
        yield from (Violation("missing_field", "there is no such step field", name) for name in missing)
        return
    first, last, terminal = (np.asarray(steps[name], bool) for name in FLAGS)
    firsts, lasts, terminals = np.count_nonzero(first), np.count_nonzero(last), np.count_nonzero(terminal)
    if firsts == lasts == 1 and first[0] and last[-1] and (not terminals or (terminals == 1 and terminal[-1])):
        return
    end = len(first) - 1
    if not first[0]:
        yield Violation("missing_is_first", "False at step 0", "is_first", 0)
    # An is_first right after an is_last starts a second episode in the record: that is unexpected_is_last.
    yield from _at(np.flatnonzero(first[1:] & ~last[:-1]) + 1, "unexpected_is_first", "is_first", f", of {end + 1}")
    if not last[-1]:
        yield Violation("missing_is_last", f"False at step {end}, the last one", "is_last", end)
    yield from _at(np.flatnonzero(last[:-1]), "unexpected_is_last", "is_last", f", of {end + 1}")
    yield from _at(np.flatnonzero(terminal & ~last), "terminal_not_last", "is_terminal", ", where is_last is False")


def _at(steps: np.ndarray[Any, Any], rule: str, flag: str, where: str) -> Iterator[Violation]:
    """One violation for all of the `steps`, if there are any."""
    if len(steps):
        yield Violation(rule, f"True at step {steps[0]}{where}{_more(steps)}", flag, int(steps[0]))


def _more(steps: np.ndarray[Any, Any]) -> str:
    return f" ({len(steps)} such steps)" if len(steps) > 1 else ""


def _element(rule: str, path: str, column: np.ndarray[Any, Any], bad: np.ndarray[Any, Any]) -> Iterator[Violation]:
    """One violation for all of the `bad` elements (bool, the column's shape), if there are any."""
    flat = bad.reshape(len(bad), -1)
    steps = np.flatnonzero(flat.any(axis=1))
    if len(steps):
        step = int(steps[0])
        value = column.reshape(len(bad), -1)[step, np.argmax(flat[step])]
        yield Violation(rule, f"{float(value):g} at step {step}{_more(steps)}", path, step)


def _discount(discount: np.ndarray[Any, Any], steps: Mapping[str, Column] | None) -> Iterator[Violation]:
    """What is out of range; with `steps`, on those that are not is_last."""
    if (
        discount.dtype == np.float32
        and np.minimum.reduce(discount, None) >= 0
        and np.maximum.reduce(discount, None) <= 1
    ):
        return
    with np.errstate(invalid="ignore"):  # NaN in bfloat16: it is non_finite, not out of range
        if not (discount.min() >= 0 and discount.max() <= 1):
            bad = (discount < 0) | (discount > 1)
            yield from _element("discount_out_of_range", "discount", discount, _meant(bad, steps) if steps else bad)


def _by_rule(violation: Violation) -> int:
    return _ORDER[violation.rule]


def _not_accepted(violations: Iterable[Violation], options: CheckOptions) -> list[Violation]:
    return [v for v in violations if options.policy(v.rule) != "accept"]


def _failure(key: EpisodeKey, violations: Iterable[Violation]) -> str:
    first = next(iter(violations))
    return (
        f"{key.dataset}, split {key.split}, shard {key.shard}, position {key.position}: {first}. "
        f"--fail={first.rule} ends the job at the first such episode; without it the episode is kept aside in "
        f"rejected/ and the job continues. About the data: {ADVICE[first.rule]}."
    )
