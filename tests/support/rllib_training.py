"""RLlib algorithms that train from our columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rllib_peer as peer
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

import rlds_beam
from rlds_beam.episodes.episode import Episode
from rlds_beam.testing import write_dataset

CELLS = 8
MAX_SEQ_LEN = 5


def lessons(count: int, *, states: bool = False) -> list[peer.Recorded]:
    """Makes episodes whose actions encode which of the first observations is largest, and the sign of the last."""
    rng, made = np.random.default_rng(0), []
    for i in range(count):
        lesson = peer.recorded(int(rng.integers(6, 17)), end=("terminated", "truncated")[i % 2], number=i)
        lesson.observations = rng.standard_normal((len(lesson) + 1, 3)).astype(np.float32)
        lesson.actions = 2 * (lesson.observations[:-1, 0] > lesson.observations[:-1, 1]) + (
            lesson.observations[:-1, 2] > 0
        )
        lesson.rewards = lesson.rewards.astype(np.float32)
        lesson.states = None
        made.append(lesson)
    return made


def write_columns(directory: Path, connectors: Sequence[Any], episodes: Sequence[Episode], *, shards: int = 2) -> str:
    """Writes these episodes as `convert --to=columns --format=parquet` does."""
    dataset = write_dataset(directory.with_name(f"{directory.name}-rlds"), episodes, name="lessons", shards=shards)
    rlds_beam.convert(dataset, directory, to="columns", format="parquet", connectors=connectors, workers=1)
    return str(directory)


def model(*, lstm: bool = False) -> DefaultModelConfig:
    return DefaultModelConfig(
        fcnet_hiddens=[16], vf_share_layers=False, use_lstm=lstm, lstm_cell_size=CELLS, max_seq_len=MAX_SEQ_LEN
    )


def configured(config: Any, *, lstm: bool = False, batch: int = 64, **training: Any) -> Any:
    """Configures an algorithm for `lessons`, with a learner in this process."""
    return (
        config.environment(observation_space=peer.OBSERVATION, action_space=peer.ACTION)
        .learners(num_learners=0)
        .rl_module(model_config=model(lstm=lstm))
        .training(train_batch_size_per_learner=batch, lr=0.01, **training)
        .debugging(seed=0)
    )


def losses(algorithm: Algorithm, iterations: int, module: str = "default_policy") -> list[float]:
    found = [algorithm.train()["learners"][module]["total_loss"] for _ in range(iterations)]
    return [float(value) for value in found]
