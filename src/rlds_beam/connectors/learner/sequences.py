"""Adds the time axis: turns rows of transitions into sequences of equal length."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from rlds_beam.connectors.base import Batch, Columns, check_not_batched
from rlds_beam.connectors.fields import module_of
from rlds_beam.episodes.columns import zeros_like
from rlds_beam.episodes.episode import Column
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array


@dataclasses.dataclass(frozen=True)
class AddTimeDimToBatchAndZeroPad:
    """Cuts each episode into sequences of `max_seq_len` transitions, and zero-pads the last one.

        max_seq_len=4                  row 0        row 1         seq_lens     loss_mask
        obs (5,)      0 1 2 3 4   ->   0 1 2 3      4 0 0 0       [4, 1]       1111  1000

    Sequences are never packed: each holds transitions of one episode. Adds the columns `seq_lens`, int32 (B,), the
    number of transitions per sequence; and `loss_mask`, bool (B, max_seq_len), true for transitions to learn from.
    (Unlike RLlib's, `seq_lens` does not count the timestep that AddOneTsToEpisodesAndTruncate adds.)

    The one row of a running episode gets a time axis of length 1: obs (1, ...) becomes (1, 1, ...).

    Attributes:
      max_seq_len: L, the sequence length.
      stride: the number of transitions between the starts of two sequences; by default L - burn_in, so that each
        transition is learned from once. With a smaller stride, sequences overlap.
      burn_in: the number of transitions at the start of a sequence that only update the recurrent state. Their
        `loss_mask` is false, except in the first sequence of an episode, which needs no burn-in.
      pad: `right`, or `left` for zeros before the transitions.
      tail: `keep`, or `drop` sequences that are not full.
      modules: the modules that learn from sequences; by default all. Rows of other modules stay transitions.
    """

    max_seq_len: int = 20
    stride: int | None = None
    burn_in: int = 0
    pad: str = "right"
    tail: str = "keep"
    modules: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.modules is not None:
            object.__setattr__(self, "modules", tuple(self.modules))
        if self.max_seq_len < 1:
            raise UsageError(f"max_seq_len={self.max_seq_len}: expected 1 or more")
        if not 0 <= self.burn_in < self.max_seq_len:
            raise UsageError(f"burn_in={self.burn_in}: expected 0 to {self.max_seq_len - 1}, less than max_seq_len")
        if not 1 <= self.step <= self.max_seq_len:
            raise UsageError(
                f"stride={self.stride}: expected 1 to {self.max_seq_len}, so that no transition is left out"
            )
        for name, value, known in (("pad", self.pad, ("right", "left")), ("tail", self.tail, ("keep", "drop"))):
            if value not in known:
                raise UsageError(f"{name}={value}: expected {' or '.join(known)}")

    @property
    def step(self) -> int:
        """The number of transitions between the starts of two sequences."""
        return self.max_seq_len - self.burn_in if self.stride is None else self.stride

    def __call__(self, batch: Batch) -> Batch:
        check_not_batched(self, batch)
        if batch.time is not None:
            raise ValueError("AddTimeDimToBatchAndZeroPad: the columns already have a time axis")
        of = [self.modules is None or module_of(episode) in self.modules for episode in batch.episodes]
        if batch.running:
            return _with_single_timestep(batch, of)
        cut = [
            self._cut(columns) if is_of else (columns, None) for is_of, columns in zip(of, batch.columns, strict=True)
        ]
        return batch.replace(columns=tuple(c for c, _ in cut), time=self, starts=tuple(s for _, s in cut))

    def sequences(self, columns: Columns, starts: Array) -> Columns:
        """Reshapes columns (T, ...) to (len(starts), max_seq_len, ...)."""
        return {name: self._sequences(column, starts, len(column)) for name, column in columns.items()}

    def _cut(self, columns: Columns) -> tuple[Columns, Array]:
        rows = len(next(iter(columns.values()))) if columns else 0
        starts, lengths = _windows(rows, self.max_seq_len, self.step, self.tail == "drop")
        sequences = {
            name: column if name in ("seq_lens", "loss_mask") else self._sequences(column, starts, rows)
            for name, column in columns.items()
        }
        real, mask = lengths, cast("Array | None", columns.get("loss_mask"))
        if mask is None:
            mask = _masks(self, rows)
        else:
            counted = np.concatenate([[0], np.cumsum(mask)])
            real = (counted[starts + lengths] - counted[starts]).astype(np.int32)
            mask = self._mask(mask, starts, lengths)
        return {**sequences, "seq_lens": columns.get("seq_lens", real), "loss_mask": mask}, starts

    def _mask(self, learned: Array, starts: Array, lengths: Array) -> Array:
        """bool (len(starts), max_seq_len): whether each transition is learned from; False during burn-in."""
        mask = np.array(self._sequences(learned, starts, len(learned)))
        if self.burn_in and len(starts) > 1:
            first = np.arange(self.max_seq_len) - (self.max_seq_len - lengths[1:, None] if self.pad == "left" else 0)
            mask[1:] &= first >= self.burn_in
        return mask

    def _sequences(self, column: Column, starts: Array, rows: int) -> Column:
        """Reshapes (rows, ...) to (len(starts), max_seq_len, ...), padded with zeros."""
        if isinstance(column, EncodedImages):
            return column.with_data(cast(Array, self._sequences(column.data, starts, rows)))
        length = self.max_seq_len
        if self.pad == "right" and self.step == length and rows <= len(starts) * length:  # the usual case
            filled: Any = column
            if rows < len(starts) * length:
                filled = zeros_like(column, len(starts) * length)
                filled[:rows] = column
        else:
            index = starts[:, None] + np.arange(length)
            if self.pad == "left":
                index -= np.maximum(starts + length - rows, 0)[:, None]
                void = index < starts[:, None]
            else:
                void = index >= rows
            filled = column[np.clip(index, 0, max(rows - 1, 0)).ravel()] if rows else zeros_like(column, index.size)
            filled[void.ravel()] = b"" if column.dtype == object else 0
        return cast(Array, filled.reshape(len(starts), length, *column.shape[1:]))


class _SingleTimestep:
    """The time axis of running episodes, of length 1."""

    def sequences(self, columns: Columns, starts: Array) -> Columns:
        """Reshapes columns (1, ...) to (1, 1, ...)."""
        return {name: self._longer(column) for name, column in columns.items()}

    def _longer(self, column: Column) -> Column:
        if isinstance(column, EncodedImages):
            return column.with_data(column.data[:, None])
        return column[:, None]


def _with_single_timestep(batch: Batch, of: Sequence[bool]) -> Batch:
    """Adds a time axis of length 1 to the running episodes of modules that learn from sequences."""
    time, columns = _SingleTimestep(), []
    starts = tuple(np.array([len(e) - 1]) if is_of else None for is_of, e in zip(of, batch.episodes, strict=True))
    for start, own in zip(starts, batch.columns, strict=True):
        columns.append(own if start is None else time.sequences(own, start))
    return batch.replace(columns=tuple(columns), time=time, starts=starts)


@functools.lru_cache(maxsize=1024)
def _masks(time: AddTimeDimToBatchAndZeroPad, rows: int) -> Array:
    """The `loss_mask` of an episode in which every transition is learned from."""
    starts, lengths = _windows(rows, time.max_seq_len, time.step, time.tail == "drop")
    mask = time._mask(np.ones(rows, bool), starts, lengths)
    mask.flags.writeable = False
    return mask


@functools.lru_cache(maxsize=1024)
def _windows(rows: int, length: int, step: int, full: bool) -> tuple[Array, Array]:
    """The start and the number of transitions of each sequence of an episode. The last one reaches the end."""
    count = 0 if rows == 0 else max(0, -(-(rows - length) // step)) + 1
    starts = np.arange(count) * step
    lengths = np.minimum(length, rows - starts).astype(np.int32)
    if full:
        starts, lengths = starts[lengths == length], lengths[lengths == length]
    starts.flags.writeable = lengths.flags.writeable = False
    return starts, lengths
