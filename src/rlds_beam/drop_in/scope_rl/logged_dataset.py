"""Logged datasets in SCOPE-RL's format, read on demand from recorded RLDS."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds_beam.datasets.dataset import Dataset
from rlds_beam.datasets.opening import open_dataset
from rlds_beam.errors import UsageError
from rlds_beam.output.commits import read_manifest
from rlds_beam.output.plans import read_plan
from rlds_beam.recording.rollout import INFO, PROPENSITY
from rlds_beam.typing import Array

ARRAYS = ("state", "action", "reward", "done", "terminal", "info", "pscore")
KEYS = (
    "size",
    "n_trajectories",
    "step_per_trajectory",
    "action_type",
    "n_actions",
    "action_dim",
    "action_meaning",
    "action_keys",
    "state_dim",
    "state_keys",
    *ARRAYS,
    "behavior_policy",
    "dataset_id",
)
"""The keys in SCOPE-RL's order."""


class LoggedDataset(Mapping[str, Any]):
    """The recording of one policy, as SCOPE-RL's dict: `logged_dataset["state"]`.

    The records are read when an array is first used. Rows are steps, trajectory by trajectory.

        size, n_trajectories, step_per_trajectory     numbers of steps and trajectories; see below
        action_type                                   "discrete" or "continuous"
        n_actions; action_dim                         for discrete; for continuous actions; else None
        action_meaning, action_keys, state_keys       as given to SyntheticDataset
        state_dim                                     the dimension of a state
        state        float64 (size, state_dim)
        action       int64 (size,), or float64 (size, action_dim)
        reward       float64 (size,)
        done         float64 (size,)     1 at the end of an episode
        terminal     float64 (size,)     1 if an episode reaches its maximum length
        info         by key: int64 or float64 (size,), or a list
        pscore       float64 (size,)     of the stored action; None for OnlineHead
        behavior_policy, dataset_id

    SCOPE-RL assumes that every trajectory has `step_per_trajectory` steps. Here trajectories may be shorter, so `size`
    is the sum of the `lengths`; `padded()` pads them to equal length (see `mask_padding`).

    Attributes:
      path: the path of the RLDS dataset.
    """

    def __init__(self, path: str, described: Mapping[str, Any], policy: int, dataset: int, owner: Any = None):
        self.path = path
        self._described, self._policy, self._dataset = described, policy, dataset
        self._owner = owner  # keeps a temporary directory alive
        self._plan = _plan(path).digest

    def __iter__(self) -> Iterator[str]:
        return iter(KEYS)

    def __len__(self) -> int:
        return len(KEYS)

    def __repr__(self) -> str:
        sizes = f"{self['n_trajectories']} trajectories, {self['size']} steps"
        return f"<LoggedDataset: {sizes} of {self['behavior_policy']}, dataset {self['dataset_id']}; {self.path}>"

    def __getitem__(self, key: str) -> Any:
        if key in ARRAYS:
            return self._array(key)
        if key == "size":
            return int(self.lengths.sum())
        if key == "dataset_id":
            return self._dataset
        return self._described[key]

    def _array(self, key: str) -> Any:
        arrays = self.__dict__.setdefault("_arrays", {})
        if key not in arrays:
            arrays[key] = getattr(self, f"_{key}")()
        return arrays[key]

    @functools.cached_property
    def lengths(self) -> Array:
        """The number of steps of each trajectory, int64 (n_trajectories,)."""
        trajectories = self._read("episode_metadata/trajectory_id")
        first = np.flatnonzero(np.diff(trajectories, prepend=-1))
        return np.add.reduceat(self._lengths, first) if len(first) else np.zeros(0, np.int64)

    @property
    def terminated(self) -> Array:
        """Whether each step led to a terminal state, bool (size,)."""
        return self._at_ends(self._find_ended("terminated"))

    @property
    def truncated(self) -> Array:
        """Whether the episode was cut off after each step, by a time limit or the recording; bool (size,)."""
        return self._at_ends(~self._find_ended("terminated"))

    @property
    def final_state(self) -> Array:
        """The observation after the last step of each recorded episode, float64 (episodes, ...)."""
        return np.asarray([values[-1] for values in self._read("steps/observation")], np.float64)

    def padded(self) -> dict[str, Any]:
        """Returns a dict with each trajectory padded to `step_per_trajectory` steps, as SCOPE-RL needs.

        A padded step repeats the last state and action, with reward 0, pscore 1, and done 1. `mask`, float64 (size,),
        is 1 for recorded steps. SCOPE-RL's estimators treat padding as data: call `mask_padding` first.
        """
        steps = self["step_per_trajectory"]
        place = np.arange(steps)
        last = (np.cumsum(self.lengths) - 1)[:, None]
        rows = np.minimum(last - self.lengths[:, None] + 1 + place, last).reshape(-1)
        mask = (place < self.lengths[:, None]).reshape(-1)
        void = {"reward": 0.0, "pscore": 1.0, "done": 1.0, "terminal": 0.0}
        content = dict(self)
        for key in ARRAYS:
            if key == "info":
                content[key] = {
                    k: values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]
                    for k, values in self[key].items()
                }
            elif self[key] is not None:
                content[key] = self[key][rows]
                if key in void:
                    content[key] = np.where(mask, content[key], void[key])
        return {**content, "size": len(rows), "mask": mask.astype(np.float64)}

    # Reading.

    @functools.cached_property
    def _lengths(self) -> Array:
        """The number of steps with an action in each recorded episode."""
        return np.array([len(values) - 1 for values in self._read("steps/reward")], np.int64)

    @functools.cached_property
    def _policy_rows(self) -> tuple[Dataset, Array]:
        """The dataset, and the rows that belong to this policy."""
        if _plan(self.path).digest != self._plan:
            raise UsageError(f"{self.path} has been replaced by another recording: use a different path for each")
        shards = read_manifest(self.path)["shards"]
        split = list(dict.fromkeys(shard["split"] for shard in shards))[self._dataset]
        records = [shard["records"] for shard in shards if shard["split"] == split]
        each = len(records) // len(_plan(self.path).content["record"]["policies"])  # a policy's files are consecutive
        start, stop = (sum(records[: each * policy]) for policy in (self._policy, self._policy + 1))
        return open_dataset(self.path, split), np.arange(start, stop)

    @functools.cached_property
    def _columns(self) -> dict[str, Array]:
        """All columns, read in one pass over the records."""
        dataset, rows = self._policy_rows
        wanted = ("steps/observation", "steps/action", "steps/reward", f"steps/{PROPENSITY}", f"steps/{INFO}/")
        paths = [p for p in dataset.fields if p.startswith((*wanted, "episode_metadata/"))]
        return dataset.select(rows, paths)

    def _read(self, path: str) -> Array:
        return self._columns[path]

    def _steps(self, path: str) -> Array:
        """A step field of all steps with an action."""
        return np.concatenate([values[:-1] for values in self._read(f"steps/{path}")])

    def _find_ended(self, *how: str) -> Array:
        """Which recorded episodes ended in one of these ways."""
        return np.isin(self._read("episode_metadata/end").astype("U"), how)

    def _at_ends(self, which: Array) -> Array:
        """The last steps of these episodes, bool (size,)."""
        marks = np.zeros(int(self._lengths.sum()), bool)
        marks[np.cumsum(self._lengths) - 1] = which
        return marks

    def _state(self) -> Array:
        return self._steps("observation").astype(np.float64)

    def _action(self) -> Array:
        return self._steps("action").astype(np.int64 if self["action_type"] == "discrete" else np.float64)

    def _reward(self) -> Array:
        return self._steps("reward").astype(np.float64)

    def _done(self) -> Array:
        windows = self._described["windows"]
        ended = self._find_ended("terminated", "truncated") if windows else np.ones(len(self._lengths), bool)
        return self._at_ends(ended).astype(np.float64)

    def _terminal(self) -> Array:
        """1 if an episode reaches its maximum length: the environment's for windows, otherwise the trajectory's."""
        if self._described["windows"]:
            ages, most = self._read("episode_metadata/start_step") + self._lengths, self._described["max_episode_steps"]
        else:
            ages, most = self._lengths, self["step_per_trajectory"]
        return self._at_ends(ages == most).astype(np.float64)

    def _pscore(self) -> Array | None:
        dataset, _ = self._policy_rows
        return self._steps(PROPENSITY) if f"steps/{PROPENSITY}" in dataset.fields else None

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for key, kind in self._described["info_keys"].items():
            values = self._steps(f"{INFO}/{key}")
            if kind in (int, float):
                info[key] = values.astype(kind)
            else:
                info[key] = [v.decode() if isinstance(v, bytes) else v for v in values.tolist()]
        return info


