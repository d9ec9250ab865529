"""Base policies by name, and saved models of TF-Agents (`PolicySaver`), d3rlpy, and RLlib."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds_beam.episodes.columns import flatten
from rlds_beam.errors import UsageError, needs
from rlds_beam.output.files import Checksum
from rlds_beam.recording.bases import (
    BasePolicy,
    Function,
    Predictor,
    State,
    StatefulFunction,
    check_state,
    like,
    list_leaves,
)
from rlds_beam.typing import Array
from rlds_beam.user_functions import resolve

_STATE_IN = "state_in"


def is_model(name: str) -> bool:
    """Whether a name refers to a saved model: `policy_saver:DIRECTORY`, and so on."""
    return name.partition(":")[0] in MODELS


def load_model(name: str) -> BasePolicy:
    """Loads the saved model of a name, for example `d3rlpy:model.d3`.

    Raises:
      UsageError: the model is missing or cannot be loaded.
      MissingExtraError: the package that wrote it is not installed.
    """
    kind, _, path = name.partition(":")
    if not os.path.exists(path):
        raise UsageError(f"--policy: {name}: {path} does not exist")
    return MODELS[kind](path)


def as_base(base: Any) -> BasePolicy:
    """Converts a head's argument to a base policy.

    Args:
      base: a `BasePolicy`; an object with `predict`; a function, which may have `get_initial_state`; or a name: the
        `module:name` of one of these or of a class without arguments, or a saved model (`load_model`).

    Raises:
      UsageError: the argument is none of these.
    """
    name = base if isinstance(base, str) else getattr(base, "__qualname__", type(base).__name__)
    if isinstance(base, str):
        base = load_model(base) if is_model(base) else resolve(base, "--policy", callable_only=False)
    if isinstance(base, type):
        base = base()
    if isinstance(base, BasePolicy):
        return base
    if callable(base) and callable(getattr(base, "get_initial_state", None)):
        return StatefulFunction(base, str(name))
    if callable(getattr(base, "predict", None)):
        return Predictor(base)
    if callable(base):
        return Function(base, str(name))
    raise UsageError(f"--policy: {name} is a {type(base).__name__}, which is not a function and has no `predict`")


def fingerprint(name: str) -> str:
    """A checksum of the files of a saved model."""
    path = name.partition(":")[2]
    checksum = Checksum()
    files = [path] if os.path.isfile(path) else [os.path.join(d, f) for d, _, names in os.walk(path) for f in names]
    for file in sorted(files):
        checksum.update(os.path.relpath(file, path).encode())
        with open(file, "rb") as content:
            checksum.update(content.read())
    return str(checksum)


class SavedPolicy(BasePolicy):
    """A policy saved by TF-Agents' `PolicySaver`, whose action is taken as the greedy one. It may have a state."""

    def __init__(self, directory: str):
        with needs("agents", "a saved policy needs TensorFlow"):
            import tensorflow as tf
        self._tf, self._directory = tf, directory
        self._policy = tf.saved_model.load(directory)
        self._signature = self._policy.signatures["action"]
        self._names = sorted(self._signature.structured_input_signature[1])
        self._state_names = [name for name in self._names if not _OF_TIME_STEP.search(name)]

    def __repr__(self) -> str:
        return self._directory

    def initial_state(self) -> State | None:
        if not self._state_names:
            return None
        start = self._policy.signatures["get_initial_state"]
        size = {name: self._tf.constant(1) for name in start.structured_input_signature[1]}
        state = start(**size)
        return tuple(state[name].numpy()[0] for name in sorted(state))

    def advance(self, observations: Any, state: State) -> tuple[Array, State]:
        outputs = self._call(observations, state)
        after = tuple(outputs[name].numpy() for name in sorted(outputs) if name.partition("/")[0] == "state")
        check_state(self, state, after)
        return outputs["action"].numpy(), after

    def greedy(self, observations: Any) -> Array:
        if self._state_names:
            raise self._needs_its_state()
        action: Array = self._call(observations, ())["action"].numpy()
        return action

    def _call(self, observations: Any, state: State) -> Any:
        tf = self._tf
        inputs = self._signature.structured_input_signature[1]
        rows = len(next(iter(_leaves(observations).values())))
        given = {}
        for name in self._names:
            spec = inputs[name]
            if name.endswith("step_type"):
                value: Any = np.ones(rows, np.int32)  # neither first nor last, because we reset the state ourselves
            elif name.endswith("reward"):
                value = np.zeros(rows, np.float32)
            elif name.endswith("discount"):
                value = np.ones(rows, np.float32)
            elif name in self._state_names:
                value = state[self._state_names.index(name)]
            else:
                value = self._observation(name, observations)
            given[name] = tf.constant(value, spec.dtype)
        return self._signature(**given)

    def _observation(self, name: str, observations: Any) -> Any:
        leaves = _leaves(observations)
        path = name.partition("observation")[2].strip("/")
        if path not in leaves:
            raise UsageError(f"{self}: it needs {name}, but the observation has {', '.join(leaves) or 'one array'}")
        return leaves[path]


