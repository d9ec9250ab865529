"""Adds the states of recurrent models."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds_beam.connectors.base import Batch, Columns, check_not_batched
from rlds_beam.connectors.fields import StepFields, leaves, transitions
from rlds_beam.connectors.learner.columns import is_there
from rlds_beam.episodes.columns import below, flatten
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError


@dataclasses.dataclass(frozen=True)
class AddStatesFromEpisodesToBatch:
    """Adds `state_in`: a recurrent model's state before each sequence's first transition, without a time axis.

        transition        0    1    2    3    4             max_seq_len=4: sequences start at 0 and 4
        state_out        .5  1.5  2.5  3.5  4.5             state_in         s0, 3.5
        before it        s0   .5  1.5  2.5  3.5             next_state_in    .5, 4.5   (if there is new_obs)

    States are the recorded `state_in`, or else `state_out` of the step before. If neither was recorded, every state is
    the initial state, even in the middle of an episode, as in RLlib. Episodes of modules that are not recurrent
    (`AddTimeDimToBatchAndZeroPad.modules`) get no states. A running episode gets `state_out` of its second-to-last
    step.

    Attributes:
      initial_state: s0, by leaf name: `{"h": [0.0, 0.0]}`; or a number or list, if the state is a single array. By
        default zeros in the shape of the recorded states.
    """

    initial_state: Mapping[str, Any] | Any = None

    def __call__(self, batch: Batch) -> Batch:
        check_not_batched(self, batch)
        starts = batch.starts or tuple(_rows(episode, running=batch.running) for episode in batch.episodes)
        episodes = batch.episodes
        if batch.running:  # the state before the next transition is the model's latest output
            episodes = tuple(map(_without, episodes, itertools.repeat(batch.fields.state_in)))
        added = (
            each[1] if each[2] is None else {**self._add(*each, batch.fields), **each[1]}
            for each in zip(episodes, batch.columns, starts, strict=True)
        )
        return batch.replace(columns=tuple(added))

    def _add(self, episode: Episode, columns: Columns, starts: np.ndarray[Any, Any], fields: StepFields) -> Columns:
        before = leaves(episode, fields.state_in, "state_in")
        recorded = leaves(episode, fields.state_out, "state_in")
        initial = {} if self.initial_state is None else flatten(self.initial_state, "state_in")
        if recorded and initial and initial.keys() != recorded.keys():
            names = ", ".join(initial), ", ".join(recorded)
            raise UsageError(
                f"AddStatesFromEpisodesToBatch: initial_state has {names[0]}, but the recorded states have {names[1]}"
            )
        if not (before or recorded or initial):
            raise UsageError(
                f"AddStatesFromEpisodesToBatch: the steps have no {fields.state_out}, so give initial_state"
            )
        added: dict[str, Any] = {name: column[starts] for name, column in before.items()}
        last, at_start = np.maximum(starts - 1, 0), starts == 0
        for name in () if before else recorded or initial:
            out: Any = recorded.get(name)
            first = as_state(initial[name]) if initial else np.zeros(out.shape[1:], out.dtype)
            if out is None:
                added[name] = np.broadcast_to(first, (len(starts), *first.shape))
                continue
            if first.shape != out.shape[1:]:
                raise UsageError(
                    f"AddStatesFromEpisodesToBatch: initial_state has shape {first.shape} at {name}, but the recorded "
                    f"states have {out.shape[1:]}"
                )
            states = out.take(last, axis=0)
            states[at_start] = first
            added[name] = states
        if is_there(columns, "new_obs"):
            after = added if not (before or recorded) else {n: column[starts] for n, column in recorded.items()}
            added |= {f"next_{name}": column for name, column in after.items()}
        return added


def _rows(episode: Episode, *, running: bool) -> np.ndarray[Any, Any]:
    """The transitions that become rows: all of them, or only the next one of a running episode."""
    return np.array([len(episode) - 1]) if running else np.arange(transitions(episode))


def _without(episode: Episode, field: str) -> Episode:
    return episode.replace(steps={path: column for path, column in episode.steps.items() if not below(path, field)})


def as_state(value: Any) -> np.ndarray[Any, Any]:
    """An initial state: configured numbers become float32; an array that is not float64 keeps its dtype."""
    array = np.asarray(value)
    return array if isinstance(value, np.ndarray) and array.dtype != np.float64 else array.astype(np.float32)
