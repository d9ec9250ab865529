"""Which rows a batch reads: their order, shuffled without a permutation in memory, and windows of steps around each.

    one epoch of 10 rows, shuffled: a permutation, of which only the values that are read are computed

    position     0   1   2   3   4   5   6   7   8   9
    row          7   2   9   0   4   8   1   6   3   5
                 ╰─ rank 0 ─╯╰─ rank 1 ─╯                    the first batch of two ranks, with 2 rows each
                                 ╰─ rank 0 ...

The permutation is a Feistel network over the next power of four, repeated until the result is a row. Source: M. Luby
and C. Rackoff, "How to construct pseudorandom permutations from pseudorandom functions" (1988).

    an episode of 5 steps; history=3, chunk=3 at its second step, t = 1

    step                 0     1     2     3     4
    observations   (0)   0     1                            [t-2, t-1, t]: the first step is repeated, as padding
    actions                    1     2     3                [t, t+1, t+2]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean, some

Indices = npt.NDArray[np.int64]

_ROUNDS = 6
_BLOCK = 4096
"""Positions whose rows are computed together."""
_U64 = np.uint64
_MASK = (1 << 64) - 1

Size = int | Mapping[str, int] | None
"""Steps of a window: of the usual fields, or by field."""

IS_PAD = "_is_pad"
"""The end of the name of a column that marks padding, as in LeRobot."""


def permute(positions: Indices, count: int, seed: int) -> Indices:
    """The values of a pseudorandom permutation of 0 to `count` - 1 at these positions."""
    half = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    mask, shift = _U64((1 << half) - 1), _U64(half)
    keys = [_U64(_mix(seed + (i + 1) * 0x9E3779B97F4A7C15 & _MASK)) for i in range(_ROUNDS)]
    values = positions.astype(_U64)
    outside = np.arange(len(values))
    with np.errstate(over="ignore"):
        while len(outside):
            left, right = values[outside] >> shift, values[outside] & mask
            for key in keys:
                left, right = right, left ^ (_mix_all(right ^ key) & mask)
            values[outside] = left << shift | right
            outside = outside[values[outside] >= _U64(count)]
    return values.astype(np.int64)


def _mix(value: int) -> int:
    """The finalizer of SplitMix64."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def _mix_all(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ values >> _U64(30)) * _U64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> _U64(27)) * _U64(0x94D049BB133111EB)
    return values ^ values >> _U64(31)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan by which rows become batches.

    Attributes:
      counts: the number of rows of each dataset.
      batch_size: rows of a batch of one rank.
      shuffle: whether to shuffle.
      seed: the seed of the order.
      epochs: how often each row is read; None for no end.
      rank, ranks: the number of this process among those that share each global batch.
      drop_last: whether a last global batch with fewer rows is left out. If not, its rows are split among the ranks; a
        rank without any has one batch less in this epoch.
      weights: the share of each dataset; None if there is only one.
    """

    counts: tuple[int, ...]
    batch_size: int
    shuffle: bool
    seed: int
    epochs: int | None
    rank: int
    ranks: int
    drop_last: bool
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("batch_size", self.batch_size, 1),
            ("ranks", self.ranks, 1),
            ("epochs", self.epochs, 1),
        ):
            if value is not None and (type(value) is not int or value < least):
                raise UsageError(f"{name}={value}: expected a whole number, {least} or more")
        if not 0 <= self.rank < self.ranks:
            raise UsageError(f"rank={self.rank}: expected a number from 0 to {self.ranks - 1}, as ranks={self.ranks}")
        if 0 in self.counts:
            raise UsageError("there are no rows to make batches from")
        if self.weights is None and self.counts[0] < self.ranks:
            raise UsageError(f"ranks={self.ranks}: there are only {self.counts[0]:,} rows, so some have none")
        if self.per_epoch == 0:
            raise UsageError(
                f"a batch of {self.together:,} rows is larger than the dataset, which has {self.counts[0]:,}: choose a "
                "smaller batch_size"
            )

    @property
    def together(self) -> int:
        """Rows of a global batch."""
        return self.batch_size * self.ranks

    @property
    def per_epoch(self) -> int | None:
        """Batches of an epoch; None for a mixture, which has no epochs."""
        if self.weights is not None:
            return None
        return self.counts[0] // self.together if self.drop_last else -(-self.counts[0] // self.together)

    @property
    def batches(self) -> int | None:
        """All global batches; None if there is no end."""
        return None if self.epochs is None or self.per_epoch is None else self.epochs * self.per_epoch

    def share(self, rows: int) -> slice:
        """This rank's rows of a global batch: all ranks have equally many, or one more or less than the others."""
        return slice(rows * self.rank // self.ranks, rows * (self.rank + 1) // self.ranks)

    def count_after(self, drawn: int) -> int | None:
        """This rank's batches after as many global ones; None if there is no end."""
        if self.batches is None or self.epochs is None or self.per_epoch is None:
            return None
        last = self.share(self.counts[0] - (self.per_epoch - 1) * self.together)
        without = self.epochs - drawn // self.per_epoch if last.start == last.stop else 0
        return self.batches - drawn - without

    def identity(self) -> dict[str, Any]:
        """The facts that must be equal to resume: the ranks may differ if their batches have as many rows together."""
        return {
            "rows": list(self.counts),
            "global_batch_size": self.together,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "drop_last": self.drop_last,
            "weights": None if self.weights is None else list(self.weights),
        }


class Sampler:
    """Draws batch after batch, the same for the same plan. Not thread-safe."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._step, self._used = 0, [0] * len(plan.counts)
        self._blocks: dict[int, tuple[tuple[int, int], Indices]] = {}

    def state(self) -> dict[str, Any]:
        """The position, as JSON."""
        return {"batches": self._step, "used": list(self._used)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._step, self._used = int(state["batches"]), [int(used) for used in state["used"]]

    def draw(self) -> tuple[Indices, Indices] | None:
        """The rows of this rank's next batch, and the number of the dataset of each; None at the end."""
        plan = self._plan
        if plan.weights is not None:
            return self._mix_batch(plan.weights, plan.share(plan.together))
        assert plan.per_epoch is not None
        while plan.batches is None or self._step < plan.batches:
            epoch, batch = divmod(self._step, plan.per_epoch)
            first = batch * plan.together
            together = np.arange(first, min(first + plan.together, plan.counts[0]))
            self._step += 1
            if len(mine := together[plan.share(len(together))]):
                return self._shuffle_rows(0, epoch, mine), np.zeros(len(mine), np.int64)
        return None

    def _mix_batch(self, weights: Sequence[float], mine: slice) -> tuple[Indices, Indices]:
        """Chooses a dataset for each row of the global batch; each is read in its own order, again and again."""
        plan = self._plan
        random = np.random.default_rng((plan.seed & _MASK, self._step))
        datasets = random.choice(len(weights), size=plan.together, p=np.array(weights) / sum(weights))
        rows = np.empty(plan.together, np.int64)
        for number, count in enumerate(plan.counts):
            chosen = np.flatnonzero(datasets == number)
            epochs, positions = np.divmod(self._used[number] + np.arange(len(chosen)), count)
            for epoch in np.unique(epochs).tolist():
                now = epochs == epoch
                rows[chosen[now]] = self._shuffle_rows(number, epoch, positions[now])
            self._used[number] += len(chosen)
        self._step += 1
        return rows[mine], datasets[mine]

    def _shuffle_rows(self, dataset: int, epoch: int, positions: Indices) -> Indices:
        """The rows at positions of an epoch."""
        if not self._plan.shuffle:
            return positions
        parts = [
            self._block(dataset, epoch, block)[positions[positions // _BLOCK == block] - block * _BLOCK]
            for block in range(int(positions[0]) // _BLOCK, int(positions[-1]) // _BLOCK + 1)
        ]
        rows: Indices = np.concatenate(parts)
        return rows

    def _block(self, dataset: int, epoch: int, block: int) -> Indices:
        """The rows at the positions of a block; those of the last one are kept."""
        kept = self._blocks.get(dataset)
        if kept is not None and kept[0] == (epoch, block):
            return kept[1]
        count, seed = self._plan.counts[dataset], _mix(self._plan.seed & _MASK)
        positions = np.arange(block * _BLOCK, min((block + 1) * _BLOCK, count))
        rows = permute(positions, count, _mix(seed + dataset & _MASK) ^ _mix(epoch))
        self._blocks[dataset] = (epoch, block), rows
        return rows


def make_offsets(history: Size, chunk: Size, paths: Iterable[str]) -> dict[str, Indices]:
    """The offsets of each field's window, in steps from the current one. A field that is not among them has no window.

    Args:
      history: the observations up to the current one; a number is for all fields of the observation.
      chunk: the actions from the current one on; a number is for all fields of the action.

    Raises:
      UsageError: there is no such field, or a number is not positive.
    """
    known = list(paths)
    offsets: dict[str, Indices] = {}
    for name, size, root in (("history", history, "observation"), ("chunk", chunk, "action")):
        sizes = _sizes(name, size, root, known)
        for path, steps in sizes.items():
            if path in offsets:
                raise UsageError(f"{path} has both a history and a chunk: choose one")
            if path + IS_PAD in known:
                raise UsageError(
                    f"{path} cannot have a window: there is also a field {path}{IS_PAD}, which would mark padding"
                )
            offsets[path] = np.arange(steps) - (steps - 1 if name == "history" else 0)
    return offsets


def _sizes(name: str, size: Size, root: str, known: list[str]) -> Mapping[str, int]:
    if size is None:
        return {}
    if not isinstance(size, Mapping):
        below = [path for path in known if path == root or path.startswith((f"{root}/", f"{root}."))]
        if not below:
            raise UsageError(f"{name}={size}: there is no field {root}; name the fields: {name}={{'field': {size}}}")
        size = dict.fromkeys(below, size)
    for path, steps in size.items():
        if path not in known:
            raise UsageError(f"{name}: there is no field {path}{did_you_mean(path, known)}; there are {some(known)}")
        if type(steps) is not int or steps < 1:
            raise UsageError(f"{name}={steps}: expected a number of steps, 1 or more")
    return size


class KeptSteps:
    """The steps that become rows of batches: all but the last ones of some episodes.

    Args:
      starts: the index of each episode's first step, then the number of steps, [E + 1].
      left_out: whether the last step of each episode is left out, bool [E].
    """

    def __init__(self, starts: Indices, left_out: npt.NDArray[np.bool_]):
        self.starts, self.left_out = starts, left_out
        self._before = np.concatenate([[0], np.cumsum(left_out)])
        self._kept = starts - self._before

    def __len__(self) -> int:
        return int(self._kept[-1])

    def steps(self, numbers: Indices) -> Indices:
        """The indices of kept steps, from their numbers among the kept ones."""
        episodes = np.searchsorted(self._kept, numbers, side="right") - 1
        steps: Indices = numbers + self._before[episodes]
        return steps


def window(
    rows: Indices, starts: npt.NDArray[Any], offsets: Indices, left_out: npt.NDArray[np.bool_] | None = None
) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """The rows of windows, [B, W], and which of them are padding.

    Windows end where their episode does, or before a last step that is left out: beyond that, a step is repeated.

    Args:
      rows: the current steps, [B].
      starts: the index of each episode's first step, then the number of steps.
      offsets: the offsets in steps, [W].
      left_out: whether windows of each episode end before its last step, bool [E].
    """
    episodes = np.searchsorted(starts, rows, side="right") - 1
    first, last = starts[episodes], starts[episodes + 1] - 1
    if left_out is not None:
        last = np.maximum(last - left_out[episodes], first)
    wanted = rows[:, None] + offsets
    clipped = np.clip(wanted, first[:, None], last[:, None])
    return clipped, wanted != clipped
