"""Records of every kind, and ways to damage their files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rlds_beam.encoding.tfds.rlds_dataset import encode_example
from rlds_beam.testing import BREAKABLE, make_episode

KINDS = ("sound", *BREAKABLE, "empty_record", "text", "torn_example", "missing_field", "unequal_lengths", "wrong_shape")


@dataclasses.dataclass(frozen=True)
class Made:
    """One record of a generated dataset.

    Attributes:
      id: the first number of every observation.
      payload: the bytes.
      sound: whether it breaks no rule on its own (it may still be a duplicate, or damaged later).
      steps: the number of steps.
    """

    id: int
    payload: bytes
    sound: bool
    steps: int


def make_record(kind: str, id: int, steps: int, nested: bool) -> Made:
    """Makes a record; `id` is the first number of every observation."""
    breaks = [kind] if kind in BREAKABLE else []
    inner = ("unexpected_is_first", "unexpected_is_last", "terminal_not_last", "unequal_lengths")
    if kind in (*inner, "non_finite", "discount_out_of_range"):  # the last step's values are void and not checked
        steps = max(steps, 3)
    observation: Any = {"id": 2, "inner/more": 1} if nested else 3
    episode = make_episode(steps, seed=id, observation=observation, breaks=breaks)
    path = "observation/id" if nested else "observation"
    marked = episode.steps[path].copy()
    marked[:, 0] = id
    columns = {**episode.steps, path: marked}
    if kind == "missing_field":
        del columns["reward"]
    if kind == "unequal_lengths":
        columns["action"] = columns["action"][:-1]
    if kind == "wrong_shape":
        columns["action"] = np.zeros((steps, 5), np.float32)
    payload = encode_example(episode.replace(steps=columns))
    if kind == "empty_record":
        payload = b""
    if kind == "text":
        payload = b"no example %d" % id
    if kind == "torn_example":
        payload = payload[:-3]
    return Made(id, payload, kind == "sound", steps)


@st.composite
def records(draw: Any) -> tuple[list[Made], bool]:
    nested = draw(st.booleans())
    kinds = draw(st.lists(st.sampled_from(("sound",) * 12 + KINDS), min_size=1, max_size=14))
    lengths = draw(st.lists(st.integers(1, 6), min_size=len(kinds), max_size=len(kinds)))
    made = [make_record(kind, i + 1, n, nested) for i, (kind, n) in enumerate(zip(kinds, lengths, strict=True))]
    copies = draw(st.lists(st.integers(0, len(made) - 1), max_size=3))
    return made + [made[i] for i in copies], nested


def flip(at: int) -> Callable[[bytes, list[int]], bytes]:
    def apply(data: bytes, offsets: list[int]) -> bytes:
        where = at % max(1, len(data))
        return data[:where] + bytes([data[where] ^ 0x55]) + data[where + 1 :] if data else data

    return apply


def cut(at: int) -> Callable[[bytes, list[int]], bytes]:
    return lambda data, offsets: data[: at % (len(data) + 1)]


def insert(at: int, junk: bytes) -> Callable[[bytes, list[int]], bytes]:
    def apply(data: bytes, offsets: list[int]) -> bytes:
        where = offsets[at % len(offsets)]
        return data[:where] + junk + data[where:]

    return apply


def drop(at: int) -> Callable[[bytes, list[int]], bytes]:
    """Removes a whole record: only the count is wrong."""

    def apply(data: bytes, offsets: list[int]) -> bytes:
        if len(offsets) < 2:
            return data
        i = at % (len(offsets) - 1)
        return data[: offsets[i]] + data[offsets[i + 1] :]

    return apply
