"""Instructions and metadata of an episode."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Episode

MAX_CHARACTERS = 1_000
"""Texts in the table are cut after this many."""

GENERIC = frozenset(
    (
        "-",
        ".",
        "?",
        "a",
        "action",
        "demo",
        "demonstration",
        "do it",
        "do something",
        "do task",
        "do the task",
        "dummy",
        "empty",
        "episode",
        "example",
        "foo",
        "go",
        "hold",
        "instruction",
        "language instruction",
        "move",
        "n/a",
        "na",
        "nan",
        "no instruction",
        "none",
        "null",
        "perform the task",
        "placeholder",
        "play",
        "record",
        "recording",
        "robot",
        "something",
        "task",
        "task desc",
        "task description",
        "tbd",
        "test",
        "test task",
        "testing",
        "todo",
        "unknown",
        "unlabeled",
        "up",
        "down",
        "untitled",
        "xxx",
    )
)
"""Instructions that say nothing: those of forge (`lint/config.py`), and similar ones."""

_NUMBERED = re.compile(r"(task|episode|demo|test)[ _-]?\d*")
_LENGTH = re.compile(
    r"(.*[/_])?(num_steps|n_steps|num_frames|n_frames|episode_length|episode_len|traj_length|traj_len)"
)


def decode_text(value: Any) -> str:
    """A text of a dataset, as a str of at most `MAX_CHARACTERS`."""
    data = value if isinstance(value, bytes) else str(value).encode(errors="replace")
    return data.decode(errors="replace")[:MAX_CHARACTERS]


def is_generic(text: str) -> bool:
    """Whether an instruction says nothing; an empty one is missing instead."""
    words = " ".join(text.lower().replace("_", " ").split()).strip(" .!\"'<>[](){}")
    return bool(text.strip()) and (words in GENERIC or _NUMBERED.fullmatch(words) is not None)


def instructions(episode: Episode, fields: Sequence[str]) -> list[list[str]]:
    """The different texts of each instruction field, in order of appearance."""
    found = []
    for path in fields:
        column: Any = episode.steps.get(path)
        if column is None:
            value = episode.metadata.get(path)
            found.append([] if value is None else [decode_text(value)])
            continue
        values = column.tolist()
        if values and values.count(values[0]) == len(values):
            values = values[:1]
        found.append([decode_text(value) for value in dict.fromkeys(values)])
    return found


def scalars(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata that fit in a table: numbers, flags, and texts, by `metadata/<name>`."""
    found: dict[str, Any] = {}
    for name, value in metadata.items():
        if isinstance(value, (bytes, str)):
            found[f"metadata/{name}"] = decode_text(value)
        elif isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.shape == ()):
            plain = value.item()
            found[f"metadata/{name}"] = decode_text(plain) if isinstance(plain, bytes) else plain
        elif isinstance(value, (bool, int, float)):
            found[f"metadata/{name}"] = value
    return found


def wrong_numbers(values: Mapping[str, Any], steps: int) -> int:
    """The count of numbers in the metadata that are NaN or infinite, or named like the length but different from it."""
    wrong = 0
    for name, value in values.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            is_length = _LENGTH.fullmatch(name) is not None and value not in (steps, steps - 1)
            wrong += is_length or not math.isfinite(value)
    return wrong
