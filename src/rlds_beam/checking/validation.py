"""Checks an episode against all rules, and applies the policies: it repairs flags only on request."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.checking.rules import ADVICE, RULES, VALUE_RULES, CheckOptions
from rlds_beam.checking.steps import (
    LOG_PROPENSITY,
    PROPENSITIES,
    contradicting_rate,
    more_steps,
    propensity_violations,
)
from rlds_beam.checking.verdicts import IgnoredValues, Rejection, Verdict
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import FLAGS, named_dimension
from rlds_beam.errors import BadEpisode, FailedRuleError, Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

_ORDER = {rule: i for i, rule in enumerate(RULES)}
_PROPENSITIES = frozenset((*PROPENSITIES, LOG_PROPENSITY))
_VOID = ("action", "reward", "discount", *PROPENSITIES, LOG_PROPENSITY)
"""The fields that are void on a step with is_last (RLDS); columns below them are named `action/...`."""


def validate_episode(
    episode: Episode,
    options: CheckOptions,
    ignored: IgnoredValues = IgnoredValues(),
    *,
    names: Mapping[str, Sequence[str]] = {},
    fps: float | None = None,
) -> Verdict:
    """Checks an episode against every rule in one pass and applies the policies.

    A record is accepted or rejected as a whole. It is rejected if it breaks a rule with the policy reject. If all
    broken rules are repaired or accepted, it is repaired and checked again, and rejected if it still breaks a rule
    that is not accepted.

    Args:
      episode: the episode as read; `episode.faults` (found by reading) are violations like all others.
      options: the policy of each rule.
      ignored: the values that are not checked. Void values that are NaN or infinite become 0 in the accepted
        episode, unless `non_finite` is accepted.
      names: the names of the values of fields, by path, for the details.
      fps: the steps per second that the dataset declares, if it does.

    Raises:
      FailedRuleError: the policy of a broken rule is `fail`.
    """
    violations = find_violations(episode, options, ignored, names=names, fps=fps)
    if options.reject is not None and all(options.policy(v.rule) in ("accept", "repair") for v in violations):
        from rlds_beam.checking.signals.conditions import broken_conditions, context_for, parse_conditions
        from rlds_beam.checking.signals.episodes import Context

        conditions = parse_conditions(options.reject)
        beyond = broken_conditions(episode, conditions, context_for(conditions, Context.of_episode(episode)))
        violations += () if beyond is None else (beyond,)
    if not violations:
        cleared = episode if episode.sound else _clear_void(episode, options, ignored)
        return Verdict(episode.key, (cleared,), size=len(episode.payload))
    by_policy: dict[str, list[Violation]] = {}
    for violation in violations:
        by_policy.setdefault(options.policy(violation.rule), []).append(violation)
    if "fail" in by_policy:
        key, first = episode.key, by_policy["fail"][0]
        raise FailedRuleError(
            f"{key.dataset}, split {key.split}, shard {key.shard}, position {key.position}: {first}. "
            f"--fail={first.rule} ends the job at the first such episode. Without it, the job writes the episode to "
            f"rejected/ and continues. About the data: {ADVICE[first.rule]}."
        )
    rejecting, repairing = by_policy.get("reject", []), by_policy.get("repair", [])
    episodes: tuple[Episode, ...] = (episode,)
    remaining: list[Violation] = []
    if repairing and not rejecting:
        episodes = repair_episode(episode, [rule for rule in options.repair if options.policy(rule) == "repair"])
        remaining = [v for part in episodes for v in _drop_accepted(find_violations(part, options, ignored), options)]
        rejecting = sorted(remaining, key=_by_rule)
    if not rejecting:
        repaired = tuple(dict.fromkeys(v.rule for v in repairing))
        episodes = tuple(_clear_void(part, options, ignored) for part in episodes)
        return Verdict(episode.key, episodes, violations, repaired=repaired, size=len(episode.payload))
    reasons = tuple(dict.fromkeys([*_drop_accepted(violations, options), *remaining]))
    rejection = Rejection(episode.key, rejecting[0].rule, reasons, episode.payload)
    return Verdict(episode.key, (), violations, rejection, size=len(episode.payload))


def _is_float(dtype: np.dtype[Any]) -> bool:
    """Whether values of this dtype may be NaN or infinite."""
    kind = dtype.kind
    # numpy reports bfloat16 as kind V, like a structured dtype.
    return kind == "f" or (kind == "V" and dtype.name == "bfloat16")


def find_violations(
    episode: Episode,
    options: CheckOptions,
    ignored: IgnoredValues = IgnoredValues(),
    *,
    names: Mapping[str, Sequence[str]] = {},
    fps: float | None = None,
) -> tuple[Violation, ...]:
    """Finds every violation in the episode, in the order of `RULES`, regardless of policies.

    Args:
      ignored: the values that are not checked.
      names: the names of the values of fields, by path, for the details.
      fps: the steps per second that the dataset declares, if it does.
    """
    violations = [*episode.faults]
    if episode.last_action_is_real:
        ignored = dataclasses.replace(ignored, last_step=False)
    if len(episode):
        if not episode.sound:
            violations += _numbers(episode.steps, options, ignored, names)
        for path, column in episode.steps.items():
            if isinstance(column, EncodedImages):
                violations += _images(path, column, options)
            elif fps and (rate := contradicting_rate(path, column, fps)) is not None:
                detail = f"its times are {rate:.3g} Hz, but the data says {fps:g} Hz"
                violations.append(Violation("rate_mismatch", detail, path))
        if options.propensity_fn is not None or not _PROPENSITIES.isdisjoint(episode.steps):
            judge_last = options.check_unused or episode.last_action_is_real
            violations += propensity_violations(episode, options.propensity_fn, judge_last)
    # Unreadable episodes have no steps either, but a fault says why; a duplicate of an empty episode is empty.
    elif all(fault.rule in VALUE_RULES for fault in episode.faults):
        violations.append(Violation("empty_episode", "0 steps"))
    return tuple(sorted(violations, key=_by_rule)) if violations else ()


def _numbers(
    steps: Mapping[str, Column],
    options: CheckOptions,
    ignored: IgnoredValues,
    names: Mapping[str, Sequence[str]],
) -> Iterator[Violation]:
    """Yields what `are_sound` rules out."""
    yield from _boundaries(steps)
    for path, column in steps.items():
        if isinstance(column, EncodedImages) or not _is_float(column.dtype):
            continue
        if np.count_nonzero(np.isfinite(column)) < column.size:
            bad, is_void = ~np.isfinite(column), ignored.last_step and path.partition("/")[0] in _VOID
            if options.check_unused:
                yield from _element("non_finite", path, column, bad, names.get(path, ()))
            elif path not in ignored.fields:
                meant = _meant(bad, steps) if is_void else bad
                yield from _element("non_finite", path, column, meant, names.get(path, ()))
    discount = steps.get("discount")
    if isinstance(discount, np.ndarray):
        with np.errstate(invalid="ignore"):  # NaN is non_finite, not out of range
            bad = (discount < 0) | (discount > 1)
        if ignored.last_step and not options.check_unused:
            bad = _meant(bad, steps)
        yield from _element("discount_out_of_range", "discount", discount, bad)


def _last(steps: Mapping[str, Column]) -> Array:
    """Whether each step is is_last, bool [T]; all False without such a field."""
    return np.asarray(steps["is_last"], bool) if "is_last" in steps else np.zeros(len(next(iter(steps.values()))), bool)


def _meant(bad: Array, steps: Mapping[str, Column]) -> Array:
    """`bad`, but False on steps with is_last."""
    return bad & ~_last(steps).reshape(-1, *[1] * (bad.ndim - 1))


def _clear_void(episode: Episode, options: CheckOptions, ignored: IgnoredValues) -> Episode:
    """Replaces void values that are NaN or infinite with 0: learners mask them by multiplication, which keeps NaN."""
    if not ignored.last_step or episode.last_action_is_real or options.policy("non_finite") == "accept":
        return episode
    changed: dict[str, Column] = {}
    last = _last(episode.steps)
    for path, column in episode.steps.items():
        if path.partition("/")[0] in _VOID and isinstance(column, np.ndarray) and _is_float(column.dtype):
            bad = ~np.isfinite(column)
            bad[~last] = False
            if bad.any():
                changed[path] = np.where(bad, np.zeros((), column.dtype), column)
    return episode.replace(steps={**episode.steps, **changed}) if changed else episode


def _images(path: str, column: EncodedImages, options: CheckOptions) -> Sequence[Violation]:
    violations: Sequence[Violation] = column.check(options.max_image_pixels, path)
    if options.decode_images and not violations:  # never decode an image with a bad header
        try:
            column.decode(path)
        except BadEpisode as bad:
            violations = bad.violations
    return violations


def _boundaries(steps: Mapping[str, Column]) -> Iterator[Violation]:
    missing = [name for name in FLAGS if name not in steps]
    if missing:
        yield from (Violation("missing_field", "no such step field", name) for name in missing)
        return
    first, last, terminal = (np.asarray(steps[name], bool) for name in FLAGS)
    firsts, lasts, terminals = np.count_nonzero(first), np.count_nonzero(last), np.count_nonzero(terminal)
    if firsts == lasts == 1 and first[0] and last[-1] and (not terminals or (terminals == 1 and terminal[-1])):
        return
    end = len(first) - 1
    if not first[0]:
        yield Violation("missing_is_first", "False at step 0", "is_first", 0)
    # An is_first right after an is_last starts a second episode in the record: unexpected_is_last covers it.
    yield from _at(np.flatnonzero(first[1:] & ~last[:-1]) + 1, "unexpected_is_first", "is_first", f", of {end + 1}")
    if not last[-1]:
        yield Violation("missing_is_last", f"False at step {end}, the last one", "is_last", end)
    yield from _at(np.flatnonzero(last[:-1]), "unexpected_is_last", "is_last", f", of {end + 1}")
    yield from _at(np.flatnonzero(terminal & ~last), "terminal_not_last", "is_terminal", ", but is_last is False")


def _at(steps: Array, rule: str, flag: str, where: str) -> Iterator[Violation]:
    """Yields one violation for all of the `steps`, if there are any."""
    if len(steps):
        yield Violation(rule, f"True at step {steps[0]}{where}{more_steps(steps)}", flag, int(steps[0]))


def _element(rule: str, path: str, column: Array, bad: Array, names: Sequence[str] = ()) -> Iterator[Violation]:
    """Yields one violation for all `bad` elements (bool, the column's shape), if there are any."""
    flat = bad.reshape(len(bad), -1)
    steps = np.flatnonzero(flat.any(axis=1))
    if len(steps):
        step = int(steps[0])
        place = int(np.argmax(flat[step]))
        value, shape = column.reshape(len(bad), -1)[step, place], column.shape[1:]
        where = f" in {named_dimension(path, shape, place, names)}" if flat.shape[1] > 1 else ""
        yield Violation(rule, f"{float(value):g} at step {step}{where}{more_steps(steps)}", path, step)


def _by_rule(violation: Violation) -> int:
    return _ORDER[violation.rule]


def _drop_accepted(violations: Iterable[Violation], options: CheckOptions) -> list[Violation]:
    return [v for v in violations if options.policy(v.rule) != "accept"]


def repair_episode(episode: Episode, rules: Collection[str]) -> tuple[Episode, ...]:
    """Repairs violations of `rules`, and splits the record if a rule requires it.

    The rules act together, in this order:

    1. `terminal_not_last`: a step with is_terminal gets is_last. Inside the record, `unexpected_is_last` then splits
       there, if it is also requested.
    2. `unexpected_is_last`: splits the record after each is_last (for example Roboturk: several episodes in one
       record).
    3. `unexpected_is_first`: splits the record before each is_first (EnvLogger records this if an environment is reset
       in the middle of an episode).
    4. `missing_is_first`: the first step of each part gets is_first.
    5. `missing_is_last`: the last step of each part gets is_last (an interrupted EnvLogger episode, or a writer that
       never sets it). is_terminal does not change: without it the end is a truncation, and learners bootstrap from it.

    A part may still break a rule that was not requested (`F M | F M L` split by `unexpected_is_first` leaves a part
    that never ends), so the caller must check the parts again.

    Args:
      episode: an episode with the columns is_first, is_last, is_terminal, bool [T], T > 0.
      rules: the rules to repair, from `rules.REPAIRABLE`; others have no effect.

    Returns:
      The parts in order, with `key.part` 0, 1, 2, ...; together they hold every step once. Changed flags are new
      arrays; all other columns are the episode's, or views of them.
    """
    length = len(episode)
    first, last, terminal = (np.array(episode.steps[f"is_{name}"], bool) for name in ("first", "last", "terminal"))
    if "terminal_not_last" in rules:
        last |= terminal
    split = np.zeros(length + 1, bool)  # split[i]: a part starts at step i
    split[[0, length]] = True
    if "unexpected_is_last" in rules:
        split[1:] |= last
    if "unexpected_is_first" in rules:
        split[:-1] |= first
    bounds = np.flatnonzero(split)
    if "missing_is_first" in rules:
        first[bounds[:-1]] = True
    if "missing_is_last" in rules:
        last[bounds[1:] - 1] = True
    flags = {"is_first": first, "is_last": last}
    changed = {name: flag for name, flag in flags.items() if not np.array_equal(flag, np.asarray(episode.steps[name]))}
    repaired = episode.replace(steps={**episode.steps, **changed})
    if len(bounds) == 2:  # one part, with the columns of the episode
        return (repaired.replace(key=dataclasses.replace(episode.key, part=0)),)
    parts = [repaired.slice(start, stop) for start, stop in itertools.pairwise(bounds.tolist())]
    return tuple(p.replace(key=dataclasses.replace(episode.key, part=i)) for i, p in enumerate(parts))


def screen_batches(batches: Iterable[list[Episode]]) -> Iterator[Episode]:
    """Yields the episodes of each batch in order, marked if their numbers are sound (`are_sound`).

    Empties the batches, so that each episode is freed before the next one is read.
    """
    for episodes in batches:
        sound = are_sound(episodes)
        episodes.reverse()
        while episodes:
            yield episodes.pop().note(sound=sound)


def are_sound(episodes: Sequence[Episode]) -> bool:
    """Whether the numbers of all of these episodes certainly break no rule of `validate_episode`.

    That is: each has one is_first, at its first step, and one is_last, at its last step; is_terminal at most at its
    last step; finite numbers; and discounts from 0 to 1. False if they are not alike, or if there is only one, whose
    check would take as long.
    """
    if len(episodes) < 2 or any(episode.steps.keys() != episodes[0].steps.keys() for episode in episodes):
        return False
    lengths = np.array([len(episode) for episode in episodes])
    if not lengths.all():
        return False
    joined: dict[str, Array] = {}
    for path in episodes[0].steps:
        parts: list[Any] = [episode.steps[path] for episode in episodes]
        dtypes = {part.dtype for part in parts}
        if len(dtypes) > 1:
            return False
        if not isinstance(parts[0], EncodedImages) and (_is_float(parts[0].dtype) or path in (*FLAGS, "discount")):
            try:
                joined[path] = np.concatenate(parts)
            except ValueError:  # other shapes
                return False
    return _are_regular(joined, lengths) and _are_in_range(joined)


def _are_regular(columns: Mapping[str, Array], lengths: Array) -> bool:
    """Whether the flags are those of `len(lengths)` whole episodes."""
    if any(name not in columns or columns[name].shape != (lengths.sum(),) for name in FLAGS):
        return False
    first, last, terminal = (columns[name].astype(bool, copy=False) for name in FLAGS)
    ends = np.cumsum(lengths)
    starts, ends = ends - lengths, ends - 1
    firsts, lasts, terminals = (np.count_nonzero(flags) for flags in (first, last, terminal))
    return bool(
        firsts == lasts == len(lengths)
        and first[starts].all()
        and last[ends].all()
        and terminals == np.count_nonzero(terminal[ends])
    )


def _are_in_range(columns: Mapping[str, Array]) -> bool:
    """Whether all numbers are finite, and discounts from 0 to 1."""
    for path, column in columns.items():
        if path == "discount" and not (column.min() >= 0 and column.max() <= 1):
            return False
        if path not in FLAGS and np.count_nonzero(np.isfinite(column)) < column.size:
            return False
    return True
