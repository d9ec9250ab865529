"""The same generated episodes for our connectors and RLlib's, and the columns that each computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rlds_beam.connectors import connect
from rlds_beam.episodes.columns import flatten
from rlds_beam.episodes.episode import Episode, EpisodeKey

ACTIONS = 4
OBSERVATION = gym.spaces.Box(-100.0, 100.0, (3,), np.float32)
NESTED = gym.spaces.Dict({"a": gym.spaces.Box(-100.0, 100.0, (2,), np.float32), "z": gym.spaces.Discrete(3)})
ACTION = gym.spaces.Discrete(ACTIONS)
INITIAL_STATE = {"h": np.full(2, -1, np.float32)}
DEFAULT_MODULE = "default_policy"

QUICK = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
"""Skips shrinking of failing examples, which would take minutes."""


@dataclasses.dataclass
class Recorded:
    """An episode of T transitions, as arrays.

    Attributes:
      observations: an array with leading axis T + 1, or one for each name.
      end: terminated, truncated or unfinished.
      logp: unique for every transition of all episodes, so it identifies rows.
    """

    observations: Any
    actions: np.ndarray
    rewards: np.ndarray
    end: str
    logp: np.ndarray
    states: np.ndarray | None
    number: int = 0

    def __len__(self) -> int:
        return len(self.actions)

    def ours(self, metadata: Mapping[str, Any] | None = None) -> Episode:
        """Converts to RLDS: T + 1 steps, the last one without action and reward."""
        count = len(self) + 1
        flags = {name: np.zeros(count, bool) for name in ("is_first", "is_last", "is_terminal")}
        flags["is_first"][0], flags["is_last"][-1] = True, self.end != "unfinished"
        flags["is_terminal"][-1] = self.end == "terminated"
        steps = {
            **flatten(self.observations, "observation"),
            "action": with_void(self.actions),
            "reward": with_void(self.rewards),
            "action_logp": with_void(self.logp),
            **flags,
        }
        if self.states is not None:
            steps["state_out/h"] = with_void(self.states)
        return Episode(EpisodeKey("d/1.0.0", "train", 0, self.number), steps, dict(metadata or {}))

    def theirs(self, *, as_numpy: bool = True, stop: int | None = None, **names: Any) -> SingleAgentEpisode:
        """Converts to an RLlib episode, up to the observation `stop`."""
        stop = len(self) if stop is None else stop
        extras: dict[str, Any] = {"action_logp": list(self.logp[:stop])}
        if self.states is not None:
            extras["state_out"] = [{"h": state} for state in self.states[:stop]]
        episode = SingleAgentEpisode(
            **{"id_": f"episode{self.number}", **names},
            observation_space=NESTED if isinstance(self.observations, dict) else OBSERVATION,
            action_space=ACTION,
            observations=[self.observation(t) for t in range(stop + 1)],
            actions=list(self.actions[:stop]),
            rewards=list(self.rewards[:stop]),
            extra_model_outputs=extras,
            terminated=stop == len(self) and self.end == "terminated",
            truncated=stop == len(self) and self.end == "truncated",
            len_lookback_buffer=0,
        )
        return episode.to_numpy() if as_numpy else episode

    def observation(self, t: int) -> Any:
        if isinstance(self.observations, dict):
            return {name: values[t] for name, values in self.observations.items()}
        return self.observations[t]

    def values(self) -> np.ndarray:
        """The values that `module` predicts for the T + 1 observations."""
        return np.asarray(worth(self.observations))


def with_void(values: np.ndarray) -> np.ndarray:
    """Appends a void value, which must never be used."""
    return np.concatenate([values, np.full((1, *values.shape[1:]), 77, values.dtype)])


def recorded(
    length: int, *, nested: bool = False, end: str = "terminated", states: bool = True, number: int = 0
) -> Recorded:
    """Makes an episode of random values that depend only on `number`."""
    rng = np.random.default_rng([number, length])
    box = rng.integers(-9, 9, (length + 1, 3)).astype(np.float32)
    return Recorded(
        observations={"a": box[:, :2], "z": rng.integers(0, 3, length + 1)} if nested else box,
        actions=rng.integers(0, ACTIONS, length),
        rewards=rng.integers(-4, 5, length).astype(np.float64),
        end=end,
        logp=(1 + number * 1000 + np.arange(length)).astype(np.float32),
        states=rng.standard_normal((length, 2)).astype(np.float32) if states else None,
        number=number,
    )


@st.composite
def recordings(draw: Any, most: int = 4, nested: bool | None = None) -> list[Recorded]:
    """Draws several episodes of one kind."""
    nested = draw(st.booleans()) if nested is None else nested
    states = draw(st.booleans())
    ends = st.sampled_from(("terminated", "truncated", "unfinished"))
    lengths = draw(st.lists(st.tuples(st.integers(1, 11), ends), min_size=1, max_size=most))
    return [recorded(n, nested=nested, end=end, states=states, number=i) for i, (n, end) in enumerate(lengths)]


class Stateless(TorchRLModule, ValueFunctionAPI):
    """A module that only predicts values."""

    def setup(self) -> None: ...

    def compute_values(self, batch: dict, embeddings: Any = None) -> torch.Tensor:
        return worth(batch["obs"])

    def _forward(self, batch: dict, **kwargs: Any) -> dict:
        return {}


class Recurrent(Stateless):
    """A module with state."""

    def get_initial_state(self) -> dict:
        return INITIAL_STATE


def worth(observations: Any) -> Any:
    """Computes a value for each observation; takes arrays or tensors."""
    if isinstance(observations, dict):
        return observations["a"].sum(-1) * 0.5 + observations["z"]
    return observations.sum(-1) * 0.5


def module(kinds: Mapping[str, type] | type, max_seq_len: int = 20) -> Any:
    """Makes an RLlib MultiRLModule of these modules."""
    kinds = {DEFAULT_MODULE: kinds} if isinstance(kinds, type) else kinds
    specs = {
        name: RLModuleSpec(
            module_class=kind,
            observation_space=OBSERVATION,
            action_space=ACTION,
            model_config={"max_seq_len": max_seq_len},
        )
        for name, kind in kinds.items()
    }
    return MultiRLModuleSpec(rl_module_specs=specs).build()


def their_batch(pieces: Sequence[Any], episodes: Sequence[Any], rl_module: Any) -> dict[str, dict[str, np.ndarray]]:
    """Runs RLlib's connectors; returns module -> column -> array."""
    batch: dict = {}
    shared: dict = {}
    for piece in pieces:
        batch = piece(rl_module=rl_module, batch=batch, episodes=list(episodes), shared_data=shared, explore=False)
    return {name: {k: v for c in columns for k, v in leaves(c, columns[c])} for name, columns in batch.items()}


def leaves(name: str, values: Any) -> list[tuple[str, np.ndarray]]:
    return [(path, np.asarray(leaf)) for path, leaf in flatten(values, name).items()]


def our_batch(pieces: Sequence[Any], episodes: Sequence[Episode]) -> dict[str, dict[str, np.ndarray]]:
    """Runs our connectors; returns module -> column -> array."""
    modules = connect(pieces, episodes).modules or {}
    return {name: {k: np.asarray(v) for k, v in columns.items()} for name, columns in modules.items()}


def assert_equal(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], *, dtypes: bool = True) -> None:
    """Asserts equal columns, values, shapes and (except for `seq_lens`) dtypes."""
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        assert ours[name].shape == values.shape, name
        assert not dtypes or name == "seq_lens" or ours[name].dtype == values.dtype, name
        np.testing.assert_array_equal(ours[name], values, err_msg=name)


def sorted_rows(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Sorts rows by their first `action_logp`, for outputs without a defined order."""
    logp = columns["action_logp"]
    order = np.argsort(logp if logp.ndim == 1 else logp[:, 0])
    return {name: values[order] for name, values in columns.items()}
