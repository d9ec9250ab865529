"""Instructions and metadata of an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Episode

MAX_CHARACTERS = 1_000
"""Texts in the table are cut after this many."""


def decode_text(value: Any) -> str:
    """A text of a dataset, as a str of at most `MAX_CHARACTERS`."""
    data = value if isinstance(value, bytes) else str(value).encode(errors="replace")
    return data.decode(errors="replace")[:MAX_CHARACTERS]


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
