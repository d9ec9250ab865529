"""Train RLlib directly from Parquet columns (`rlds-beam convert --to=columns --format=parquet`).

    from rlds_beam.rllib import offline_data

    config = BCConfig().environment(observation_space=..., action_space=...)
    config.offline_data(**offline_data("columns"))

RLlib itself rebuilds episodes from what it reads, and runs the learner's connectors on every batch. Here the columns
are already computed: batches are read and handed to the learner.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.fields import DEFAULT_MODULE_ID
from rlds_beam.episodes.columns import nest
from rlds_beam.errors import UsageError, needs
from rlds_beam.formats.columns.reader import (
    ColumnsManifest,
    Rows,
    batches,
    count_rows,
    numeric_columns,
    row_groups,
    shuffle_groups,
)
from rlds_beam.output.manifest import read_manifest

with needs("rllib", "training with RLlib needs Ray and PyTorch"):
    from ray.rllib.offline.offline_data import OfflineData
    from ray.rllib.offline.offline_prelearner import OfflinePreLearner
    from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch


def offline_data(path: str, split: str = "train", *, modules: Sequence[str] = ()) -> dict[str, Any]:
    """The arguments of `AlgorithmConfig.offline_data` to train from converted columns.

    Args:
      path: the output of `rlds-beam convert --to=columns --format=parquet`.
      split: the split to read.
      modules: the modules to train; all by default.

    Raises:
      UsageError: it is not such an output, or is not finished; or there is no such module or split.
    """
    path = path if storage.scheme(path) else os.path.abspath(path)  # learners may run in another directory
    manifest = read_manifest(path)
    if manifest.get("format") != "parquet":
        raise UsageError(f"{path}: expected Parquet files: rlds-beam convert --to=columns --format=parquet")
    columns = ColumnsManifest.of(manifest, path)
    chosen = [columns.choose(name, path) for name in modules] or list(columns.modules)
    written = [s["file"] for s in manifest["shards"] if s["split"] == split and s["records"]]
    for name in chosen:
        if not any(_module_name(file) == name for file in written):
            raise UsageError(f"{path} has no rows for the module {name} in the split {split}")
    files = [storage.join(path, file) for file in written if _module_name(file) in chosen]
    return {
        "input_": files,
        "offline_data_class": ColumnsOfflineData,
        "prelearner_class": ColumnsPreLearner,
        "map_batches_kwargs": {"batch_format": "pyarrow"},
        "dataset_num_iters_per_learner": 1,
    }


def _module_name(file: str) -> str:
    """The name of the file's directory, which is the module."""
    return storage.split(storage.split(file)[0])[1]


class ColumnsPreLearner(OfflinePreLearner):
    """Replaces RLlib's OfflinePreLearner in a Ray Data pipeline: passes columns on, and runs no connectors.

    Supports one module. Non-numeric columns are left out.
    """

    def __init__(self, *, config: Any, spaces: Any = None, module_state: Any = None, **kwargs: Any):
        self.config = config
        names = sorted(config.policies) if config.is_multi_agent else [DEFAULT_MODULE_ID]
        if len(names) > 1:
            raise UsageError(f"expected one module, not {', '.join(names)}: a table holds the columns of one module")
        self._module = names[0]

    def __call__(self, batch: Any) -> dict[str, np.ndarray[Any, Any]]:
        if isinstance(batch, Mapping):
            raise UsageError('ColumnsPreLearner takes tables: map_batches_kwargs={"batch_format": "pyarrow"}')
        return {f"{self._module}/{name}": column for name, column in numeric_columns(batch).items()}


class ColumnsOfflineData(OfflineData):
    """Replaces RLlib's OfflineData: reads Parquet files of columns, of any number of modules, batch by batch.

    A module's files are in a directory with its name. Each row is sampled once per epoch: in order, or shuffled within
    `rows` rows with `iter_batches_kwargs={"local_shuffle_buffer_size": rows}`. With `materialize_data` or
    `materialize_mapped_data` the data stays in memory; otherwise only one row group of a file does.

    Learners in their own processes (`num_learners`), and those that take several batches per iteration, get Ray Data's
    iterators, as from RLlib's own class; that works for one module.
    """

    def __init__(self, config: Any):
        self.config = config
        self.is_multi_agent = config.is_multi_agent
        self.iter_batches_kwargs = {**self.default_iter_batches_kwargs, **config.iter_batches_kwargs}
        self.locality_hints = self.learner_handles = self.module_spec = self.spaces = None
        self._files: dict[str, list[str]] = {}
        for file in [config.input_] if isinstance(config.input_, str) else config.input_:
            self._files.setdefault(_module_name(file), []).append(file)
        known = sorted(config.policies) if config.is_multi_agent else [DEFAULT_MODULE_ID]
        unknown = [name for name in self._files if name not in known]
        if unknown:
            raise UsageError(
                f"there are columns of the module {unknown[0]}, but the configuration has {', '.join(known)}: use "
                f"config.multi_agent(policies=...), or offline_data(..., modules=...)"
            )
        self._rng = np.random.default_rng(config.seed)
        self._held: dict[str, list[Rows]] = {}
        self._batches: dict[str, Iterator[Rows]] = {}
        self._through_ray: Any = None

    def sample(
        self, num_samples: int, return_iterator: bool = False, num_shards: int = 1, module_state: Any = None
    ) -> Any:
        """A batch with `num_samples` rows of each module, or fewer at the end of an epoch; or iterators."""
        if return_iterator:
            return self._iterators(num_samples, num_shards, module_state)
        parts = {name: self._next(name, num_samples) for name in self._files}
        modules = {name: SampleBatch(nest(columns)) for name, columns in parts.items()}
        return MultiAgentBatch(modules, env_steps=sum(map(count_rows, parts.values())))

    def _next(self, module: str, rows: int) -> Rows:
        if module not in self._batches:
            self._batches[module] = self._epoch(module, rows)
        batch = next(self._batches[module], None)
        if batch is None:
            self._batches[module] = self._epoch(module, rows)
            batch = next(self._batches[module], None)
        if batch is None:
            raise UsageError(f"there are no rows for the module {module} in {', '.join(self._files[module])}")
        return batch

    def _epoch(self, module: str, rows: int) -> Iterator[Rows]:
        groups: Any = self._held.get(module) or row_groups(self._files[module])
        if module not in self._held and (self.config.materialize_data or self.config.materialize_mapped_data):
            groups = self._held[module] = list(groups)
        buffer = self.iter_batches_kwargs.get("local_shuffle_buffer_size")
        return batches(shuffle_groups(groups, buffer, self._rng) if buffer else groups, rows)

    def _iterators(self, num_samples: int, num_shards: int, module_state: Any) -> Any:
        if len(self._files) > 1:
            raise UsageError(
                f"columns of {len(self._files)} modules need a local learner that takes one batch per iteration: "
                "config.learners(num_learners=0), config.offline_data(dataset_num_iters_per_learner=1)"
            )
        if self._through_ray is None:
            self._through_ray = OfflineData(self.config)
        for name in ("learner_handles", "locality_hints", "module_spec", "spaces"):
            setattr(self._through_ray, name, getattr(self, name))
        return self._through_ray.sample(num_samples, True, num_shards, module_state)
