"""Logs written by EnvLogger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

STEPS_OF_EPISODE = 6


def write_log(
    directory: Path, episodes: int, action: str | None = None, flush: Callable[[object], bool] | None = None
) -> None:
    """Writes episodes of 6 steps in small chunks; the last one is unfinished.

    Args:
      directory: where the log goes.
      episodes: the number of episodes.
      action: the name of the action's spec.
      flush: whether to write the index after a step.
    """
    pytest.importorskip("envlogger.backends.python")
    import dm_env
    import envlogger
    from dm_env import specs
    from envlogger.backends import riegeli_backend_writer
    from envlogger.converters import spec_codec

    class Env(dm_env.Environment):
        def __init__(self):
            self.time, self.rng = 0, np.random.default_rng(0)

        def _observe(self):
            image = self.rng.integers(0, 255, (32, 32, 3), np.uint8)
            return {"state": np.full(2, self.time, np.float32), "image": image}

        def reset(self):
            self.time = 0
            return dm_env.restart(self._observe())

        def step(self, action):
            self.time += 1
            if self.time == STEPS_OF_EPISODE - 1:
                return dm_env.termination(1.0, self._observe())
            return dm_env.transition(0.5 * self.time, self._observe(), 1.0)

        def observation_spec(self):
            return {"state": specs.Array((2,), np.float32), "image": specs.Array((32, 32, 3), np.uint8)}

        def action_spec(self):
            return specs.BoundedArray((2,), np.float32, -1, 1, action)

    directory.mkdir(parents=True, exist_ok=True)
    backend = riegeli_backend_writer.RiegeliBackendWriter(
        str(directory),
        metadata={"environment_specs": spec_codec.encode_environment_specs(Env())},
        flush_scheduler=flush,
        writer_options="transpose,brotli:1,chunk_size:95k",
    )
    env = envlogger.EnvLogger(Env(), step_fn=lambda timestep, action, env: {"propensity": 0.25}, backend=backend)
    for number in range(episodes):
        env.reset()
        for _ in range(STEPS_OF_EPISODE - 1 if number < episodes - 1 else 2):
            env.step(np.full(2, number / 40, np.float32))
    env.close()
