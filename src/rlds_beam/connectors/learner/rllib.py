"""Runs RLlib connectors (`ConnectorV2`) in our pipelines."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from rlds_beam.connectors.base import Batch, check_order
from rlds_beam.connectors.fields import check_choices
from rlds_beam.episodes.columns import with_final_observation
from rlds_beam.errors import UsageError, missing_extra
from rlds_beam.user_functions import resolve

if TYPE_CHECKING:
    from rlds_beam.connectors.learner.rllib_episodes import RllibEpisode

Made: TypeAlias = str | Callable[..., Any]


def _is_of_rllib(value: Any) -> bool:
    """Whether a value is an RLlib connector class."""
    bases = value.__mro__ if isinstance(value, type) else ()
    return any(base.__name__ == "ConnectorV2" and base.__module__.startswith("ray.rllib.") for base in bases)


@dataclasses.dataclass(frozen=True)
class FromRllib:
    """Runs an RLlib connector: one of RLlib's, or your own.

        - FromRllib: {connector: my_project.pieces:ClipRewards, arguments: {limit: 1.0}}

        input     [SingleAgentEpisode, ...]    {"obs": {("episode_0",): [(T, D)]}, ...}
        output    [SingleAgentEpisode, ...]    {"obs": {...}, "squared": {("episode_0",): [(T,)]}}
        result    the edited episodes          the columns obs (T, D), squared (T,)

    The connector gets the episodes of a record, each as a `SingleAgentEpisode`, and the columns so far, as in RLlib.
    Its changes to episodes and columns are kept, and episodes that it removes from the list are dropped. The results,
    and the running time, are RLlib's. Each record gets a new connector object, so no state carries over.

    Attributes:
      connector: a `ConnectorV2` class, a function that returns a connector or a pipeline, or its `module:name`.
      arguments: its arguments; some of RLlib's connectors need `as_learner_connector: true`.
      kind: `learner` runs it on whole episodes. `env_to_module` runs it after each observation, and it may replace
        that observation, as when a policy acts.
      observation_space, action_space: gymnasium spaces, or their `module:name`; by default unbounded Boxes in the
        recorded shapes.
      max_seq_len, initial_state: the settings of a recurrent module, for connectors that ask the module for them.
      rl_module: a function that returns the RLModule, or its `module:name`, for connectors that call it.
    """

    connector: Made
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = "learner"
    observation_space: Any = None
    action_space: Any = None
    max_seq_len: int | None = None
    initial_state: Any = None
    rl_module: Made | None = None
    functions: ClassVar = {"connector": _is_of_rllib, "rl_module": None}

    def __post_init__(self) -> None:
        check_choices(self, kind=("learner", "env_to_module"))
        if self.initial_state is not None and self.max_seq_len is None:
            raise UsageError("FromRllib: initial_state needs max_seq_len")
        if importlib.util.find_spec("ray") is None:
            raise missing_extra("rllib", "FromRllib needs Ray")
        for name in ("connector", "observation_space", "action_space", "rl_module"):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, resolve(value, f"FromRllib: {name}", callable_only=False))

    @property
    def __name__(self) -> str:
        return str(getattr(self.connector, "__name__", type(self).__name__))

    def __call__(self, batch: Batch) -> Batch:
        check_order(self, batch)
        if batch.running:
            raise ValueError(f"{self.__name__}: FromRllib needs recorded episodes, not running ones")
        if not batch.episodes:
            return batch
        batch = batch.replace(episodes=tuple(map(with_final_observation, batch.episodes)))
        from rlds_beam.connectors.learner.rllib_episodes import RllibEpisode, act, learn

        spaces = {"observation_space": self.observation_space, "action_space": self.action_space}
        recordings = [  # RLlib does not change a name that contains `_`
            RllibEpisode(episode, batch.fields, f"episode_{i}", whole=self.kind == "learner", **spaces)
            for i, episode in enumerate(batch.episodes)
        ]
        if self.kind == "learner":
            return learn(batch, recordings, self._piece(recordings[0]), self._module())
        return act(batch, ((recording, self._piece(recording), self._module()) for recording in recordings))

    def _piece(self, recording: RllibEpisode) -> Any:
        """A new connector, with the spaces of an episode if it has none."""
        piece: Any = self.connector(**self.arguments)  # type: ignore[operator]
        for name in ("action_space", "observation_space"):  # the one set last is computed from the other
            if getattr(piece, f"input_{name}", True) is None:
                setattr(piece, f"input_{name}", getattr(recording.theirs, name))
        return piece

    def _module(self) -> Any:
        from rlds_beam.connectors.learner.rllib_episodes import Module

        return Module(self.max_seq_len, self.initial_state) if self.rl_module is None else self.rl_module()  # type: ignore[operator]
