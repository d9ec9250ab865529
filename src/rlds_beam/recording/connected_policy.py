"""A model between RLlib's env-to-module and module-to-env connector pipelines, as a behavior policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.connectors.base import Batch, Connector, run
from rlds_beam.connectors.configuration import Configuration, flat, load
from rlds_beam.connectors.learner.actions import GetActions, NormalizeAndClipActions, as_numpy
from rlds_beam.connectors.learner.agents import env_to_module_pipeline, module_to_env_pipeline
from rlds_beam.episodes.columns import flatten
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.recording.bases import State, check_state, replay, stack_states, take_rows
from rlds_beam.recording.episode_buffer import cast_recorded
from rlds_beam.recording.models import RLModulePolicy, is_model, load_model
from rlds_beam.recording.policies import Acted, HistoryPolicy, Propensity
from rlds_beam.recording.spaces import Structure
from rlds_beam.typing import Array
from rlds_beam.user_functions import resolve

Model: TypeAlias = "Callable[[Mapping[str, Any]], Mapping[str, Any]]"

_MODULE = "default_policy"
_STATE_IN, _STATE_OUT = "state_in", "state_out"


@dataclasses.dataclass
class ModulePolicy(HistoryPolicy):
    """A model that returns the parameters of a distribution, between two connector pipelines.

        running episodes -> env_to_module -> model: {"obs": (N, ...)} -> {"action_dist_inputs": (N, K)} -> module_to_env

    The stored action is `actions`; the environment receives `actions_for_env` if the pipeline returns it.

    A model with a state has `get_initial_state()`, which returns an array, or a dict of arrays by name. It also takes
    `state_in` (or `state_in/NAME`) and returns `state_out` (or `state_out/NAME`), as in `AddModelOutputs`, without a
    time axis. The state is carried from step to step, and reset with each episode.

    Attributes:
      base_policy: the model: a function of columns by name that returns `action_dist_inputs`, or its name; or
        `rl_module:DIRECTORY`, an RLModule, whose `forward_exploration` is called.
      name: the name of the policy.
      env_to_module: connectors, or the name of a file or list of connectors (`--connectors`); by default only the
        observations.
      module_to_env: the same; by default samples actions and clips them for the environment.
    """

    base_policy: Any
    name: str = ""
    env_to_module: Any = None
    module_to_env: Any = None

    def __post_init__(self) -> None:
        self.name = self.name or type(self).__name__
        self._model: Model | None = None
        self._action: Structure | None = None
        self._start: dict[str, Array] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_model": None}

    def bind(self, observation: Structure, action: Structure) -> None:
        self._action = action
        to_env = self._to_env()
        if not any(isinstance(connector, GetActions) for connector in to_env):
            raise UsageError(f"{self.name}: module_to_env needs GetActions, without which the propensities are unknown")
        if any(leaf.kind == "discrete" and leaf.start for leaf in action.leaves):
            raise UsageError(f"{self.name}: the environment's actions must start at 0, as those of models do")

    def initial_state(self) -> State | None:
        named = self._initial()
        return tuple(named[name] for name in sorted(named)) if named else None

    def _initial(self) -> dict[str, Array]:
        if self._start is None:
            start = getattr(self._loaded, "get_initial_state", None)
            nested = start() if callable(start) else {}
            self._start = {name: as_numpy(value) for name, value in flatten(nested, _STATE_IN).items()}
        return self._start

    def act(self, episodes: Sequence[Episode], state: State | None = None) -> Acted:
        assert self._action is not None, "bind comes first"
        batch = run(self._to_module(), Batch(tuple(episodes), running=True))
        if batch.modules is None:
            raise UsageError(f"{self.name}: env_to_module must end with BatchIndividualItems")
        outputs = {}
        for module, columns in batch.modules.items():
            outputs[module], state = self._outputs(columns, state)
        vector = run(self._to_env(), batch.replace(modules=outputs)).vector or {}
        if "actions" not in vector or "action_logp" not in vector:
            raise UsageError(
                f"{self.name}: module_to_env returned {', '.join(vector) or 'nothing'}, expected actions and "
                "action_logp: it must contain GetActions, which explores, and end with ListifyDataForVectorEnv"
            )
        leaves = self._action.leaves
        stored, for_env = (
            tuple(
                cast_recorded(np.asarray(v), np.dtype(leaf.dtype), f"{self.name}: an action")
                for leaf, v in zip(leaves, self._action.flatten(of), strict=True)
            )
            for of in (vector["actions"], vector.get("actions_for_env", vector["actions"]))
        )
        logs = np.asarray(vector["action_logp"], np.float64)
        return Acted(stored, Propensity(np.exp(logs), logs), for_env, state)

    def propensity(self, episodes: Sequence[Episode]) -> Propensity:
        get = next(connector for connector in self._to_env() if isinstance(connector, GetActions))
        batch = run(self._to_module(), Batch(tuple(episodes)))
        assert batch.modules is not None
        inputs = self._inputs(batch.modules[_MODULE], np.array([len(episode) - 1 for episode in episodes]))
        actions = np.concatenate([episode.steps["action"][:-1] for episode in episodes])
        logs = get.log_probability(inputs, actions).astype(np.float64)
        return Propensity(np.exp(logs), logs)

    def _inputs(self, columns: Mapping[str, Any], lengths: Array) -> Array:
        """The distribution parameters of all actions of concatenated episodes."""
        initial = self.initial_state()
        if initial is None:
            return as_numpy(self._outputs(columns, None)[0]["action_dist_inputs"])

        def step(rows: Array, before: State) -> tuple[Array, State]:
            outputs, after = self._outputs({name: take_rows(value, rows) for name, value in columns.items()}, before)
            assert after is not None
            return as_numpy(outputs["action_dist_inputs"]), after

        return replay(step, lengths, stack_states([initial] * len(lengths)))

    @property
    def _loaded(self) -> Model:
        if self._model is None:
            self._model = _model(self.base_policy)
        return self._model

    def _outputs(self, columns: Mapping[str, Any], state: State | None) -> tuple[Mapping[str, Any], State | None]:
        """The model's outputs for columns, and the next state."""
        names = sorted(self._initial()) if state is not None else []
        if any(name.partition("/")[0] == _STATE_IN for name in columns):
            raise UsageError(f"{self.name}: env_to_module must not add states: the policy carries them itself")
        outputs = self._loaded({**columns, **dict(zip(names, state or (), strict=True))})
        if not isinstance(outputs, Mapping):
            raise UsageError(f"{self.name}: the model returned a {type(outputs).__name__}, expected a dict of columns")
        others = {name: value for name, value in outputs.items() if name.partition("/")[0] != _STATE_OUT}
        if "action_dist_inputs" not in outputs or (state is None and len(others) < len(outputs)):
            raise UsageError(
                f"{self.name}: the model returned {', '.join(outputs)}, expected action_dist_inputs, and state_out "
                "only if it has get_initial_state"
            )
        if state is None:
            return outputs, None
        missing = [name for name in map(_out, names) if name not in outputs]
        if missing:
            raise UsageError(
                f"{self.name}: the model returned {', '.join(outputs)}, but not its next state, {missing[0]}"
            )
        after = tuple(as_numpy(outputs[_out(name)]) for name in names)
        check_state(self.name, state, after)
        return others, after

    def _to_module(self) -> Sequence[Connector]:
        return _connectors(self.env_to_module) if self.env_to_module is not None else env_to_module_pipeline()

    def _to_env(self) -> Sequence[Connector]:
        if self.module_to_env is not None:
            return _connectors(self.module_to_env)
        assert self._action is not None, "bind comes first"
        return module_to_env_pipeline(*_default_actions(self._action, self.name))


