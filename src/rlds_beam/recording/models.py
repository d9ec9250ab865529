"""Saved models as base policies: TF-Agents' `PolicySaver` directories, d3rlpy's files, RLlib's checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.errors import UsageError, needs
from rlds_beam.output.checksums import Checksum
from rlds_beam.recording.bases import BasePolicy, Predictor

Array: TypeAlias = "np.ndarray[Any, Any]"


def is_model(name: str) -> bool:
    """Whether a name is that of a saved model: `policy_saver:DIRECTORY`, and so on."""
    return name.partition(":")[0] in MODELS


def load_model(name: str) -> BasePolicy:
    """The saved model of a name, such as `d3rlpy:model.d3`.

    Raises:
      UsageError: there is none, or it cannot be loaded.
      MissingExtraError: the package that wrote it is not installed.
    """
    kind, _, path = name.partition(":")
    if not os.path.exists(path):
        raise UsageError(f"--policy: {name}: there is no {path}")
    return MODELS[kind](path)


def fingerprint(name: str) -> str:
    """Of the files of a saved model."""
    path = name.partition(":")[2]
    checksum = Checksum()
    files = [path] if os.path.isfile(path) else [os.path.join(d, f) for d, _, names in os.walk(path) for f in names]
    for file in sorted(files):
        checksum.update(os.path.relpath(file, path).encode())
        with open(file, "rb") as content:
            checksum.update(content.read())
    return str(checksum)


class SavedPolicy(BasePolicy):
    """A policy that TF-Agents' `PolicySaver` wrote: the action that it gives is the greedy one."""

    def __init__(self, directory: str):
        with needs("agents", "a saved policy needs TensorFlow"):
            import tensorflow as tf
        self._tf, self._directory = tf, directory
        self._policy = tf.saved_model.load(directory)
        self._signature = self._policy.signatures["action"]
        self._names = sorted(self._signature.structured_input_signature[1])

    def __repr__(self) -> str:
        return self._directory

    def greedy(self, observations: Any) -> Array:
        tf = self._tf
        inputs = self._signature.structured_input_signature[1]
        rows = len(next(iter(_leaves(observations).values())))
        given = {}
        for name in self._names:
            spec = inputs[name]
            if name.endswith("step_type"):
                value = np.ones(rows, np.int32)  # neither first nor last
            elif name.endswith("reward"):
                value = np.zeros(rows, np.float32)
            elif name.endswith("discount"):
                value = np.ones(rows, np.float32)
            else:
                value = self._observation(name, observations)
            given[name] = tf.constant(value, spec.dtype)
        action: Array = self._signature(**given)["action"].numpy()
        return action

    def _observation(self, name: str, observations: Any) -> Any:
        leaves = _leaves(observations)
        path = name.partition("observation")[2].strip("/")
        if path not in leaves:
            raise UsageError(f"{self}: it wants {name}, and the observation has {', '.join(leaves) or 'one array'}")
        return leaves[path]


def _leaves(observations: Any) -> dict[str, Array]:
    """The arrays of nested observations by path; one alone has the path ``."""
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
    """A checkpoint of an RLModule of RLlib's: its logits are the values of discrete actions, its mean the action."""

    def __init__(self, path: str):
        with needs("rllib", "an RLModule needs RLlib"):
            import torch
            from ray.rllib.core.columns import Columns
            from ray.rllib.core.rl_module.rl_module import RLModule
        module = RLModule.from_checkpoint(path)
        self._module, self._torch, self._columns, self._path = module, torch, Columns, path
        if module.is_stateful():
            raise UsageError(
                f"{path}: the RLModule has a state, and a base policy is a function of the observation alone"
            )

    def __repr__(self) -> str:
        return self._path

    def explore(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """What the module gives for columns, to explore."""
        with self._torch.no_grad():
            given = {name: self._torch.from_numpy(np.ascontiguousarray(value)) for name, value in columns.items()}
            return dict(self._module.forward_exploration(given))

    def _inputs(self, observations: Any) -> Array:
        with self._torch.no_grad():
            given = self._torch.from_numpy(np.ascontiguousarray(observations, np.float32))
            outputs = self._module.forward_inference({self._columns.OBS: given})
        if self._columns.ACTION_DIST_INPUTS not in outputs:
            if self._columns.ACTIONS in outputs:
                return np.asarray(outputs[self._columns.ACTIONS].numpy())
            raise UsageError(f"{self}: the RLModule gave neither action_dist_inputs nor actions")
        return np.asarray(outputs[self._columns.ACTION_DIST_INPUTS].numpy())

    def greedy(self, observations: Any) -> Array:
        found = self._inputs(observations)
        space = self._module.action_space
        if type(space).__name__ == "Discrete":
            return np.asarray(found.argmax(axis=1)) if found.ndim == 2 else found
        return found[:, : int(np.prod(space.shape))]

    def values(self, observations: Any, n_actions: int | None) -> Array:
        return self._inputs(observations)

    def values_or_greedy(self, observations: Any, n_actions: int | None) -> Array:
        return self._inputs(observations)


def load_module(name: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """A saved model as a function of columns, which gives `action_dist_inputs`.

    Raises:
      UsageError: it is no RLModule, or cannot be loaded.
    """
    found = load_model(name)
    if not isinstance(found, RLModulePolicy):
        raise UsageError(f"--policy: {name}: a ModulePolicy is of a function or of rl_module:DIRECTORY")
    return found.explore


def _d3rlpy(path: str) -> BasePolicy:
    try:
        import d3rlpy
    except ImportError as error:
        raise UsageError(f"d3rlpy:{path} needs d3rlpy: pip install d3rlpy ({error})") from error
    return Predictor(d3rlpy.load_learnable(path))


MODELS: dict[str, Callable[[str], BasePolicy]] = {
    "policy_saver": SavedPolicy, "d3rlpy": _d3rlpy, "rl_module": RLModulePolicy,
}  # fmt: skip
"""What loads a saved model, by what comes before its path."""
