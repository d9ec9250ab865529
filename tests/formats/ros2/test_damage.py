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


def test_a_damaged_chunk_costs_its_episodes(tmp_path: Path) -> None:
    from mcap.writer import CompressionType

    path = write_mcap(tmp_path / "a.mcap", spread(), chunk_size=600, compression=CompressionType.NONE)
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 8] ^= 0xFF
    path.write_bytes(data)
    episodes = read(path, GAPS)
    bad = [one for one in episodes if one.faults]
    assert len(episodes) == 5 and 1 <= len(bad) <= 2
    assert "crc validation failed" in bad[0].faults[0].detail


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


def test_a_clock_that_jumps(tmp_path: Path) -> None:
    """A message of 1970 does not make a step for each moment since then."""
    sent = [joints(1, "a", [0]), *spread(1)]
    mapping = "rate: 10\nfields: {observation/x: {topic: /joint_states, field: position}}"
    (episode,) = read(write_bag(tmp_path / "a", sent), mapping)
    assert "more than 10,000,000 steps" in episode.faults[0].detail


@pytest.mark.parametrize("name", ["..", "a\0b.mcap", "", "x.txt", 5])
def test_metadata_that_names_no_bag_file(tmp_path: Path, name: object) -> None:
    bag = write_bag(tmp_path / "a", robot())
    (bag / "metadata.yaml").write_text(json.dumps({"rosbag2_bagfile_information": {"relative_file_paths": [name]}}))
    with pytest.raises(UsageError, match=r"metadata\.yaml names"):
        opened(bag, MAPPING)


def test_metadata_that_names_files_elsewhere(tmp_path: Path) -> None:
    """Only files next to the metadata are read."""
    write_mcap(tmp_path / "other.mcap", robot())
    bag = write_bag(tmp_path / "a", robot())
    content = {"rosbag2_bagfile_information": {"relative_file_paths": ["../other.mcap"]}}
    (bag / "metadata.yaml").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"a/other\.mcap is missing"):
        opened(bag, MAPPING)


def test_a_missing_file_of_a_bag(tmp_path: Path) -> None:
    write_bag(tmp_path / "bags" / "a", robot())
    (file,) = write_bag(tmp_path / "bags" / "b", robot()).glob("*.mcap")
    file.unlink()
    first, second = read(tmp_path / "bags", MAPPING)
    assert not first.faults and "b.mcap is missing" in second.faults[0].detail


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


def test_empty_bags(tmp_path: Path) -> None:
    write_bag(tmp_path / "bags" / "a", spread(1))
    write_bag(tmp_path / "bags" / "b", [])
    (tmp_path / "bags" / "c.mcap").write_bytes(b"")
    (tmp_path / "bags" / "d.db3").write_bytes(b"")
    good, *others = read(tmp_path / "bags", GAPS.replace("episodes: {gap_s: 1}", ""))
    assert len(good) == 10 and all(one.faults for one in others) and len(others) == 3


def test_unordered_and_equal_times(tmp_path: Path) -> None:
    """The order of the file does not matter, but of equal times the last one counts."""
    sent = [joints(T0 + i * 10**7, "a", [i]) for i in (3, 1, 2, 2, 0, 4)]
    sent[3] = joints(T0 + 2 * 10**7, "a", [22])
    (episode,) = read(write_mcap(tmp_path / "a.mcap", sent), GAPS)
    assert np.ravel(episode.steps["observation/x"]).tolist() == [0, 1, 22, 3, 4]  # type: ignore[arg-type]


def test_a_file_without_topics_says_so(tmp_path: Path) -> None:
    bag = write_mcap(tmp_path / "empty.mcap", [])
    with pytest.raises(UsageError, match=r"no bag has the topic /camera/compressed; it has no topics"):
        opened(bag, MAPPING)
