"""Passes model outputs for running episodes on to the environments (RLlib's module-to-env connectors).

Batch.modules    {"p0": {"actions": (2, 3)}, "p1": {"actions": (1, 3)}}         model outputs
Batch.columns    ({"actions": (1, 3)}, {...}, {...})                            one row per running episode
Batch.vector     {"actions": (3, 3)}, or [{"left": ..., "right": ...}, ...]     inputs of the environments
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds_beam.connectors.base import Batch, Columns, Connector, name_of
from rlds_beam.connectors.fields import agent_of, module_of
from rlds_beam.episodes.columns import below, concatenate, nest
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.typing import Array


class TensorToNumpy:
    """Converts model outputs, tensors of torch, TensorFlow, or JAX on any device, to numpy arrays.

    {"actions": tensor (2, 3)}   ->   {"actions": array (2, 3)}       the same dtype
    """

    def __call__(self, batch: Batch) -> Batch:
        return map_columns(self, batch, lambda columns: {name: as_numpy(column) for name, column in columns.items()})


class UnBatchToIndividualItems:
    """Gives each running episode its row of its module's outputs: the inverse of `BatchIndividualItems`.

    modules   {"p0": {"actions": [a0 a1]}, "p1": {"actions": [a2]}}     episodes of p0, p1, p0
    columns   ({"actions": [a0]}, {"actions": [a2]}, {"actions": [a1]})
    """

    def __call__(self, batch: Batch) -> Batch:
        modules = outputs_of(self, batch)
        for module, outputs in modules.items():
            rows, count = _rows(module, outputs), len(episodes_of(batch, module))
            if rows != count:
                raise UsageError(f"UnBatchToIndividualItems: {rows} rows for {module}, which has {count} episodes")
        taken: dict[str, int] = {}
        columns: list[Columns] = []
        for module in map(module_of, batch.episodes):
            if module not in modules:
                raise UsageError(f"UnBatchToIndividualItems: no outputs for {module}, only for {', '.join(modules)}")
            row = taken[module] = taken.get(module, -1) + 1
            columns.append({name: column[row : row + 1] for name, column in modules[module].items()})
        return batch.replace(columns=tuple(columns), modules=None)


class ModuleToAgentUnmapping:
    """Removes the module that `AgentToModuleMapping` assigned, so that later connectors group episodes by agent.

    metadata   {"agent_id": "left", "module_id": "p0"}   ->   {"agent_id": "left"}
    """

    def __call__(self, batch: Batch) -> Batch:
        if batch.modules is not None:
            raise ValueError("ModuleToAgentUnmapping must come after UnBatchToIndividualItems")
        return batch.replace(
            episodes=tuple(
                episode.replace(metadata={k: v for k, v in episode.metadata.items() if k != "module_id"})
                for episode in batch.episodes
            )
        )


class RemoveSingleTsTimeRankFromBatch:
    """Removes the time axis that `AddTimeDimToBatchAndZeroPad` added to the rows of running episodes.

    actions (1, 1, 3)   ->   actions (1, 3)        state_out (1, 8) has no time axis and is unchanged
    """

    def __call__(self, batch: Batch) -> Batch:
        if batch.modules is not None:
            raise ValueError("RemoveSingleTsTimeRankFromBatch must come after UnBatchToIndividualItems")
        if batch.time is None:
            return batch
        pairs = zip(batch.columns, batch.starts, strict=True)
        columns = tuple(columns if start is None else self._without(columns) for columns, start in pairs)
        return batch.replace(columns=columns, time=None, starts=())

    def _without(self, columns: Columns) -> Columns:
        return {n: c if below(n, "state_out") else self._squeeze(n, as_numpy(c)) for n, c in columns.items()}

    def _squeeze(self, name: str, column: Array) -> Array:
        if column.ndim < 2 or column.shape[1] != 1:
            raise UsageError(f"RemoveSingleTsTimeRankFromBatch: {name} {column.shape} has no time axis of length 1")
        return column[:, 0]


class ListifyDataForVectorEnv:
    """Sets `Batch.vector`: the inputs of the environments, in the order of episodes, nested like the action.

        one agent        {"actions": (3, A), "actions_for_env": {"arm": (3, 6), "hand": (3,)}}
        several agents   {"actions": [{"left": (A,), "right": (A,)}, ...]}    one dict per environment

    The agents' episodes of one environment have the same key.
    """

    def __call__(self, batch: Batch) -> Batch:
        if batch.modules is not None:
            raise ValueError("ListifyDataForVectorEnv must come after UnBatchToIndividualItems")
        if not any(map(agent_of, batch.episodes)):
            names = batch.columns[0] if batch.columns else {}
            whole = {name: concatenate([columns[name] for columns in batch.columns]) for name in names}
            return batch.replace(vector=nest(whole))
        environments: dict[Any, int] = {}
        vector: dict[str, list[dict[str, Any]]] = {}
        for episode in batch.episodes:
            environments.setdefault(episode.key, len(environments))
        for episode, columns in zip(batch.episodes, batch.columns, strict=True):
            for name, item in nest({name: column[0] for name, column in columns.items()}).items():
                of = vector.setdefault(name, [{} for _ in environments])
                of[environments[episode.key]][agent_of(episode)] = item
        return batch.replace(vector=vector)


def map_columns(connector: Connector, batch: Batch, change: Callable[[Columns], Columns]) -> Batch:
    """Applies `change` to the columns, whether they are per module or per episode."""
    if batch.modules is not None:
        return batch.replace(modules={module: change(columns) for module, columns in batch.modules.items()})
    if not batch.running:
        raise ValueError(f"{name_of(connector)} needs model outputs for running episodes")
    return batch.replace(columns=tuple(map(change, batch.columns)))


def outputs_of(connector: Connector, batch: Batch) -> Mapping[str, Columns]:
    """The model outputs; raises ValueError if there are none."""
    if batch.modules is None or not batch.running:
        raise ValueError(
            f"{name_of(connector)} needs model outputs for running episodes: batch.replace(modules={{module: outputs}})"
        )
    return batch.modules


def episodes_of(batch: Batch, module: str) -> list[Episode]:
    """The episodes of a module's rows, in order."""
    return [episode for episode in batch.episodes if module_of(episode) == module]


def as_numpy(value: Any) -> Array:
    """Converts a tensor to an array."""
    if hasattr(value, "detach"):  # torch
        value = value.detach().cpu()
    return np.asarray(value)


def _rows(module: str, outputs: Columns) -> int:
    """The number of rows, which must be the same for all outputs."""
    lengths = {name: len(column) for name, column in outputs.items()}
    if len(set(lengths.values())) > 1:
        raise UsageError(f"the outputs of {module} have different lengths: {lengths}")
    return max(lengths.values(), default=0)
