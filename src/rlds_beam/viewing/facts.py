"""An episode at a glance: instruction, return, and its numeric fields as curves; and values as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.columns import is_text, transitions
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import FLAGS, MAX_UNFOLDED, Schema, dimension_labels
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.thumbnails import is_image
from rlds_beam.text import printable
from rlds_beam.typing import Array

MAX_DIMENSIONS = 64
"""Maximum dimensions of a curve."""

_STATE_WORDS = ("state", "proprio", "joint", "pose", "position", "qpos")


@dataclasses.dataclass(frozen=True)
class Curve:
    """A numeric step field.

    Attributes:
      path: the field's path.
      labels: the label of each dimension (`dimension_labels`); empty for a scalar.
      values: float64 [T, D]; may contain NaN and infinity.
      left_out: the number of dimensions beyond `MAX_DIMENSIONS`.
    """

    path: str
    labels: tuple[str, ...]
    values: Array
    left_out: int = 0

    @property
    def is_embedding(self) -> bool:
        """Whether it has so many dimensions that single ones mean little; such fields are shown last."""
        return self.values.shape[1] + self.left_out > MAX_UNFOLDED


def find_curves(episode: Episode, schema: Schema | None = None, names: Mapping[str, Sequence[str]] = {}) -> list[Curve]:
    """The numeric step fields, except flags, images, and text.

    Order: states, other observations, actions, rewards, the rest; embeddings last.

    Args:
      schema: if given, only fields in it.
      names: the names of the values of fields, by path, for the labels.
    """
    steps = episode.steps if schema is None else {p: c for p, c in episode.steps.items() if p in schema.steps}
    curves = [
        _curve(path, np.asarray(column), names.get(path, ()))
        for path, column in steps.items()
        if path not in FLAGS and not isinstance(column, EncodedImages) and _is_curve(column)
    ]
    return sorted(curves, key=_rank)


def _is_curve(column: Array) -> bool:
    number = column.dtype.kind in "biuf" or column.dtype.name == "bfloat16"
    return number and not is_text(column) and not is_image(column) and 0 not in column.shape[1:]


def _curve(path: str, column: Array, names: Sequence[str]) -> Curve:
    shape = column.shape[1:]
    flat = column.reshape(len(column), int(np.prod(shape)))
    kept = min(flat.shape[1], MAX_DIMENSIONS)
    labels = dimension_labels(shape, kept, names) if shape else []
    return Curve(path, tuple(labels), flat[:, :kept].astype(np.float64), flat.shape[1] - kept)


def _rank(curve: Curve) -> tuple[int, str]:
    path = curve.path
    if curve.is_embedding:
        return 5, path
    for rank, group in enumerate(("observation", "action", "reward"), 1):
        if path == group or path.startswith(f"{group}/"):
            state = rank == 1 and any(word in path for word in _STATE_WORDS)
            return 0 if state else rank, path
    return 4, path


MAX_TEXT_CHARACTERS = 500
"""Maximum characters of a text of the dataset."""


def find_instruction(episode: Episode) -> str:
    """The instruction or task as one safe line; empty if there is none."""
    value = stored_instruction(episode)
    return "" if value is None else printable(value, MAX_TEXT_CHARACTERS)


def stored_instruction(episode: Episode) -> bytes | str | None:
    """The instruction or task of the episode, or of its first step, as stored."""
    texts: dict[str, Any] = {path: value for path, value in episode.metadata.items() if isinstance(value, (bytes, str))}
    for path, column in episode.steps.items():
        if is_text_column(column) and len(column):
            texts.setdefault(path, np.asarray(column)[0])
    for word in ("instruction", "task", "goal"):
        for path in sorted(texts):
            if word in path.rpartition("/")[2]:
                stored: bytes | str = texts[path]
                return stored
    return None


def is_text_column(column: Column) -> bool:
    """Whether each step has one text."""
    return (
        not isinstance(column, EncodedImages)
        and is_text(column)
        and column.ndim == 1
        and all(isinstance(value, (bytes, str)) for value in column)
    )


def compute_return(episode: Episode) -> float | None:
    """The sum of the rewards, without the void one of the last step; None without rewards, or if it is not finite."""
    rewards = episode.steps.get("reward")
    if not isinstance(rewards, np.ndarray) or rewards.dtype.kind not in "fiub" or rewards.ndim != 1:
        return None
    with np.errstate(all="ignore"):
        total = float(np.sum(rewards[: transitions(episode)], dtype=np.float64))
    return total if math.isfinite(total) else None


def find_flags(episode: Episode) -> list[tuple[str, str]]:
    """The steps on which each flag is set: `("is_last", "step 37")`."""
    columns = {name: np.asarray(episode.steps[name]) for name in FLAGS if name in episode.steps}
    return [(name, _places(column)) for name, column in columns.items() if column.dtype.kind in "biuf"]


def format_range(values: np.ndarray[Any, Any]) -> str:
    """`-0.12 to 0.35`, `always 0`; and how many values are not finite."""
    known = values[np.isfinite(values)]
    bad = values.size - known.size
    if not known.size:
        return f"{bad:,} NaN or infinite" if bad else "no values"
    low, high = known.min(), known.max()
    text = f"always {low:.4g}" if low == high and values.size > 1 else f"{low:.4g}"
    text = text if low == high else f"{low:.4g} to {high:.4g}"
    return f"{text}, {bad:,} NaN or infinite" if bad else text


def _places(flag: np.ndarray[Any, Any]) -> str:
    if not flag.size:
        return "never"
    steps = np.flatnonzero(np.asarray(flag, bool).reshape(len(flag), -1).any(axis=1))
    if not len(steps):
        return "never"
    first = ", ".join(map(str, steps[:3]))
    return f"step {first}" + (f" and {len(steps) - 3:,} more" if len(steps) > 3 else "")


MAX_VALUES = 1000
"""Maximum numbers or characters of a value."""
_EXACT = 1 << 53
"""Larger integers are sent as text: JavaScript rounds them."""


def json_value(value: Any, most: int = MAX_VALUES) -> tuple[Any, bool]:
    """A value as JSON, and whether it was cut to `most` numbers or characters."""
    if isinstance(value, (bytes, str)):
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        return text[:most], len(text) > most
    if value is None:
        return None, False
    array = np.asarray(value)
    if array.dtype.kind in "SU":
        array = array.astype(object)
    if not array.ndim:
        return scalar(array.item()), False
    cut = array.size > most
    if cut:
        array = array[: max(1, most // max(1, math.prod(array.shape[1:])))]
        if array.size > most:
            array = array.reshape(-1)[:most]
    return _list(array.astype(object).tolist() if array.dtype.kind in "OV" else array.tolist(), most), cut


def _list(value: Any, most: int) -> Any:
    if isinstance(value, list):
        return [_list(item, most) for item in value]
    return scalar(value, most)


def scalar(value: Any, most: int = MAX_VALUES) -> Any:
    """A Python or numpy scalar as JSON; NaN and infinity become None."""
    if isinstance(value, (bytes, str)):
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        return text[:most]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value) if abs(int(value)) <= _EXACT else str(value)
    if isinstance(value, np.ndarray):
        return json_value(value, most)[0]
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)[:most]
    return number if math.isfinite(number) else None
