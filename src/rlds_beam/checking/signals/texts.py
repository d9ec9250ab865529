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

_FILLERS = """
a an and any as at by for from in into is it its my no not of on or out over please put some that the then there these
this to up down with your here
"""
_RECORDING = """
batch bc collect collected collection data dataset default demo demonstrate demonstration demonstrations demos desc
description dummy empty episode episodes eval evaluation example examples experiment foo bar human instruction
instructions label language lang missing n na nan new none null number placeholder play policy record recorded recording
recordings rollout rollouts run sample session string tbd teleop teleoperate teleoperated teleoperation temp template
test testing text tests tmp todo training trajectory trial undefined unknown unlabeled unnamed unspecified untitled xxx
"""
_ROBOT = """
action actions agent arm arms robot robotic robots something anything somewhere stuff thing things object objects
manipulate manipulation task tasks job work goal command
"""
_VERBS = """
carry complete do does doing execute finish go grab grasp hold lift make move moving perform pick picking pickup place
placing pull push pushing reach release start take try use
"""
_GENERIC = frozenset(("", *_FILLERS.split(), *_RECORDING.split(), *_ROBOT.split(), *_VERBS.split()))  # "" is a number
"""Words that say nothing about one task: those of forge's list (`lint/config.py`), and similar ones."""

_DIRECTIONS = frozenset(f"{verb} {way}" for verb in ("go", "move") for way in ("up", "down", "in", "out", "there"))
"""Instructions that are specific as a whole."""

_WORD = re.compile(r"[^\W_]+")
_LENGTH = re.compile(
    r"(.*[/_])?(num_steps|n_steps|num_frames|n_frames|episode_length|episode_len|traj_length|traj_len)"
)


def decode_text(value: Any) -> str:
    """A text of a dataset, as a str of at most `MAX_CHARACTERS`."""
    data = value if isinstance(value, bytes) else str(value).encode(errors="replace")
    return data.decode(errors="replace")[:MAX_CHARACTERS]


def is_generic(text: str) -> bool:
    """Whether an instruction says nothing: no word of it belongs to one task. An empty one is missing instead."""
    words = [word.rstrip("0123456789") for word in _WORD.findall(text.lower().replace("n/a", "na"))]
    return bool(text.strip()) and " ".join(words) not in _DIRECTIONS and _GENERIC.issuperset(words)


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
