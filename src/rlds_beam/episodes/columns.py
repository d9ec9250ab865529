"""Columns of steps: nested names, zeros, concatenation, casts that find the values they would change; transitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.images.codecs import encode_zeros
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.text import count
from rlds_beam.typing import Array


def exact_cast(values: Array, dtype: np.dtype[Any], path: str, rule: str = "wrong_dtype_or_shape") -> Array:
    """Casts values to a dtype without changing them; returns the same array if it has this dtype.

    Args:
      values: a step field [T, ...], or one value of the episode.
      path: the field's path, for the violation.
      rule: the rule of the violation; outputs use `not_representable`.

    Raises:
      BadEpisode: a value would change, or the values are not numbers.
    """
    if values.dtype == dtype:
        return values
    if not (is_number(values.dtype) and is_number(dtype)):
        actual = "text" if values.dtype.kind in "OSU" else f"{values.dtype.name} values"
        expected = "text" if dtype.kind == "O" else dtype.name
        raise BadEpisode(Violation(rule, f"{actual}, but the schema says {expected}", path))
    with np.errstate(all="ignore"):
        cast = values.astype(dtype)
        bad = find_changed(values, cast)
    if bad.any():
        raise BadEpisode(make_violation(rule, path, values, cast, bad))
    return cast


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is bool, integer, or float (including bfloat16), as a field requires."""
    return dtype.kind in "biuf" or dtype.name == "bfloat16"


def find_changed(old: Array, new: Array, *, rounding: bool = False) -> Array:
    """Finds values that a cast changed: bool of the same shape.

    Args:
      old, new: numbers, before and after the cast.
      rounding: accept rounding to a shorter float, unless it makes a finite value infinite.
    """
    if new.dtype.kind == "b":
        return np.asarray((old != 0) & (old != 1))
    if old.dtype.kind == "b":
        return np.zeros(old.shape, bool)
    old, new = _widen(old), _widen(new)
    if old.dtype.kind == "f" and new.dtype.kind == "f":
        if rounding:
            return np.asarray(np.isfinite(old) & ~np.isfinite(new))
        return np.asarray((new.astype(old.dtype) != old) & ~np.isnan(old))
    # As a float, an integer's upper limit may round up to limit + 1, which is out of range.
    if new.dtype.kind == "f":
        limits = np.iinfo(old.dtype)
        out = ~(np.isfinite(new) & (new.astype(np.float64) < float(limits.max) + 1))
        return np.asarray(out | (new.astype(old.dtype) != old))
    limits = np.iinfo(new.dtype)
    if old.dtype.kind == "f":
        return np.asarray(~((old >= float(limits.min)) & (old < float(limits.max) + 1) & (np.trunc(old) == old)))
    source = np.iinfo(old.dtype)
    return np.asarray((old < max(limits.min, source.min)) | (old > min(limits.max, source.max)))


def _widen(values: Array) -> Array:
    """Widens bfloat16, unknown to numpy, and float16, in which integer limits are infinite, to float32."""
    return values.astype(np.float32) if values.dtype.kind not in "iuf" or values.dtype == np.float16 else values


def make_violation(rule: str, path: str, old: Array, new: Array, bad: Array) -> Violation:
    """The violation for values that a cast changed.

    Args:
      bad: the result of `find_changed`; at least one is True.
    """
    if not bad.ndim:
        return Violation(rule, f"{old[()]} becomes {new[()]} as {new.dtype.name}", path)
    flat = bad.reshape(len(bad), -1)
    step = int(np.argmax(flat.any(axis=1)))
    at = int(np.argmax(flat[step]))
    before, after = (values.reshape(len(bad), -1)[step, at] for values in (old, new))
    number = int(np.count_nonzero(bad))
    more = f" ({count(number, 'such value')} in the episode)" if number > 1 else ""
    return Violation(rule, f"{before} at step {step} becomes {after} as {new.dtype.name}{more}", path, step)


def below(path: str, name: str) -> bool:
    """Whether a path is `name` or a leaf below it: `observation/state` is below `observation`."""
    return path == name or path.startswith(name + "/")


def all_below(paths: Iterable[str], name: str) -> list[str]:
    """The paths that are `name` or below it."""
    return [path for path in paths if below(path, name)]


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Converts values by path to nested dicts, in the order of the paths.

    Raises:
      UsageError: a path is below another path that has a value.
    """
    nested: dict[str, Any] = {}
    for path, value in leaves.items():
        *parents, leaf = path.split("/")
        level = nested
        for depth, name in enumerate(parents, 1):
            level = level.setdefault(name, {})
            if not isinstance(level, dict):
                raise UsageError(f"{path}: {'/'.join(parents[:depth])} is a value, so nothing can be below it")
        level[leaf] = value
    return nested


def flatten(value: Any, path: str) -> dict[str, Any]:
    """The leaves of nested dicts by path, each below `path`; any other value is a leaf at `path`."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {leaf: v for name, below in value.items() for leaf, v in flatten(below, f"{path}/{name}").items()}


