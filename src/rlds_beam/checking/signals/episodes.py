"""The fields that signals measure (`Context`), and many episodes at once, as signals see them.

The steps of all episodes are laid end to end, by dimension, so that one pass of numpy covers them all:

    episodes     0 . . .  1 . .  2 . . . .
    (D, N)       a a a a  a a a  a a a a a
                 b b b b  b b b  b b b b b
    starts       ^        ^      ^
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rlds_beam.checking.signals.base import BROKEN, SIGNALS, Signal, add_signal
from rlds_beam.checking.steps import is_clock, runs
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import FLAGS, Field, Schema
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

JoinedColumns: TypeAlias = "Array | list[Array | None]"
"""A field of several episodes: its numbers end to end (N, ...); or the numbers of each, None for none."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The bounds of E episodes whose steps are laid end to end.

    Attributes:
      lengths: the number of steps of each episode, at least 1.
      starts: the first step of each.
      void: the last steps whose action is void (`is_last`).
    """

    lengths: Array
    starts: Array
    void: Array

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], void: Sequence[bool]) -> Layout:
        sizes = np.array(lengths, np.int64)
        ends = np.cumsum(sizes)
        return cls(sizes, ends - sizes, (ends - 1)[np.array(void, bool) & (sizes > 1)])

    def find_episode(self, steps: Array) -> Array:
        """The index of the episode of each step."""
        return np.searchsorted(self.starts, steps, side="right") - 1

    def sum(self, values: Array) -> Array:
        """The sum of values (..., N) over each episode (..., E); flags are counted."""
        dtype = np.int64 if values.dtype == bool else None
        counted = values.view(np.int8) if values.dtype == bool else values
        return np.asarray(np.add.reduceat(counted, self.starts, axis=-1, dtype=dtype))

    def spread(self, values: Array) -> Array:
        """The value of each episode (..., E) at all of its steps (..., N)."""
        return np.repeat(values, self.lengths, axis=-1)

    def find_largest(self, values: Array) -> Array:
        """The first step with the largest value (D, N) of each episode (D, E)."""
        largest = np.maximum.reduceat(values, self.starts, axis=1)
        dimension, step = np.nonzero(values == self.spread(largest))
        episode = self.find_episode(step)
        places, first = np.unique(dimension * len(self.starts) + episode, return_index=True)
        found = np.zeros(largest.size, np.int64)
        found[places] = step[first] - self.starts[episode[first]]
        return found.reshape(largest.shape)

    def find_runs(self, mask: Array, least: int = 1) -> tuple[Array, Array, Array, Array]:
        """The runs of True in each episode.

        Args:
          mask: bool (N,); no run reaches into the next episode.
          least: runs shorter than this do not count.

        Returns:
          The number of steps in all runs, the length of the longest, its first step, and the step after it (NaN without
          a run), (E,) each.
        """
        size = len(self.starts)
        first, stop, longest, total = np.full(size, np.nan), np.full(size, np.nan), np.zeros(size), np.zeros(size)
        if mask.any():
            edges = runs(mask)
            edges = edges[edges[:, 1] - edges[:, 0] >= least]
            lengths = edges[:, 1] - edges[:, 0]
            episode = self.find_episode(edges[:, 0])
            total[:] = np.bincount(episode, lengths, size)
            order = np.lexsort((-edges[:, 0], lengths))  # the longest is written last, the first of several
            at = episode[order]
            longest[at] = lengths[order]
            first[at], stop[at] = edges[order, 0] - self.starts[at], edges[order, 1] - self.starts[at]
        return total, longest, first, stop


@dataclasses.dataclass(frozen=True)
class Motion:
    """A field of motion of E episodes, without NaN and infinity.

    Attributes:
      layout: where the steps are.
      values: the values (D, N).
      changes: the change at each step from the one before (D, N), 0 at the first step of an episode.
      sizes: their absolute values.
    """

    layout: Layout
    values: Array
    changes: Array
    sizes: Array

    @classmethod
    def from_values(cls, values: Array, layout: Layout) -> Motion:
        changes = np.empty_like(values)
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(values[:, 1:], values[:, :-1], out=changes[:, 1:])
        changes[:, layout.starts] = 0
        return cls(layout, values, changes, np.abs(changes))

    @functools.cached_property
    def low(self) -> Array:
        """The smallest value of each episode (D, E)."""
        return np.asarray(np.minimum.reduceat(self.values, self.layout.starts, axis=1))

    @functools.cached_property
    def high(self) -> Array:
        """The largest value of each episode (D, E)."""
        return np.asarray(np.maximum.reduceat(self.values, self.layout.starts, axis=1))


class Episodes:
    """E episodes with at least one step each.

    Args:
      context: the fields to measure.
      layout: where the steps are.
      columns: field -> the numbers of all episodes.
      repeats: camera -> the steps of each episode whose image is the one before.
      pixels: camera -> float64 (E, 3), the shares of black and of overexposed images and the median sharpness; NaN if
        none was decoded.
      instructions: the first text of the task of each, None if there is none.
      hashes: a hash of the actions of each; 0 if they are constant.
    """

    def __init__(
        self,
        context: Context,
        layout: Layout,
        columns: Mapping[str, JoinedColumns],
        repeats: Mapping[str, Sequence[list[int]]],
        pixels: Mapping[str, Array],
        instructions: Sequence[str | None],
        hashes: Sequence[int],
    ):
        self.context, self.layout, self.columns = context, layout, columns
        self.repeats, self.pixels, self.instructions = repeats, pixels, instructions
        self.hashes = hashes
        self.cache: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self.layout.starts)

    @functools.cached_property
    def motions(self) -> dict[str, Motion]:
        """The fields of motion, without those that no episode has."""
        found = {path: self.concatenate(path) for path in self.context.motion}
        return {path: Motion.from_values(values, self.layout) for path, values in found.items() if values is not None}

    def concatenate(self, path: str) -> Array | None:
        """A field of all episodes as (D, N), float32 or float64, without NaN and infinity.

        A value that is not finite becomes the one before. So does the void action of the last step. None if no episode
        has the field.
        """
        field, layout = self.columns[path], self.layout
        if isinstance(field, np.ndarray):
            flat = _flat(field)
        elif any(column is not None for column in field):
            flat = _fill(field, layout)
        else:
            return None
        values = np.ascontiguousarray(flat.T)
        if path in self.context.actions and len(layout.void):
            values[:, layout.void] = values[:, layout.void - 1]
        if not np.isfinite(values).all():
            known = np.isfinite(values)
            known[:, layout.starts] = True
            places = np.maximum.accumulate(np.where(known, np.arange(values.shape[1]), 0), axis=1)
            values[:] = np.take_along_axis(values, places, axis=1)
            values[~np.isfinite(values)] = 0  # from the first step on
        return values

    def share(self, mask: Array) -> Array:
        """The share of the steps of each episode in which a mask (N,) is True (E,)."""
        return np.asarray(self.layout.sum(mask) / self.layout.lengths)


def _flat(column: Array) -> Array:
    wide = column if column.dtype in (np.float32, np.float64) else column.astype(np.float32)
    return wide.reshape(len(wide), -1)


def _fill(columns: Sequence[Array | None], layout: Layout) -> Array:
    """Columns end to end (N, D); NaN where an episode has none, fewer dimensions, or another number of steps."""
    flat = [None if column is None else _flat(column) for column in columns]
    width = max(column.shape[1] for column in flat if column is not None)
    rows = np.full((layout.lengths.sum(), width), np.nan, np.float32)
    for column, start, length in zip(flat, layout.starts, layout.lengths, strict=True):
        if column is not None and len(column) == length:
            rows[start : start + length, : column.shape[1]] = column
    return rows


MAX_DIMENSIONS = 64
"""Fields with more values per step are not motion but embeddings, point clouds, or audio."""

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_ACTIONS = re.compile(r"actions?(_dict)?(/.*)?")
_STATES = re.compile(r"(observation|state)s?(/.*)?")
_INSTRUCTION = re.compile(r"(.*/)?(natural_)?(language_)?(instruction|task|language_instruction|language)s?", re.I)
_GRIPPER = re.compile(r"(.*[/_])?gripper.*", re.I)


@dataclasses.dataclass(frozen=True)
class Context:
    """The facts about a dataset that `measure` needs.

    Attributes:
      actions: the fields of actions with floats: motion that was commanded.
      states: the fields of observations with floats: motion that was measured.
      cameras: the fields of images.
      clocks: the fields of timestamps and frame numbers.
      instructions: the text fields with the task, of the steps and of the episode.
      fps: frames per second, if the dataset declares them.
      decoded: the number of images to decode per camera and episode; 0 for none.
      only: the signals to measure, if not all; then nothing is kept for comparing episodes.
      names: the names of the values of fields, by path.
      added: the signals of others, which processes that get the context add to their own.
    """

    actions: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ()
    clocks: tuple[str, ...] = ()
    instructions: tuple[str, ...] = ()
    fps: float | None = None
    decoded: int = 0
    only: frozenset[str] | None = None
    names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, hash=False)
    added: tuple[Signal, ...] = ()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for signal in self.added:
            add_signal(signal)

    @classmethod
    def from_schema(cls, schema: Schema, *, fps: float | None = None, decoded: int = 0) -> Context:
        """The roles of a schema's fields, by their names and dtypes.

        Raises:
          UsageError: a signal of an installed package cannot be used.
        """
        for error in BROKEN:
            raise error
        steps = {path: field for path, field in schema.steps.items() if path not in (*FLAGS, "reward", "discount")}
        clocks = tuple(path for path, field in steps.items() if is_clock(field))
        moving = [
            path
            for path, field in steps.items()
            if path not in clocks
            and field.dtype in _FLOATS
            and None not in field.shape
            and 0 < field.known_size <= MAX_DIMENSIONS
        ]
        texts = [
            path
            for path, field in (*schema.steps.items(), *schema.metadata.items())
            if field.dtype == "string" and not field.shape and _INSTRUCTION.fullmatch(path)
        ]
        return cls(
            tuple(path for path in moving if _ACTIONS.fullmatch(path)),
            tuple(path for path in moving if _STATES.fullmatch(path)),
            tuple(path for path, field in steps.items() if _is_camera(field)),
            clocks,
            tuple(texts),
            fps,
            decoded,
            None,
            schema.names,
            tuple(signal for signal in SIGNALS.values() if not signal.measure.__module__.startswith("rlds_beam.")),
        )

    @classmethod
    def of_episode(cls, episode: Episode, *, fps: float | None = None, decoded: int = 0) -> Context:
        """The roles of an episode's fields, if its schema is not at hand."""
        return _of_fields(_fields(episode.steps), _fields(episode.metadata), fps, decoded)

    def wants(self, *signals: str) -> bool:
        """Whether any of these signals is measured."""
        return self.only is None or not self.only.isdisjoint(signals)

    @property
    def motion(self) -> tuple[str, ...]:
        """The fields of motion: actions, then states."""
        return (*self.actions, *self.states)