def _plan(path: str) -> Any:
    plan = read_plan(path)
    if plan is None:
        raise UsageError(f"{path} is not a recording of rlds-beam")
    return plan


class MultipleLoggedDataset:
    """Logged datasets of several policies, or several of each: `logged_datasets.get(policy.name, 0)`.

    Attributes:
      action_type: "discrete" or "continuous".
      path: the path of the RLDS dataset that holds all of them; each dataset id is a split, and each policy has its
        own files.
    """

    def __init__(self, path: str, described: Sequence[Mapping[str, Any]], datasets: int, owner: Any = None):
        self.path, self._described, self._datasets, self._owner = Path(path), described, datasets, owner
        self.action_type = described[0]["action_type"]

    @property
    def behavior_policy_names(self) -> list[str]:
        """The names of the policies."""
        return [dataset["behavior_policy"] for dataset in self._described]

    @property
    def n_datasets(self) -> dict[str, int]:
        """Policy name -> its number of datasets."""
        return dict.fromkeys(self.behavior_policy_names, self._datasets)

    def get(self, behavior_policy_name: str, dataset_id: int) -> LoggedDataset:
        """Returns a logged dataset. Raises UsageError if there is no such policy or dataset."""
        names = self.behavior_policy_names
        if behavior_policy_name not in names or not 0 <= dataset_id < self._datasets:
            raise UsageError(
                f"{self.path}: there is no dataset {dataset_id} of {behavior_policy_name}; there are {self._datasets} "
                f"of {', '.join(names)}, counted from 0"
            )
        policy = names.index(behavior_policy_name)
        return LoggedDataset(str(self.path), self._described[policy], policy, dataset_id, self._owner)
