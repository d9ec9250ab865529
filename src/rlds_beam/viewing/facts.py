"""An episode at a glance: instruction, return, flags, and its numeric fields as curves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.columns import is_text
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import FLAGS, MAX_UNFOLDED, Schema, dimension_labels
from rlds_beam.episodes.transitions import transitions
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.thumbnails import is_image
from rlds_beam.text import count, duration, printable
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
    named = find_instruction_path(texts)
    stored: bytes | str | None = None if named is None else texts[named]
    return stored


def find_instruction_path(paths: Iterable[str]) -> str | None:
    """The path of the instruction or task among those of texts; None if none is."""
    named = [(path.rpartition("/")[2], path) for path in sorted(paths)]
    words = ("instruction", "task", "goal")
    return next((path for word in words for name, path in named if word in name), None)


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


def format_summary(episode: Episode, fps: float | None = None) -> str:
    """`38 steps, 7.6 s at 5 fps, return 1`."""
    parts = [count(len(episode), "step")]
    parts += [f"{duration(len(episode) / fps)} at {fps:g} fps"] if fps else []
    total = compute_return(episode)
    return ", ".join([*parts, *([f"return {total:g}"] if total is not None else [])])


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


def format_texts(column: np.ndarray[Any, Any]) -> str:
    """A text column: its first text, and how many others follow."""
    others = len({*column.tolist()}) - 1
    return f'"{printable(column[0])}"' + (f" and {count(others, 'other text')}" if others else "")


def _places(flag: np.ndarray[Any, Any]) -> str:
    if not flag.size:
        return "never"
    steps = np.flatnonzero(np.asarray(flag, bool).reshape(len(flag), -1).any(axis=1))
    if not len(steps):
        return "never"
    first = ", ".join(map(str, steps[:3]))
    return f"step {first}" + (f" and {len(steps) - 3:,} more" if len(steps) > 3 else "")