def _out(name: str) -> str:
    return name.replace(_STATE_IN, _STATE_OUT, 1)


def _default_actions(action: Structure, name: str) -> tuple[GetActions, NormalizeAndClipActions | None]:
    """RLlib's default connectors for this kind of action, from a model's outputs to actions."""
    leaf = action.alone
    if leaf is None or leaf.kind == "text":
        raise UsageError(f"{name}: the environment takes several actions: define them with module_to_env")
    if leaf.kind == "discrete":
        return GetActions("categorical"), None
    if leaf.kind == "multi_discrete":
        return GetActions("multi_categorical", sizes=tuple(map(int, np.ravel(leaf.sizes)))), None
    bounds = NormalizeAndClipActions(leaf.low, leaf.high, normalize_actions=False, clip_actions=True)
    return GetActions("diagonal_gaussian"), bounds


def _connectors(named: Any) -> tuple[Connector, ...]:
    if isinstance(named, Configuration):
        return named.connectors
    return load(named).connectors if isinstance(named, str) else flat(named)


def _model(base: Any) -> Model:
    if isinstance(base, str) and is_model(base):
        model = load_model(base)
        if not isinstance(model, RLModulePolicy):
            raise UsageError(f"--policy: {base}: a ModulePolicy needs a function, or rl_module:DIRECTORY")
        return model
    if isinstance(base, str):
        base = resolve(base, "--policy")
    if isinstance(base, type):
        base = base()
    return base  # type: ignore[no-any-return]
