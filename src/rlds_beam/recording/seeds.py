"""Random numbers of a recording: one stream per policy, dataset, and trajectory, independent of the worker."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlds_beam.typing import Array

_ENVIRONMENT, _ACTIONS, _WARM_UP = range(3)
_BLOCK = 64
"""Number of steps whose random numbers are drawn together."""


class Address(NamedTuple):
    """Identifies a trajectory by the numbers of its policy, dataset, and trajectory, each counted from 0."""

    policy: int
    dataset: int
    trajectory: int


def _stream(seed: int, address: Address, of: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(*address, of))


def environment_seed(seed: int, address: Address) -> int:
    """The environment's seed, less than 2**31."""
    return int(_stream(seed, address, _ENVIRONMENT).generate_state(1)[0] >> 1)


def warm_up(seed: int, address: Address, minimum: int, maximum: int) -> int:
    """The number of steps before the first recorded one: from `minimum` to below `maximum`."""
    if maximum <= minimum:
        return minimum
    return int(np.random.default_rng(_stream(seed, address, _WARM_UP)).integers(minimum, maximum))


class Noise:
    """The random numbers for the actions of a trajectory, step by step."""

    def __init__(self, seed: int, address: Address, uniform: int, normal: int):
        self._random = np.random.Generator(np.random.PCG64(_stream(seed, address, _ACTIONS)))
        self._widths = uniform, normal
        self._uniform = self._normal = np.empty((0, 0))
        self._used = _BLOCK

    def into(self, uniform: Array, normal: Array, row: int) -> None:
        """Writes the next step's random numbers into row `row` of arrays (N, U) and (N, V)."""
        used = self._used
        if used == _BLOCK:
            self._uniform = self._random.random((_BLOCK, self._widths[0])) if self._widths[0] else self._uniform
            self._normal = self._random.standard_normal((_BLOCK, self._widths[1])) if self._widths[1] else self._normal
            used = 0
        if self._widths[0]:
            uniform[row] = self._uniform[used]
        if self._widths[1]:
            normal[row] = self._normal[used]
        self._used = used + 1
