"""Windows: what a step holds of a signal that is faster than the steps, with a count and times beside it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlds_beam.episodes.schema import SAMPLE_TIMES, SAMPLES, Field
from rlds_beam.formats.arrays.array_episodes import number_field
from rlds_beam.typing import Array


def window_fields(sample: Field, size: int) -> tuple[Field, ...]:
    """The fields of a window: up to `size` samples, (size, ...), with zeros behind the last; their number and times."""
    path = sample.path
    samples = number_field(path, sample.dtype, (size, *sample.closed_shape)).with_names(sample.names)
    times = number_field(f"{path}{SAMPLE_TIMES}", "float32", (size,))
    return samples, number_field(f"{path}{SAMPLES}", "int64"), times


def window_edges(times: Array, steps: Array) -> Array:
    """int64 [T + 1]: the samples of step t, those since the step before, are the ones from edge t to edge t + 1.

    Args:
      times: the times of the samples, int64 nanoseconds, ascending.
      steps: the times of the steps, int64 nanoseconds, [T]. The first has the samples of a usual interval before it.
    """
    if not len(steps):
        return np.zeros(1, np.int64)
    before = times[:1] - 1 if len(steps) < 2 else steps[:1] - int(np.median(np.diff(steps)))
    edges: Array = np.searchsorted(times, np.concatenate([before, steps]), side="right")
    return edges if len(before) else np.zeros(len(steps) + 1, np.int64)


def cut_windows(
    sample: Field, size: int, times: Array, steps: Array, read: Callable[[Array], Array]
) -> dict[str, Array]:
    """The columns of `window_fields`.

    Args:
      sample: the field of a sample.
      size: the most samples of a step.
      times: the times of the samples, int64 nanoseconds, ascending.
      steps: the times of the steps, int64 nanoseconds.
      read: the samples at some indices.

    Raises:
      ValueError: a step has more samples.
    """
    path, edges = sample.path, window_edges(times, steps)
    counts = np.diff(edges)
    if counts.max(initial=0) > size:
        raise ValueError(f"{path}: {counts.max():,} samples of a step, more than window: {size:,}")
    inside = np.arange(size) < counts[:, None]
    values = np.zeros((len(steps), size, *sample.closed_shape), sample.numpy_dtype)
    since = np.zeros((len(steps), size), np.float32)
    if len(chosen := np.arange(edges[0], edges[-1])):
        values[inside] = read(chosen)
        since[inside] = (times[chosen] - np.repeat(steps, counts)) / 1e9
    return {path: values, f"{path}{SAMPLES}": counts, f"{path}{SAMPLE_TIMES}": since}
