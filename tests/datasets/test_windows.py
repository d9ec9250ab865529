"""Windows of steps against a loop over the steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam.datasets.windows import make_offsets, window
from rlds_beam.errors import UsageError

PATHS = ["observation/state", "observation/image", "observations", "action", "reward"]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(-4, 4), st.integers(1, 5), st.data())
def test_windows_stay_in_their_episode(lengths: list[int], first: int, size: int, data: Any) -> None:
    starts = np.concatenate([[0], np.cumsum(lengths)])
    total, offsets = int(starts[-1]), np.arange(first, first + size)
    rows = np.array(data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=10)))
    found, padding = window(rows, starts, offsets)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    for i, row in enumerate(rows.tolist()):
        mine = np.flatnonzero(episode == episode[row])
        for j, offset in enumerate(offsets.tolist()):
            inside = row + offset in mine
            assert padding[i, j] == (not inside)
            assert found[i, j] == (row + offset if inside else mine[0] if offset < 0 else mine[-1])


def test_history_is_for_observations_and_chunk_for_actions() -> None:
    found = make_offsets(3, 4, PATHS)
    assert {path: offsets.tolist() for path, offsets in found.items()} == {
        "observation/state": [-2, -1, 0],
        "observation/image": [-2, -1, 0],
        "action": [0, 1, 2, 3],
    }
    by_field = make_offsets({"reward": 2}, {"observations": 1}, PATHS)
    assert {path: offsets.tolist() for path, offsets in by_field.items()} == {"reward": [-1, 0], "observations": [0]}
    assert list(make_offsets(2, None, ["observation.state", "action"])) == ["observation.state"]
    assert make_offsets(None, None, PATHS) == {}


@pytest.mark.parametrize(
    ("history", "chunk", "said"),
    [
        (0, None, "history=0: expected a number of steps, 1 or more"),
        (None, 1.5, "chunk=1.5"),
        ({"observation/stat": 2}, None, "there is no field observation/stat; did you mean observation/state"),
        ({"action": 2}, 2, "action has both a history and a chunk"),
    ],
)
def test_windows_that_make_no_sense(history: Any, chunk: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_offsets(history, chunk, PATHS)


def test_a_number_needs_fields_of_that_name() -> None:
    with pytest.raises(UsageError, match=r"there is no field action; name the fields: chunk=\{'field': 8\}"):
        make_offsets(None, 8, ["obs", "actions"])


def test_a_field_that_is_named_like_padding_is_not_overwritten() -> None:
    with pytest.raises(UsageError, match="there is also a field action_is_pad"):
        make_offsets(None, {"action": 2}, ["action", "action_is_pad"])
