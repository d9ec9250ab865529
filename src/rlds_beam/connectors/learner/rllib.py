"""Connectors that were written for RLlib (`ConnectorV2`), in our pipelines."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

from rlds_beam.connectors.base import Batch, check_not_batched
from rlds_beam.errors import UsageError, missing
from rlds_beam.user_functions import nothing_else, resolve

Made: TypeAlias = str | Callable[..., Any]


def _is_of_rllib(value: Any) -> bool:
    """Whether it is a connector class written for RLlib."""
    bases = value.__mro__ if isinstance(value, type) else ()
    return any(base.__name__ == "ConnectorV2" and base.__module__.startswith("ray.rllib.") for base in bases)


@dataclasses.dataclass(frozen=True)
class FromRllib:
    """Runs a connector of RLlib's, or one of your own that was written for RLlib.

        - FromRllib: {connector: my_project.pieces:ClipRewards, arguments: {limit: 1.0}}

        it is given    [SingleAgentEpisode, ...]  {"obs": {("episode_0",): [(T, D)]}, ...}
        and leaves     [SingleAgentEpisode, ...]  {"obs": {...}, "squared": {("episode_0",): [(T,)]}}
        we take back   the edited episodes        the columns obs (T, D), squared (T,)

    The connector gets the episodes of a record, each as a `SingleAgentEpisode`, and the columns so far, as in RLlib.
    Its changes to the episodes and columns are taken back, and so are the episodes that it removes from the list. The
    result equals RLlib's, and takes as long. A new connector is made for each record, so it carries nothing over from
    one record to the next.

    Attributes:
      connector: a `ConnectorV2` class, a function that makes a connector or a pipeline of them, or its `module:name`.
      arguments: for it; RLlib's own take `as_learner_connector: true`, some of them.
      kind: `learner`: it sees whole episodes. `env_to_module`: it sees each episode grow, observation by observation,
        and may replace the last one, as it does where a policy acts.
      observation_space, action_space: of gymnasium, or the `module:name` of one; by default Boxes without bounds, in
        the shape of what was recorded.
      max_seq_len, initial_state: of a recurrent module, for connectors that ask the module for them.
      rl_module: for those that call the module: a function that returns it, or its `module:name`.
    """

    connector: Made
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = "learner"
    observation_space: Any = None
    action_space: Any = None
    max_seq_len: int | None = None
    initial_state: Any = None
    rl_module: Made | None = None
    functions: ClassVar = {"connector": _is_of_rllib, "rl_module": nothing_else}

    def __post_init__(self) -> None:
        if self.kind not in ("learner", "env_to_module"):
            raise UsageError(f"FromRllib: kind={self.kind}, expected learner or env_to_module")
        if self.initial_state is not None and self.max_seq_len is None:
            raise UsageError("FromRllib: initial_state is of a recurrent module: max_seq_len has to be given, too")
        if importlib.util.find_spec("ray") is None:
            raise missing("rllib", "FromRllib needs Ray")
        for name in ("connector", "observation_space", "action_space", "rl_module"):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, resolve(value, f"FromRllib: {name}", callable_only=False))

    @property
    def __name__(self) -> str:
        return str(getattr(self.connector, "__name__", type(self).__name__))

    def __call__(self, batch: Batch) -> Batch:
        check_not_batched(self, batch)
        if batch.running:
            raise ValueError(f"{self.__name__}: FromRllib takes episodes that were recorded, not running ones")
        if not batch.episodes:
            return batch
        from rlds_beam.connectors.learner import rllib_pieces

        return rllib_pieces.learn(self, batch) if self.kind == "learner" else rllib_pieces.act(self, batch)
