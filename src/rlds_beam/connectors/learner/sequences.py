"""Sequences of equal length, the states of recurrent models at their starts, and what a model computes for a step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np

from rlds_beam.connectors.base import Batch, Columns, check_order, find_module
from rlds_beam.connectors.fields import StepFields, check_choices, leaves, match_fields
from rlds_beam.connectors.learner.actions import as_numpy
from rlds_beam.connectors.learner.columns import is_there
from rlds_beam.episodes.columns import below, concatenate, flatten, transitions, zeros_like
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array
from rlds_beam.user_functions import resolve

Arrays: TypeAlias = "dict[str, Array]"


@dataclasses.dataclass(frozen=True)
class AddTimeDimToBatchAndZeroPad:
    """Cuts each episode into sequences of `max_seq_len` transitions, and zero-pads the last one.

        max_seq_len=4                  row 0        row 1         seq_lens     loss_mask
        obs (5,)      0 1 2 3 4   ->   0 1 2 3      4 0 0 0       [4, 1]       1111  1000

    Sequences are never packed: each holds transitions of one episode. Adds the columns `seq_lens`, int32 (B,), the
    number of transitions per sequence; and `loss_mask`, bool (B, max_seq_len), true for transitions to learn from.
    (Unlike RLlib's, `seq_lens` does not count the timestep that AddOneTsToEpisodesAndTruncate adds.)

    The one row of a running episode gets a time axis of length 1: obs (1, ...) becomes (1, 1, ...).

    Attributes:
      max_seq_len: L, the sequence length.
      stride: the number of transitions between the starts of two sequences; by default L - burn_in, so that each
        transition is learned from once. With a smaller stride, sequences overlap.
      burn_in: the number of transitions at the start of a sequence that only update the recurrent state. Their
        `loss_mask` is false, except in the first sequence of an episode, which needs no burn-in.
      pad: `right`, or `left` for zeros before the transitions.
      tail: `keep`, or `drop` sequences that are not full.
      modules: the modules that learn from sequences; by default all. Rows of other modules stay transitions.
    """

    max_seq_len: int = 20
    stride: int | None = None
    burn_in: int = 0
    pad: str = "right"
    tail: str = "keep"
    modules: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.modules is not None:
            object.__setattr__(self, "modules", tuple(self.modules))
        if self.max_seq_len < 1:
            raise UsageError(f"max_seq_len={self.max_seq_len}: expected 1 or more")
        if not 0 <= self.burn_in < self.max_seq_len:
            raise UsageError(f"burn_in={self.burn_in}: expected 0 to {self.max_seq_len - 1}, less than max_seq_len")
        if not 1 <= self.step <= self.max_seq_len:
            raise UsageError(f"stride={self.stride}: expected 1 to {self.max_seq_len}, or transitions are left out")
        check_choices(self, pad=("right", "left"), tail=("keep", "drop"))

    @property
    def step(self) -> int:
        """The number of transitions between the starts of two sequences."""
        return self.max_seq_len - self.burn_in if self.stride is None else self.stride

    def __call__(self, batch: Batch) -> Batch:
        check_order(self, batch, time=True)
        of = [self.modules is None or find_module(episode) in self.modules for episode in batch.episodes]
        if batch.running:  # one row each, which gets a time axis of length 1
            time = AddTimeDimToBatchAndZeroPad(1)
            starts = tuple(np.array([len(e) - 1]) if o else None for o, e in zip(of, batch.episodes, strict=True))
            rows = (
                columns if start is None else time.sequences(columns, start)
                for start, columns in zip(starts, batch.columns, strict=True)
            )
            return batch.replace(columns=tuple(rows), time=time, starts=starts)
        cut = [
            self._cut(columns) if is_of else (columns, None) for is_of, columns in zip(of, batch.columns, strict=True)
        ]
        return batch.replace(columns=tuple(c for c, _ in cut), time=self, starts=tuple(s for _, s in cut))

    def sequences(self, columns: Columns, starts: Array) -> Columns:
        """Reshapes columns (T, ...) to (len(starts), max_seq_len, ...)."""
        return {name: self._sequences(column, starts, len(column)) for name, column in columns.items()}

    def _cut(self, columns: Columns) -> tuple[Columns, Array]:
        rows = len(next(iter(columns.values()))) if columns else 0
        starts, lengths = _windows(rows, self.max_seq_len, self.step, self.tail == "drop")
        sequences = {
            name: column if name in ("seq_lens", "loss_mask") else self._sequences(column, starts, rows)
            for name, column in columns.items()
        }
        real, mask = lengths, cast("Array | None", columns.get("loss_mask"))
        if mask is None:
            mask = _masks(self, rows)
        else:
            counted = np.concatenate([[0], np.cumsum(mask)])
            real = (counted[starts + lengths] - counted[starts]).astype(np.int32)
            mask = self._mask(mask, starts, lengths)
        return {**sequences, "seq_lens": columns.get("seq_lens", real), "loss_mask": mask}, starts

    def _mask(self, learned: Array, starts: Array, lengths: Array) -> Array:
        """bool (len(starts), max_seq_len): whether each transition is learned from; False during burn-in."""
        mask = np.array(self._sequences(learned, starts, len(learned)))
        if self.burn_in and len(starts) > 1:
            first = np.arange(self.max_seq_len) - (self.max_seq_len - lengths[1:, None] if self.pad == "left" else 0)
            mask[1:] &= first >= self.burn_in
        return mask

    def _sequences(self, column: Column, starts: Array, rows: int) -> Column:
        """Reshapes (rows, ...) to (len(starts), max_seq_len, ...), padded with zeros."""
        if isinstance(column, EncodedImages):
            return column.with_data(cast(Array, self._sequences(column.data, starts, rows)))
        length = self.max_seq_len
        if self.pad == "right" and self.step == length and rows <= len(starts) * length:  # the usual case
            filled: Any = column
            if rows < len(starts) * length:
                filled = zeros_like(column, len(starts) * length)
                filled[:rows] = column
        else:
            index = starts[:, None] + np.arange(length)
            if self.pad == "left":
                index -= np.maximum(starts + length - rows, 0)[:, None]
                void = index < starts[:, None]
            else:
                void = index >= rows
            filled = column[np.clip(index, 0, max(rows - 1, 0)).ravel()] if rows else zeros_like(column, index.size)
            filled[void.ravel()] = b"" if column.dtype == object else 0
        return cast(Array, filled.reshape(len(starts), length, *column.shape[1:]))


@functools.lru_cache(maxsize=1024)
def _masks(time: AddTimeDimToBatchAndZeroPad, rows: int) -> Array:
    """The `loss_mask` of an episode in which every transition is learned from."""
    starts, lengths = _windows(rows, time.max_seq_len, time.step, time.tail == "drop")
    mask = time._mask(np.ones(rows, bool), starts, lengths)
    mask.flags.writeable = False
    return mask


@functools.lru_cache(maxsize=1024)
def _windows(rows: int, length: int, step: int, full: bool) -> tuple[Array, Array]:
    """The start and the number of transitions of each sequence of an episode. The last one reaches the end."""
    count = 0 if rows == 0 else max(0, -(-(rows - length) // step)) + 1
    starts = np.arange(count) * step
    lengths = np.minimum(length, rows - starts).astype(np.int32)
    if full:
        starts, lengths = starts[lengths == length], lengths[lengths == length]
    starts.flags.writeable = lengths.flags.writeable = False
    return starts, lengths


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
        check_order(self, batch)
        episodes, starts = batch.episodes, batch.starts
        if batch.running:  # the state before the next transition is the model's latest output
            starts = starts or tuple(np.array([len(episode) - 1]) for episode in episodes)
            field = batch.fields.state_in
            kept = ({path: c for path, c in e.steps.items() if not below(path, field)} for e in episodes)
            episodes = tuple(e.replace(steps=steps) for e, steps in zip(episodes, kept, strict=True))
        starts = starts or tuple(np.arange(transitions(episode)) for episode in episodes)
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
            names = f"{', '.join(initial)}, but the recorded states have {', '.join(recorded)}"
            raise UsageError(f"AddStatesFromEpisodesToBatch: initial_state has {names}")
        if not (before or recorded or initial):
            raise UsageError(f"AddStatesFromEpisodesToBatch: there is no {fields.state_out}, so give initial_state")
        added: dict[str, Any] = {name: column[starts] for name, column in before.items()}
        last, at_start = np.maximum(starts - 1, 0), starts == 0
        for name in () if before else recorded or initial:
            out: Any = recorded.get(name)
            first = as_state(initial[name]) if initial else np.zeros(out.shape[1:], out.dtype)
            if out is None:
                added[name] = np.broadcast_to(first, (len(starts), *first.shape))
                continue
            if first.shape != out.shape[1:]:
                shapes = f"{first.shape}, but the recorded states have {out.shape[1:]}"
                raise UsageError(f"AddStatesFromEpisodesToBatch: {name} of initial_state has shape {shapes}")
            states = out.take(last, axis=0)
            states[at_start] = first
            added[name] = states
        if is_there(columns, "new_obs"):
            after = added if not (before or recorded) else {n: column[starts] for n, column in recorded.items()}
            added |= {f"next_{name}": column for name, column in after.items()}
        return added


def as_state(value: Any) -> np.ndarray[Any, Any]:
    """An initial state: configured numbers become float32; an array that is not float64 keeps its dtype."""
    array = np.asarray(value)
    return array if isinstance(value, np.ndarray) and array.dtype != np.float64 else array.astype(np.float32)


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
        check_order(self, batch, columns=True)
        of = self.modules
        chosen = [i for i, e in enumerate(batch.episodes) if len(e) and (of is None or find_module(e) in of)]
        if not chosen:
            return batch
        episodes = list(batch.episodes)
        parts = [self._inputs(episodes[i], batch.fields) for i in chosen]
        inputs = {name: concatenate([part[name] for part in parts]) for name in parts[0]}
        ends = np.cumsum([len(episodes[i]) for i in chosen])
        if self.initial_state is None:
            starts = range(0, int(ends[-1]), self.batch_size)
            runs = [self._run({n: values[k : k + self.batch_size] for n, values in inputs.items()}) for k in starts]
            outputs = {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}
        else:
            outputs = self._step_by_step(inputs, ends)
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
                    shapes = {name: values.shape for name, values in outputs.items()}
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
        given = {n: c.decode_all(n) if isinstance(c, EncodedImages) else c for n, c in columns.items()}
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
