"""Merges parts into a SCOPE-RL logged dataset: a pickle whose arrays have as many rows for each episode.

The pickle is written piece by piece, for `pickle.load` (Python 3.8 and later).
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rlds_beam.formats.arrays.array_episodes import split_bytes
from rlds_beam.formats.arrays.leaves import LeafColumn, Leaves
from rlds_beam.formats.arrays.parts import Part
from rlds_beam.formats.format_options import ScopeRlOptions
from rlds_beam.typing import Array

START, STOP = b"\x80\x05", b"."
_MARK, _EMPTY_DICT, _SETITEMS, _EMPTY_LIST, _APPENDS, _REDUCE, _TUPLE3 = b"(", b"}", b"u", b"]", b"e", b"R", b"\x87"
_NDARRAY = b"cnumpy\nndarray\n"


def pickle_value(value: Any) -> bytes:
    """The pickle of a built-in value, to embed in another pickle."""
    return pickle.dumps(value, protocol=2)[2:-1]


def pickle_array(dtype: np.dtype[Any], shape: tuple[int, ...], data: Iterable[bytes]) -> Iterator[bytes]:
    """The pickle of an array whose bytes come in pieces; it is writable when loaded."""
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    yield _NDARRAY + pickle_value(shape) + pickle_value(dtype.str) + b"\x96" + struct.pack("<Q", size)
    yield from data
    yield _TUPLE3 + _REDUCE


def pickle_texts(blocks: Iterable[Sequence[bytes]]) -> Iterator[bytes]:
    """The pickle of a list of strings (UTF-8)."""
    yield _EMPTY_LIST
    for block in blocks:
        yield _MARK + b"".join(b"X" + struct.pack("<I", len(text)) + text for text in block) + _APPENDS


def pickle_mapping(items: Mapping[str, Iterable[bytes]]) -> Iterator[bytes]:
    """The pickle of a dict, given the pickled pieces of each value."""
    yield _EMPTY_DICT + _MARK
    for name, pieces in items.items():
        yield pickle_value(name)
        yield from pieces
    yield _SETITEMS


_F8, _I8 = np.dtype("<f8"), np.dtype("<i8")
_PADDED_BYTES = 4 << 20


class Logged(Protocol):
    """The entries of the pickle besides its rows; see `ScopeRlOutput`."""

    @property
    def name(self) -> str: ...
    @property
    def states(self) -> Leaves: ...
    @property
    def propensity(self) -> LeafColumn | None: ...
    @property
    def info(self) -> tuple[tuple[str, LeafColumn], ...]: ...
    @property
    def options(self) -> ScopeRlOptions: ...
    @property
    def discrete(self) -> bool: ...
    @property
    def action_dim(self) -> int: ...
    @property
    def state_keys(self) -> list[str]: ...
    @property
    def action_keys(self) -> list[str] | None: ...


def trajectory_steps(output: Logged, parts: Sequence[Part]) -> int:
    """The number of steps of each trajectory of a split, with padding."""
    return output.options.step_per_trajectory or max(part.about["steps"] for part in parts)


def read_lengths(parts: Sequence[Part]) -> Array:
    """The number of steps of each trajectory of a split, without padding."""
    column = [column.name for column in parts[0].columns].index("reward")
    return np.concatenate([part.rows[:, column] for part in parts])


def merge_logged_dataset(output: Logged, dataset_id: int, parts: Sequence[Part]) -> Iterator[bytes]:
    """The bytes of the pickle."""
    about = [part.about for part in parts]
    steps = trajectory_steps(output, parts)
    episodes = sum(map(len, parts))
    rows = episodes * steps
    policies = sorted({name for info in about for name in info["policies"] if name})
    state_dim, discrete = sum(leaf.field.known_size for leaf in output.states), output.discrete
    n_actions = output.options.n_actions or max(info.get("n_actions", 0) for info in about)
    at = {column.name: i for i, column in enumerate(parts[0].columns)}
    lengths = _Lengths(parts, at["reward"], steps)

    def numbers(
        name: str, dtype: np.dtype[Any], shape: tuple[int, ...] = (), pad: float | None = None
    ) -> Iterator[bytes]:
        return pickle_array(dtype, (rows, *shape), _pad(parts, at[name], dtype, steps, pad))

    def pscore() -> Iterator[bytes]:
        if output.propensity is None:
            return iter([pickle_value(None)])
        if discrete:
            return numbers("pscore", _F8, pad=1.0)
        copies = output.action_dim  # SCOPE-RL repeats the joint density for each dimension
        data = (
            np.repeat(np.frombuffer(piece, _F8), copies).tobytes()
            for piece in _pad(parts, at["pscore"], _F8, steps, 1.0)
        )
        return pickle_array(_F8, (rows, copies), data)

    def marks(mark: Callable[[Array, Array], Array]) -> Iterator[bytes]:
        return pickle_array(_F8, (rows,), lengths.marks(mark))

    def infos() -> Iterator[bytes]:
        kept = {}
        for key, leaf in output.info:
            name = f"info/{key}"
            if leaf.field.dtype == "string":
                kept[key] = pickle_texts(_padded_texts(parts, at[name], at[f"{name} lengths"], steps))
            else:
                kept[key] = numbers(name, _I8 if leaf.dtype.kind in "iub" else _F8)
        return pickle_mapping(kept)

    def value(content: Any) -> Iterable[bytes]:
        return [pickle_value(content)]

    content = {
        "size": value(rows),
        "n_trajectories": value(episodes),
        "step_per_trajectory": value(steps),
        "action_type": value("discrete" if discrete else "continuous"),
        "n_actions": value(n_actions if discrete else None),
        "action_dim": value(None if discrete else output.action_dim),
        "action_meaning": value(None),
        "action_keys": value(output.action_keys),
        "state_dim": value(state_dim),
        "state_keys": value(output.state_keys),
        "state": numbers("state", _F8, (state_dim,)),
        "action": numbers("action", _I8) if discrete else numbers("action", _F8, (output.action_dim,)),
        "reward": numbers("reward", _F8, pad=0.0),
        "done": marks(lambda place, count: place >= count - 1),
        "terminal": marks(lambda place, count: (place == count - 1) & (count == steps)),
        "info": infos(),
        "pscore": pscore(),
        "behavior_policy": value(output.options.behavior_policy or "+".join(policies) or output.name),
        "dataset_id": value(dataset_id),
        "mask": marks(lambda place, count: place < count),
        "terminated": pickle_array(_F8, (rows,), lengths.ends(at["terminated"], terminated=True)),
        "truncated": pickle_array(_F8, (rows,), lengths.ends(at["terminated"], terminated=False)),
    }
    yield START
    yield from pickle_mapping(content)
    yield STOP


class _Lengths:
    """Step marks derived from episode lengths."""

    def __init__(self, parts: Sequence[Part], column: int, steps: int):
        self._parts, self._column, self._place = parts, column, np.arange(steps)

    def marks(self, mark: Callable[[Array, Array], Array]) -> Iterator[bytes]:
        """float64: `mark`, given the position in the trajectory and the episode's length."""
        for part in self._parts:
            for _, counts in part.stretches(self._column):
                yield mark(self._place, counts[:, None]).astype(_F8).tobytes()

    def ends(self, column: int, *, terminated: bool) -> Iterator[bytes]:
        """float64: 1 at the last step of each episode that terminated (or did not)."""
        for part in self._parts:
            flags = np.frombuffer(b"".join(part.column_bytes(column)), bool)
            ends = self._place == part.rows[:, self._column][:, None] - 1
            yield (ends & (flags == terminated)[:, None]).astype(_F8).tobytes()


