"""Idle ranges, compared with openpi's compute_droid_nonidle_ranges.py."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from edits import FEW, edited, with_actions
from hypothesis import given
from hypothesis import strategies as st

import rlds_beam
from rlds_beam import connectors as c
from rlds_beam.connectors.cleaning.idle import IdleRule
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode, write_dataset


def openpi(velocities: Any, min_idle: int, min_moving: int) -> list[tuple[int, int]]:
    """Finds runs of idle steps, and long enough runs between them, step by step."""
    idle = [
        i > 0 and all(abs(a - b) < 1e-3 for a, b in zip(v, velocities[i - 1], strict=True))
        for i, v in enumerate(velocities)
    ]
    keep = [True] * len(idle)
    for start, stop in runs(idle):
        if stop - start >= min_idle:
            keep[start:stop] = [False] * (stop - start)
    return [(start, stop) for start, stop in runs(keep) if stop - start >= min_moving]


def runs(flags: list[bool]) -> list[tuple[int, int]]:
    found, start = [], None
    for i, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = i
        elif not flag and start is not None:
            found.append((start, i))
            start = None
    return found


@FEW
@given(st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.0]), min_size=1, max_size=60), st.integers(1, 4), st.integers(1, 6))
def test_idle_ranges_equal_openpis(moves, min_idle, min_moving):
    velocities = np.cumsum(moves)[:, None] * np.ones(2)
    episode = with_actions(np.zeros((len(moves), 2)), velocity=velocities, mark=np.arange(len(moves)))
    rule = IdleRule("velocity", min_idle=min_idle, min_moving=min_moving)
    expected = openpi(velocities.tolist(), min_idle, min_moving)
    assert rule.ranges(episode) == expected
    piece = c.DropIdleSteps("velocity", min_idle=min_idle, min_moving=min_moving, trim=1)
    parts = [part.steps["mark"].tolist() for part in edited(piece, episode)]
    assert parts == [list(range(start, stop - 1)) for start, stop in expected if stop - 1 > start]
    (marked,) = edited(c.DropIdleSteps("velocity", 1e-3, min_idle, min_moving, trim=1, mode="mark"), episode)
    assert np.flatnonzero(marked.steps["keep"]).tolist() == [i for part in parts for i in part]


def test_ranges_of_a_file_are_kept_as_in_openpi(tmp_path):
    metadata = {"episode_metadata/recording_folderpath": b"gs://a", "episode_metadata/file_path": b"b.h5"}
    episode = make_episode(20, metadata=metadata, columns={"mark": np.arange(20)})
    content = {"keep_ranges": {"gs://a--b.h5": [[2, 9], [12, 40]]}, "metadata": {"filter_last_n_in_ranges": 3}}
    (tmp_path / "new.json").write_text(json.dumps(content))
    (tmp_path / "old.json").write_text(json.dumps({"gs://a--b.h5": [[2, 9], [12, 40]]}))
    marks = {
        name: [part.steps["mark"].tolist() for part in edited(c.KeepRanges(str(tmp_path / name)), episode)]
        for name in ("new.json", "old.json")
    }
    assert marks["new.json"] == [list(range(2, 6)), list(range(12, 17))]
    assert marks["old.json"] == [list(range(2, 9)), list(range(12, 20))]
    first, second = edited(c.KeepRanges(str(tmp_path / "old.json")), episode)
    assert first.steps["is_first"][0] and first.steps["is_last"][-1] and not first.steps["is_terminal"][-1]
    assert second.steps["is_first"][0] and second.steps["is_terminal"][-1]
    other = episode.replace(metadata={**metadata, "episode_metadata/file_path": b"c.h5"})
    assert edited(c.KeepRanges(str(tmp_path / "new.json")), other) == []
    assert edited(c.KeepRanges(str(tmp_path / "new.json"), missing="keep"), other) == [other]
    with pytest.raises(UsageError, match=r"has no episode 'gs://a--c.h5'"):
        edited(c.KeepRanges(str(tmp_path / "new.json"), missing="fail"), other)
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(UsageError, match="expected openpi's JSON format"):
        c.KeepRanges(str(tmp_path / "bad.json"))


def test_ranges_are_written_as_openpi_writes_them(tmp_path):
    moving = np.r_[np.arange(20), np.full(9, 19), np.arange(20)][:, None] * np.ones(2)
    records = [
        make_episode(49, seed=i, columns={"velocity": moving.astype(np.float32)}, metadata={"path": f"{i}.h5"})
        for i in range(3)
    ]
    path = write_dataset(tmp_path, records, shards=2)
    options = {"to": "keep_ranges", "velocity": "velocity", "shards": 2}
    done = rlds_beam.convert(path, tmp_path / "out", episode_name="{episode_metadata/path}", **options)
    assert done.report.items_written == 3
    content = json.loads((tmp_path / "out/keep_ranges.json").read_text())
    expected = openpi(moving.tolist(), 7, 16)
    assert expected == [(0, 20), (29, 49)]
    assert content["metadata"] == {"filter_last_n_in_ranges": 10}
    assert content["keep_ranges"] == {f"{i}.h5": [[0, 20], [29, 49]] for i in range(3)}
    piece = c.KeepRanges(str(tmp_path / "out/keep_ranges.json"), "{episode_metadata/path}")
    assert [len(e) for e in edited(piece, records[0].replace(metadata={"episode_metadata/path": b"0.h5"}))] == [10, 10]
    with pytest.raises(UsageError, match=r"--velocity=speed: there is no such step field"):
        rlds_beam.convert(path, tmp_path / "no", to="keep_ranges", velocity="speed")
    with pytest.raises(UsageError, match=r"two episodes are named ''"):
        rlds_beam.convert(path, tmp_path / "same", episode_name="", **options)
