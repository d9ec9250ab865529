"""In-memory RLDS datasets for tf.data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tf_agents")

import tensorflow as tf

Columns = dict[str, Any]


def columns(*lengths: int, start: int = 0, **changes: Any) -> list[Columns]:
    """Makes valid episodes of these lengths; every step has a unique observation and action."""
    episodes = []
    for length in lengths:
        step = np.arange(start, start + length)
        start += length
        episodes.append(
            {
                "observation": np.stack([step, -step], 1).astype(np.float32),
                "action": step[:, None].astype(np.float32),
                "reward": step.astype(np.float32) / 2,
                "discount": np.full(length, 0.5, np.float32),
                "is_first": step == step[0],
                "is_last": step == step[-1],
                "is_terminal": (step == step[-1]) & (length % 2 == 0),
            }
        )
        episodes[-1] |= {name: change(episodes[-1]) for name, change in changes.items()}
    return episodes


def dataset(episodes: list[Columns]) -> tf.data.Dataset:
    """Makes an RLDS dataset."""
    return tf.data.Dataset.from_tensor_slices(
        {"steps": [tf.data.Dataset.from_tensor_slices(episode) for episode in episodes]}
    )


def frozen(nest: Any) -> tuple[Any, ...]:
    leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(nest)]
    return tuple(
        (leaf.dtype.str, leaf.shape, leaf.tolist() if leaf.dtype == object else leaf.tobytes()) for leaf in leaves
    )


def info(step: Any, next_step: Any) -> Any:
    if next_step["is_first"]:  # works only with autograph
        value = -next_step["reward"]
    else:
        value = next_step["reward"]
    return {"next_reward": value, "action": step["action"]}