_OF_TIME_STEP = re.compile(r"(step_type|reward|discount)$|observation")
"""Inputs of a saved policy that belong to the time step; the others are its state."""


def _leaves(observations: Any) -> dict[str, Array]:
    """The arrays of nested observations by path; a single array has the path ``."""
    if isinstance(observations, dict):
        return {
            f"{name}/{path}".rstrip("/"): leaf
            for name, part in observations.items()
            for path, leaf in _leaves(part).items()
        }
    if isinstance(observations, tuple):
        return _leaves({str(i): part for i, part in enumerate(observations)})
    return {"": np.asarray(observations)}


class RLModulePolicy(BasePolicy):
    """An RLModule checkpoint of RLlib: its logits are the values of discrete actions, its mean a continuous action."""

    def __init__(self, path: str):
        with needs("rllib", "an RLModule needs RLlib"):
            import torch
            from ray.rllib.core.columns import Columns
            from ray.rllib.core.rl_module.rl_module import RLModule
        # Ray takes absolute paths and URIs only.
        module = RLModule.from_checkpoint(path if "://" in path else os.path.abspath(path))
        self._module, self._torch, self._columns, self._path = module, torch, Columns, path
        self._initial = module.get_initial_state() if module.is_stateful() else None

    def __repr__(self) -> str:
        return self._path

    def __call__(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """The module's `forward_exploration` of columns: `action_dist_inputs`, and its next state if it has one."""
        state = {name: value for name, value in columns.items() if name.partition("/")[0] == _STATE_IN}
        with self._torch.no_grad():
            if not state:
                return dict(self._module.forward_exploration(self._tensors(columns)))
            given = {name: np.asarray(value)[:, None] for name, value in columns.items() if name not in state}
            leaves = tuple(state[name] for name in sorted(state))
            outputs = self._module.forward_exploration(self._tensors({**given, _STATE_IN: self._nest(leaves)}))
        after = outputs[self._columns.STATE_OUT]
        last_outputs = {name: value[:, 0] for name, value in outputs.items() if hasattr(value, "shape")}
        return {**last_outputs, **flatten(after, self._columns.STATE_OUT)}

    def get_initial_state(self) -> Any:
        """The initial state, without the axis of environments; empty for a module without a state."""
        return {} if self._initial is None else self._initial

    def _nest(self, state: State) -> Any:
        return like(self._initial, state)

    def _tensors(self, nested: Any) -> Any:
        if isinstance(nested, Mapping):
            return {name: self._tensors(value) for name, value in nested.items()}
        return self._torch.from_numpy(np.ascontiguousarray(nested))

    def _inputs(self, observations: Any) -> Array:
        if self._initial is not None:
            raise self._needs_its_state()
        with self._torch.no_grad():
            given = self._torch.from_numpy(np.ascontiguousarray(observations, np.float32))
            return self._outputs(self._module.forward_inference({self._columns.OBS: given}))

    def _outputs(self, outputs: Mapping[str, Any]) -> Array:
        if self._columns.ACTION_DIST_INPUTS not in outputs:
            if self._columns.ACTIONS in outputs:
                return np.asarray(outputs[self._columns.ACTIONS].numpy())
            raise UsageError(f"{self}: the RLModule returned neither action_dist_inputs nor actions")
        return np.asarray(outputs[self._columns.ACTION_DIST_INPUTS].numpy())

    def initial_state(self) -> State | None:
        return None if self._initial is None else list_leaves(self._initial)

    def advance(self, observations: Any, state: State) -> tuple[Array, State]:
        given = {self._columns.OBS: np.ascontiguousarray(observations, np.float32)[:, None]}
        with self._torch.no_grad():
            outputs = self._module.forward_inference(self._tensors({**given, _STATE_IN: self._nest(state)}))
        after = list_leaves(outputs[self._columns.STATE_OUT])
        check_state(self, state, after)
        inputs = self._outputs(outputs)[:, 0]
        return inputs if self._discrete else self._best(inputs), after

    @property
    def _discrete(self) -> bool:
        return type(self._module.action_space).__name__ == "Discrete"

    def greedy(self, observations: Any) -> Array:
        inputs = self._inputs(observations)
        if self._discrete:
            return np.asarray(inputs.argmax(axis=1)) if inputs.ndim == 2 else inputs
        return self._best(inputs)

    def _best(self, inputs: Array) -> Array:
        """The mean of a continuous action."""
        return inputs[:, : int(np.prod(self._module.action_space.shape))]

    def values(self, observations: Any, n_actions: int | None) -> Array:
        return self._inputs(observations)

    def values_or_greedy(self, observations: Any, n_actions: int | None) -> Array:
        return self._inputs(observations)


def _d3rlpy(path: str) -> BasePolicy:
    try:
        import d3rlpy
    except ImportError as error:
        raise UsageError(f"d3rlpy:{path} needs d3rlpy: pip install d3rlpy ({error})") from error
    return Predictor(d3rlpy.load_learnable(path))


MODELS: dict[str, Callable[[str], BasePolicy]] = {
    "policy_saver": SavedPolicy,
    "d3rlpy": _d3rlpy,
    "rl_module": RLModulePolicy,
}
"""The loaders of saved models, by the prefix of their names."""