def _pad(parts: Sequence[Part], column: int, dtype: np.dtype[Any], steps: int, pad: float | None) -> Iterator[bytes]:
    """A column's rows, `steps` per episode, padded with a number or by repeating the last row."""
    for part in parts:
        row_bytes = part.columns[column].row_bytes
        for rows, counts in part.blocks(column):
            values = np.frombuffer(rows, np.uint8).reshape(-1, row_bytes)
            starts = np.cumsum(counts) - counts
            some = max(1, _PADDED_BYTES // (row_bytes * steps))
            for first in range(0, len(counts), some):
                start, count = starts[first : first + some, None], counts[first : first + some, None]
                place = np.arange(steps)
                taken = values[start + np.minimum(place, count - 1)]
                padded = taken.reshape(-1).view(dtype).reshape(count.size, steps, -1)
                if pad is not None:
                    padded[place >= count] = pad
                yield padded.tobytes()


def _padded_texts(parts: Sequence[Part], column: int, lengths: int, steps: int) -> Iterator[list[bytes]]:
    """A column's texts, `steps` per episode, padded by repeating the last one."""
    for part in parts:
        for (data, _), (sizes, counts) in zip(part.blocks(column), part.blocks(lengths), strict=True):
            texts = split_bytes(data, np.frombuffer(sizes, _I8))
            starts = np.cumsum(counts) - counts
            index = starts[:, None] + np.minimum(np.arange(steps), counts[:, None] - 1)
            yield texts[index.reshape(-1)].tolist()
