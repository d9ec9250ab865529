"""Priorities of items: a number, a leaf of the frames, or a user's function.

A priority from a leaf is the mean over the item's transitions, because values such as a TD error belong to a
transition: frame t holds the value of the step from t to t+1. So the last frame, which is only the end of the last
transition, does not count, nor do boundary frames (step_type LAST, including padding). For a pair this is the value of
the first frame. If no frame is left (single frames, or an item that starts with a boundary), it is also the value of
the first frame.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol, cast

import numpy as np

from rlds_beam.episodes.columns import nest
from rlds_beam.episodes.episode import Column, EpisodeKey
from rlds_beam.episodes.schema import LAST
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.text import did_you_mean
from rlds_beam.trajectories.frames import Frames, pad_column
from rlds_beam.trajectories.items import Items, Windows
from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec
from rlds_beam.typing import Array
from rlds_beam.user_functions import resolve

_FLAG = "--priority"


class Priority(Protocol):
    """A rule that gives each item its priority. Picklable."""

    def check(self, spec: TrajectorySpec) -> None:
        """Raises UsageError if items of this spec cannot have such a priority."""

    def compute(self, items: Items) -> Array:
        """The priorities of the items, float64 [K], finite and not negative.

        Raises:
          BadEpisode: bad_priority: a value from the data or the function is negative, NaN, or infinite.
          UsageError: a function does not return one number per item.
        """


def resolve_priority(text: str) -> Priority:
    """Parses `--priority`: `1.5`, a leaf (`policy_info/td_error`), or `module:function`.

    Raises:
      UsageError: the number is negative or not finite. `Priority.check` finds other errors.
    """
    if ":" in text:
        return FunctionPriority(text)
    try:
        value = float(text)
    except ValueError:
        return LeafPriority(text)
    if not 0 <= value < math.inf:
        raise UsageError(f"{_FLAG}={text}: expected a finite number, 0 or more")
    return ConstantPriority(value)


@dataclasses.dataclass(frozen=True)
class ConstantPriority:
    """The same priority for every item."""

    value: float

    def check(self, spec: TrajectorySpec) -> None:
        """Accepts any spec."""

    def compute(self, items: Items) -> Array:
        return np.full(len(items), self.value)


@dataclasses.dataclass(frozen=True)
class LeafPriority:
    """The mean of a leaf over an item's transitions, as this module describes it.

    Attributes:
      path: the path of a leaf with one number per frame.
    """

    path: str

    def check(self, spec: TrajectorySpec) -> None:
        usable = [leaf.path for leaf in spec.leaves if math.prod(leaf.shape) == 1 and leaf.encoding == "none"]
        if self.path in usable:
            return
        leaves = {leaf.path: leaf for leaf in spec.leaves}
        if self.path in leaves:
            reason = f"{leaves[self.path]} is not one number per frame; use module:function to compute one"
        else:
            hint = did_you_mean(self.path, usable, most=3)
            reason = f"no such leaf{hint} (--policy_info_fields=NAME adds a step field as policy_info/NAME)"
        raise UsageError(f"{_FLAG}={self.path}: {reason}. Available: {', '.join(usable) or 'none'}")

    def compute(self, items: Items) -> Array:
        if not len(items):
            return np.zeros(0)
        values = cast(Array, _window(items, self.path)).reshape(len(items), -1).astype(np.float64)
        if "step_type" not in items.frames.columns:  # a row of columns has one value
            return _check_priorities(values[:, 0], self.path)
        counts = cast(Array, _window(items, "step_type")) != LAST
        counts[:, -1] = False
        counts[:, 0] |= ~counts.any(axis=1)
        with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinity are rejected below
            means = np.where(counts, values, 0).sum(axis=1) / counts.sum(axis=1)
        return _check_priorities(means, self.path)


@dataclasses.dataclass(frozen=True)
class FunctionPriority:
    """The priorities that a function returns for the items of an episode.

    The function is called once per episode with nested dicts of columns,
    `{"observation": {"state": [K, L, ...]}, ...}`, including padding frames, and returns one number for each of the K
    items. Single frames have L = 1; encoded images are `EncodedImages` whose `data` is [K, L]. Columns are read-only
    views.

    Attributes:
      name: the `module:function`, installed or in the current directory.
    """

    name: str

    def check(self, spec: TrajectorySpec) -> None:
        """Loads the function and calls it with two items of zeros."""
        resolve(self.name, _FLAG)
        items = _zero_items(spec)
        try:
            self._call(items)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(
                f"{_FLAG}={self.name}: a dry run with {len(items)} items of zeros raised {type(error).__name__}: "
                f"{error}"
            ) from error

    def compute(self, items: Items) -> Array:
        return _check_priorities(self._call(items), self.name) if len(items) else np.zeros(0)

    def _call(self, items: Items) -> Array:
        columns = nest({path: _window(items, path) for path in items.frames.columns})
        values = np.asarray(resolve(self.name, _FLAG)(columns))
        if values.dtype.kind not in "fiu" or values.shape != (len(items),):
            raise UsageError(
                f"{_FLAG}={self.name}: returned {values.dtype}{list(values.shape)} for {len(items)} items; "
                f"expected one number each, float[{len(items)}]"
            )
        return values.astype(np.float64)


def _window(items: Items, path: str) -> Column:
    """`items.gather(path)` as a view, without copying frames that several items share."""
    windows = items.windows
    column = pad_column(path, items.frames[path], windows.padding)
    if isinstance(column, EncodedImages):
        return column.with_data(_views(column.data, windows))
    return _views(column, windows)


def _views(values: Array, windows: Windows) -> Array:
    views = np.lib.stride_tricks.sliding_window_view(values, windows.length, axis=0)
    stop = windows.start + windows.count * windows.stride
    return np.moveaxis(views, -1, 1)[windows.start : stop : windows.stride]


def _check_priorities(values: Array, source: str) -> Array:
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        more = f" ({len(bad)} such items)" if len(bad) > 1 else ""
        detail = f"{values[bad[0]]:g} from {_FLAG}={source} for item {bad[0]}, of {len(values)}{more}"
        raise BadEpisode(Violation("bad_priority", detail))
    return values


def _zero_items(spec: TrajectorySpec) -> Items:
    length = (spec.item_shape[0] or 2) if spec.item_shape else 1
    columns = {leaf.path: _zeros(leaf, 2 * length) for leaf in spec.leaves}
    return Items(Frames(columns, EpisodeKey("zeros", "zeros", 0, 0)), Windows(0, 2, length, length, 2 * length))


def _zeros(leaf: SpecLeaf, count: int) -> Column:
    if leaf.encoding != "none":
        return EncodedImages(np.full(count, b"", object), leaf.shape, leaf.dtype)
    return np.zeros((count, *leaf.shape), leaf.numpy_dtype)
