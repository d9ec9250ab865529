"""Repairs of the flags of an episode, on request only; no value is ever changed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection

import numpy as np

from rlds_beam.episodes.episode import Episode


def repair_episode(episode: Episode, rules: Collection[str]) -> tuple[Episode, ...]:
    """Repairs what the `rules` name, and splits the record where one of them requires it.

    The rules act together, in this order:

    1. `terminal_not_last`: a step that is is_terminal becomes is_last. Inside the record that is
       an inner end, at which `unexpected_is_last` splits if it is asked for too.
    2. `unexpected_is_last`: the record is split after each is_last (the Roboturk case: steps of
       several episodes in one record).
    3. `unexpected_is_first`: the record is split before each is_first (EnvLogger records this when an
       environment is reset in the middle of an episode).
    4. `missing_is_first`: the first step of each part becomes is_first.
    5. `missing_is_last`: the last step of each part becomes is_last (an interrupted EnvLogger
       episode; a dataset whose writer never set it). is_terminal stays as it was: without it the
       end is a truncation, and values are bootstrapped through it.

    A split may leave a part that breaks a rule which was not asked for (`F M | F M L` split by
    `unexpected_is_first` leaves a part that never ends): the caller must check the parts again.

    Args:
      episode: with the columns is_first, is_last, is_terminal, bool [T], T > 0.
      rules: ids of rules from `rules.REPAIRABLE`; others have no effect.

    Returns:
      The parts in order, with `key.part` 0, 1, 2, ...; together they hold every step once. The
      flags that change are new arrays, all other columns those of the episode, or views of them.
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
