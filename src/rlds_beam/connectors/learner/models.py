"""Runs a model on recorded episodes to compute states, values, and log-probabilities."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from rlds_beam.connectors.base import Batch, short_name
from rlds_beam.connectors.fields import StepFields, find_module, leaves, match_fields
from rlds_beam.connectors.learner.actions import as_numpy
from rlds_beam.connectors.learner.sequences import as_state
from rlds_beam.episodes.columns import below, concatenate, flatten
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array
from rlds_beam.user_functions import resolve

Arrays: TypeAlias = "dict[str, Array]"


@dataclasses.dataclass(frozen=True)
class AddModelOutputs:
    """Runs a model on every observation of the episodes, and adds its outputs to the steps.

        obs (N, ...), actions (N, ...)   ->   model   ->   {"vf_preds": (N,), "action_logp": (N,), ...}

        step          0     1     2 (last)
        obs           o0    o1    o2
        vf_preds      v0    v1    v2       also for the last observation: GeneralAdvantageEstimation needs it

    The model is a function that takes a dict of arrays and returns a dict of arrays (numpy, torch, TensorFlow, or JAX),
    each with N rows: steps of one or several episodes. Its outputs replace recorded fields of the same names.

    A recurrent model, one with an `initial_state`, is called step by step, each time for all episodes of the batch (one
    record, or more with `EpisodeModelHandler`). It also takes `state_in/...` and returns `state_out/...`; both are
    added to the steps, for AddStatesFromEpisodesToBatch.

        step          0     1     2
        state_in      s0    s1    s2       s0: initial_state
        state_out     s1    s2    s3

    It must come before connectors that add columns, and before AddOneTsToEpisodesAndTruncate.

    Attributes:
      model: a function; or a class that loads the weights and is callable, created once per process; or its
        `module:name`.
      initial_state: s0, by leaf name: `{"h": [0.0, 0.0]}`; or a number or list, if the state is a single array.
      inputs: more step fields for the model, by input name: `{"text": "language_instruction"}`.
      modules: the modules whose episodes the model runs on; by default all.
      batch_size: the most steps per call of a model without state.
    """

    model: str | Callable[[Arrays], Mapping[str, Any]]
    initial_state: Any = None
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    modules: Sequence[str] | None = None
    batch_size: int = 1024
    functions: ClassVar = {"model": None}

    def __post_init__(self) -> None:
        if isinstance(self.model, str):  # the object identifies the version of the code
            object.__setattr__(self, "model", resolve(self.model, "AddModelOutputs: model"))
        if self.batch_size < 1:
            raise UsageError(f"AddModelOutputs: batch_size={self.batch_size}, expected 1 or more")

    def __call__(self, batch: Batch) -> Batch:
        if any(batch.columns):
            raise ValueError(f"{short_name(self)} must come before connectors that add columns")
        of = self.modules
        chosen = [i for i, e in enumerate(batch.episodes) if len(e) and (of is None or find_module(e) in of)]
        if not chosen:
            return batch
        episodes = list(batch.episodes)
        parts = [self._inputs(episodes[i], batch.fields) for i in chosen]
        inputs = {name: concatenate([part[name] for part in parts]) for name in parts[0]}
        ends = np.cumsum([len(episodes[i]) for i in chosen])
        outputs = self._all_at_once(inputs) if self.initial_state is None else self._step_by_step(inputs, ends)
        for i, end in zip(chosen, ends, strict=True):
            own = {name: values[end - len(episodes[i]) : end] for name, values in outputs.items()}
            episodes[i] = _with(episodes[i], own, batch.fields)
        return batch.replace(episodes=tuple(episodes))

    def load(self) -> Callable[[Arrays], Mapping[str, Any]]:
        """Returns the model, ready to be called."""
        model: Any = self.model
        return _load(model) if isinstance(model, type) else model  # type: ignore[no-any-return]

    def _inputs(self, episode: Episode, fields: StepFields) -> dict[str, Column]:
        named = {"obs": fields.obs, "actions": fields.actions, **self.inputs}
        inputs: dict[str, Column] = {}
        for name, field in named.items():
            match_fields(episode.steps, field, "AddModelOutputs")
            inputs |= leaves(episode, field, name)
        return inputs

    def _all_at_once(self, whole: Mapping[str, Column]) -> Arrays:
        rows = len(next(iter(whole.values())))
        starts = range(0, rows, self.batch_size)
        parts = [self._run({name: values[i : i + self.batch_size] for name, values in whole.items()}) for i in starts]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _step_by_step(self, inputs: Mapping[str, Column], ends: Array) -> Arrays:
        """The outputs for concatenated episodes, with the state carried from step to step."""
        lengths = np.diff(ends, prepend=0)
        order = np.argsort(-lengths, kind="stable")  # longest first, so the unfinished episodes are a prefix
        starts, lengths = (ends - lengths)[order], lengths[order]
        initial = {name: as_state(value) for name, value in flatten(self.initial_state, "state_in").items()}
        state = {name: np.repeat(value[None], len(ends), axis=0) for name, value in initial.items()}
        all_outputs: Arrays = {}
        for t in range(lengths[0]):
            going = int(np.count_nonzero(lengths > t))
            rows = starts[:going] + t
            before = {name: values[:going] for name, values in state.items()}
            outputs = self._run({**{name: values[rows] for name, values in inputs.items()}, **before})
            for name in before:
                out = name.replace("state_in", "state_out", 1)
                if out not in outputs or outputs[out].shape != before[name].shape:
                    shapes = ", ".join(f"{name} {values.shape}" for name, values in outputs.items())
                    wanted = f"{out} {before[name].shape}, as initial_state"
                    raise UsageError(f"AddModelOutputs: the model returned {shapes}, expected {wanted}")
                state[name] = outputs[out].astype(before[name].dtype)
            for name, values in {**before, **outputs}.items():
                if name not in all_outputs:
                    all_outputs[name] = np.zeros((int(ends[-1]), *values.shape[1:]), values.dtype)
                all_outputs[name][rows] = values
        return all_outputs

    def _run(self, columns: Mapping[str, Column]) -> Arrays:
        """Calls the model once and checks its outputs."""
        given = {n: c.decode(n) if isinstance(c, EncodedImages) else c for n, c in columns.items()}
        rows, outputs = len(next(iter(given.values()))), self.load()(given)
        if not isinstance(outputs, Mapping) or not outputs:
            raise UsageError(f"AddModelOutputs: the model returned {outputs!r:.80}, expected a dict of arrays")
        arrays = {name: as_numpy(value) for name, value in outputs.items()}
        for name, values in arrays.items():
            if values.ndim == 0 or len(values) != rows:
                raise UsageError(f"AddModelOutputs: {name} has shape {values.shape}, expected ({rows}, ...)")
            if name in columns:
                raise UsageError(f"AddModelOutputs: the model returned {name}, which is one of its inputs")
        return arrays


@functools.lru_cache(maxsize=4)
def _load(model: type) -> Any:
    return model()


def _with(episode: Episode, outputs: Arrays, fields: StepFields) -> Episode:
    """Adds a model's outputs to the episode; recorded states that they replace are removed."""
    of = {"state_in": fields.state_in, "state_out": fields.state_out}
    roles = {name.partition("/")[0] for name in outputs}
    replaced = {of.get(role, role) for role in (roles | {"state_in"} if "state_out" in roles else roles)}
    steps = {p: column for p, column in episode.steps.items() if not any(below(p, field) for field in replaced)}
    for name, values in outputs.items():
        role = name.partition("/")[0]
        steps[of.get(role, role) + name[len(role) :]] = values
    return episode.replace(steps=steps)