def nest_order(paths: Iterable[str]) -> list[str]:
    """Sorts paths as `tf.nest` orders the leaves of nested dicts: name by name."""
    return sorted(paths, key=lambda path: path.split("/"))


def is_text(column: Column) -> bool:
    """Whether the column holds text, which trajectories do not support."""
    return not isinstance(column, EncodedImages) and column.dtype.kind in "OSU"


def text_bytes(value: Any, path: str) -> bytes:
    """Converts one text value to bytes.

    Raises:
      BadEpisode: wrong_dtype_or_shape, if the value is not text; an object array as bytes would be memory addresses.
    """
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            detail = "a text has half of a surrogate pair, which UTF-8 cannot hold"
            raise BadEpisode(Violation("wrong_dtype_or_shape", detail, path)) from None
    if not isinstance(value, bytes):
        what = f"an array of shape {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise BadEpisode(Violation("wrong_dtype_or_shape", f"{what}, but expected text", path))
    return bytes(value)


def is_numeric(column: Column) -> bool:
    """Whether a column holds numbers, not images, text, or bools."""
    return not isinstance(column, EncodedImages) and (column.dtype.kind in "fiu" or column.dtype.name == "bfloat16")


def zeros_of(field: Field, length: int) -> Column:
    """The column of a field that data lacks: zeros, black images, or empty texts."""
    if field.holds_image_files:
        black = encode_zeros(tuple(size or 1 for size in field.shape), field.dtype, field.encoding)
        return EncodedImages(np.full(length, black, object), field.shape, field.dtype, field.encoding)
    if field.dtype == "string":
        return np.full((length, *field.closed_shape), b"", object)
    return np.zeros((length, *field.closed_shape), field.numpy_dtype)


def zeros_like(column: Column, length: int) -> Column:
    """A column of `length` zeros (empty strings for text) of the same kind, dtype, and step shape."""
    if isinstance(column, EncodedImages):
        return column.with_data(np.full(length, ZERO_IMAGE, object))
    if column.dtype == object:
        return np.full(length, b"", object)
    return np.zeros((length, *column.shape[1:]), column.dtype)


def concatenate(columns: Sequence[Column]) -> Column:
    """Concatenates columns of the same kind."""
    first = columns[0]
    if isinstance(first, EncodedImages):
        data = np.concatenate([cast(EncodedImages, column).data for column in columns])
        return first.with_data(data)
    joined: np.ndarray[Any, Any] = np.concatenate(cast("list[np.ndarray[Any, Any]]", columns))
    return joined


def transitions(episode: Episode) -> int:
    """The number of transitions, T. A void last step only holds the final observation, a real one is a transition.

    step          0     1     2     3                     void: T = 3     real: T = 4
    observation   o0    o1    o2    o3        obs         o0 o1 o2        o0 o1 o2 o3
    action        a0    a1    a2    a3        actions     a0 a1 a2        a0 a1 a2 a3
    reward        r0    r1    r2    r3        rewards     r0 r1 r2        r0 r1 r2 r3
    is_last       F     F     F     T         new_obs     o1 o2 o3        o1 o2 o3 o3
    """
    return len(episode) if episode.last_action_is_real else max(0, len(episode) - 1)


def with_final_observation(episode: Episode, *, absorbing: bool = False) -> Episode:
    """The episode as RLDS defines it: T + 1 steps for T transitions.

    If the last action is real, its next observation was not recorded. A step that repeats the last observation is
    added, with an action and a reward of zeros; it is `is_last`, and `is_terminal` if the recorded last step was.

    Args:
      absorbing: the added step of a terminal episode is all zeros.
    """
    if not episode.last_action_is_real or not len(episode):
        return episode
    zeros = absorbing and bool(np.asarray(episode.steps["is_terminal"])[-1])
    steps: dict[str, Column] = {}
    for path, column in episode.steps.items():
        void = zeros or path.partition("/")[0] in ("action", "reward")
        steps[path] = concatenate([column, zeros_like(column, 1) if void else column[-1:]])
    for path, place in (("is_first", -1), ("is_last", -2), ("is_terminal", -2)):
        if path in steps:
            flags = np.array(steps[path])
            flags[-1] = np.asarray(episode.steps[path])[-1]
            flags[place] = False
            steps[path] = flags
    return episode.replace(steps=steps, last_action_is_real=False)
