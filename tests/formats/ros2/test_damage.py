"""Damaged and unusual bags: rejected with a reason, or refused in a line."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rosbags")
from ros2_bags import MAPPING, T0, Sent, compressed, joints, jpegs, opened, read, robot, write_bag, write_mcap

from rlds_beam.errors import UsageError

GAPS = """
reference: /joint_states
fields: {observation/x: {topic: /joint_states, field: position}}
episodes: {gap_s: 1}
"""


def spread(count: int = 5) -> list[Sent]:
    """Episodes of 10 joint states, 5 seconds apart."""
    return [joints(T0 + e * 5 * 10**9 + i * 10**7, "a", [10 * e + i]) for e in range(count) for i in range(10)]


def query(bag: Path, change: str, *values: Any) -> list[Any]:
    """Runs a statement in the database of a bag."""
    (path,) = bag.glob("*.db3")
    with contextlib.closing(sqlite3.connect(path)) as base, base:
        return base.execute(change, values).fetchall()


def test_a_recorder_that_crashed_costs_its_bag(tmp_path: Path) -> None:
    write_mcap(tmp_path / "bags" / "a.mcap", spread())
    path = write_mcap(tmp_path / "bags" / "b.mcap", spread())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    *good, bad = read(tmp_path / "bags", GAPS)
    assert [len(one) for one in good] == [10] * 5 and "mcap recover" in bad.faults[0].detail


def test_a_message_cut_short(tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "a", spread(2), "db3")
    ((data,),) = query(bag, "SELECT data FROM messages WHERE id = 15")
    query(bag, "UPDATE messages SET data = ? WHERE id = 15", data[:-20])
    first, second = read(bag, GAPS)
    assert not first.faults and "/joint_states: message" in second.faults[0].detail


def test_a_message_of_another_length(tmp_path: Path) -> None:
    sent = [*spread(1), joints(T0 + 2 * 10**8, "ab", [1, 2])]
    (episode,) = read(write_bag(tmp_path / "a", sent), GAPS)
    assert "observation/x has 2 values, but the first message has 1" in episode.faults[0].detail


def test_a_joint_that_disappears(tmp_path: Path) -> None:
    sent = [one for one in robot() if one.topic != "/leader"]
    sent += [joints(T0 + i * 10**8, ["a", "b", "cc" if i == 3 else "c"], [1, 2, 3], "/leader") for i in range(7)]
    (episode,) = read(write_bag(tmp_path / "a", sorted(sent, key=lambda one: one.time)), MAPPING)
    assert "it has c not; did you mean cc?" in episode.faults[0].detail


def test_images_of_another_kind(tmp_path: Path) -> None:
    image = jpegs(1)[0]
    sent = [compressed(T0 + i, image if i < 2 else b"\x89PNG....", "/c") for i in range(3)]
    (episode,) = read(write_bag(tmp_path / "a", sent), "reference: /c\nfields: {observation/i: {topic: /c}}")
    assert "a png image, but the first one is jpeg" in episode.faults[0].detail


def test_metadata_that_names_files_elsewhere(tmp_path: Path) -> None:
    """Only files next to the metadata are read."""
    write_mcap(tmp_path / "other.mcap", robot())
    bag = write_bag(tmp_path / "a", robot())
    content = {"rosbag2_bagfile_information": {"relative_file_paths": ["../other.mcap"]}}
    (bag / "metadata.yaml").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"a/other\.mcap cannot be read: No such file"):
        opened(bag, MAPPING)


def test_a_write_ahead_log(tmp_path: Path) -> None:
    (path,) = write_bag(tmp_path / "a", spread(1), "db3").glob("*.db3")
    Path(f"{path}-wal").write_bytes(b"x")
    with pytest.raises(UsageError, match="wal_checkpoint"):
        opened(path, GAPS)


def test_a_bag_without_definitions(tmp_path: Path) -> None:
    """Bags of older ROS versions define no types."""
    bag = write_bag(tmp_path / "a", spread(1), "db3")
    query(bag, "UPDATE schema SET schema_version = 3")
    (episode,) = read(bag, GAPS)
    assert len(episode) == 10


def test_unordered_and_equal_times(tmp_path: Path) -> None:
    """The order of the file does not matter, but of equal times the last one counts."""
    sent = [joints(T0 + i * 10**7, "a", [i]) for i in (3, 1, 2, 2, 0, 4)]
    sent[3] = joints(T0 + 2 * 10**7, "a", [22])
    (episode,) = read(write_mcap(tmp_path / "a.mcap", sent), GAPS)
    assert np.ravel(episode.steps["observation/x"]).tolist() == [0, 1, 22, 3, 4]  # type: ignore[arg-type]
