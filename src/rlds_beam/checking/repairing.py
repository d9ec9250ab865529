"""Repairs an episode's flags, only on request; no other values change."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection

import numpy as np

from rlds_beam.episodes.episode import Episode


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
