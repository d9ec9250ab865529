"""What is said of an episode in words and numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlds_beam.connectors.fields import transitions
from rlds_beam.episodes.columns import is_text
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.flags import FLAGS
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.text import count, duration, printable

LONGEST_TEXT = 500
"""Maximum characters of a text of the dataset."""


def instruction_of(episode: Episode) -> str:
    """The instruction or task as one safe line; empty if there is none."""
    value = stored_instruction(episode)
    return "" if value is None else printable(value, LONGEST_TEXT)


def stored_instruction(episode: Episode) -> bytes | str | None:
    """The instruction or task of the episode, or of its first step, as stored."""
    texts: dict[str, Any] = {path: value for path, value in episode.metadata.items() if isinstance(value, (bytes, str))}
    for path, column in episode.steps.items():
        if is_text_column(column) and len(column):
            texts.setdefault(path, np.asarray(column)[0])
    for word in ("instruction", "task", "goal"):
        for path, value in sorted(texts.items()):
            if word in path.rpartition("/")[2]:
                stored: bytes | str = value
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


def return_of(episode: Episode) -> float | None:
    """The sum of the rewards, without the void one of the last step; None without rewards, or if it is not finite."""
    rewards = episode.steps.get("reward")
    if not isinstance(rewards, np.ndarray) or rewards.dtype.kind not in "fiub" or rewards.ndim != 1:
        return None
    with np.errstate(all="ignore"):
        total = float(np.sum(rewards[: transitions(episode)], dtype=np.float64))
    return total if math.isfinite(total) else None


def summary_of(episode: Episode, fps: float | None = None) -> str:
    """`38 steps, 7.6 s at 5 fps, return 1`."""
    parts = [count(len(episode), "step")]
    parts += [f"{duration(len(episode) / fps)} at {fps:g} fps"] if fps else []
    total = return_of(episode)
    return ", ".join([*parts, *([f"return {total:g}"] if total is not None else [])])


def flags_of(episode: Episode) -> list[tuple[str, str]]:
    """The steps on which each flag is set: `("is_last", "step 37")`."""
    columns = {name: np.asarray(episode.steps[name]) for name in FLAGS if name in episode.steps}
    return [(name, _places(column)) for name, column in columns.items() if column.dtype.kind in "biuf"]


def range_of(values: np.ndarray[Any, Any]) -> str:
    """`-0.12 to 0.35`, `always 0`; and how many values are not finite."""
    known = values[np.isfinite(values)]
    bad = values.size - known.size
    if not known.size:
        return f"{bad:,} NaN or infinite" if bad else "no values"
    low, high = known.min(), known.max()
    text = f"always {low:.4g}" if low == high and values.size > 1 else f"{low:.4g}"
    text = text if low == high else f"{low:.4g} to {high:.4g}"
    return f"{text}, {bad:,} NaN or infinite" if bad else text


def text_of(column: np.ndarray[Any, Any]) -> str:
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