def is_gripper(context: Context, path: str) -> bool:
    """Whether the name of a field, or of one of its values, says that it holds a gripper."""
    return any(_GRIPPER.fullmatch(name) for name in (path, *context.names.get(path, ())))


def find_gripper(context: Context, path: str, size: int) -> int | None:
    """The dimension of an action that may be the gripper: the one with that name, otherwise the last of at least 4."""
    names = context.names.get(path, ())
    named = [number for number, name in enumerate(names) if _GRIPPER.fullmatch(name)]
    if named and len(names) == size:
        return named[0]
    return size - 1 if size >= 4 or _GRIPPER.fullmatch(path) else None


@functools.lru_cache(maxsize=64)  # episodes of a dataset have the same fields
def _of_fields(steps: tuple[Field, ...], metadata: tuple[Field, ...], fps: float | None, decoded: int) -> Context:
    schema = Schema({field.path: field for field in steps}, {field.path: field for field in metadata})
    return Context.from_schema(schema, fps=fps, decoded=decoded)


def _fields(values: Mapping[str, object]) -> tuple[Field, ...]:
    fields = []
    for path, value in values.items():
        if isinstance(value, EncodedImages):
            fields.append(Field(path, value.dtype, value.shape, value.encoding))
        elif isinstance(value, (bytes, str)) or getattr(getattr(value, "dtype", None), "kind", "") == "O":
            fields.append(Field(path, "string", (), "text"))
        elif isinstance(value, (np.ndarray, np.generic)):
            fields.append(Field(path, value.dtype.name, value.shape[1:]))
    return tuple(fields)


def _is_camera(field: Field) -> bool:
    if field.holds_image_files:
        return field.dtype == "uint8"
    *_, channels = field.shape or (None,)
    return field.dtype == "uint8" and len(field.shape) == 3 and channels in (1, 3, 4) and field.known_size >= 256


def join_columns(columns: Sequence[Any], lengths: Sequence[int]) -> JoinedColumns:
    """Lays columns end to end if all are numbers of one dtype and shape, with these lengths."""
    dtypes = {None if column is None else column.dtype for column in columns}
    if len(dtypes) == 1 and None not in dtypes and is_numeric(columns[0]) and [*map(len, columns)] == lengths:
        with contextlib.suppress(ValueError):  # other shapes
            joined: Array = np.concatenate(columns)
            return joined
    return [column if column is not None and is_numeric(column) else None for column in columns]
