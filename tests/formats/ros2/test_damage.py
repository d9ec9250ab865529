"""Truncated, damaged, and hostile bags: rejected with a reason, or refused in a line."""

from __future__ import annotations

import contextlib
import sqlite3
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("rosbags")
from ros2_bags import (
    JOINTS,
    MAPPING,
    T0,
    Sent,
    compressed,
    header,
    joints,
    jpegs,
    opened,
    read,
    robot,
    text,
    write_bag,
    write_mcap,
)

from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError
from rlds_beam.formats.ros2.mcap import McapFile
from rlds_beam.formats.ros2.messages import BagFile
from rlds_beam.formats.ros2.sqlite import SqliteFile

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
        base.execute("PRAGMA writable_schema=ON")
        return base.execute(change, values).fetchall()


def read_if_possible(path: Path) -> list[Episode]:
    """The episodes; none if the bag is refused in one line."""
    try:
        return read(path, GAPS)
    except UsageError as error:
        if "\n" in str(error):
            raise
        return []


def test_a_recorder_that_crashed(tmp_path: Path) -> None:
    """Episodes before the damage are read; the one that it hits is rejected, also if it is the only one."""
    path = write_mcap(tmp_path / "a.mcap", robot(20), chunk_size=2000)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (episode,) = read(path, MAPPING)
    assert "is cut short" in episode.faults[0].detail
    path = write_mcap(tmp_path / "a.mcap", spread(), chunk_size=600)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 5 // 8])
    episodes = read(path, GAPS)
    assert [len(one) for one in episodes if not one.faults] == [10] * (len(episodes) - 1) and len(episodes) > 2
    assert "cut short" in episodes[-1].faults[0].detail and "mcap recover" in episodes[-1].faults[0].detail


def test_a_damaged_chunk_costs_its_episodes(tmp_path: Path) -> None:
    from mcap.writer import CompressionType

    path = write_mcap(tmp_path / "a.mcap", spread(), chunk_size=600, compression=CompressionType.NONE)
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 8] ^= 0xFF
    path.write_bytes(data)
    episodes = read(path, GAPS)
    bad = [one for one in episodes if one.faults]
    assert len(episodes) == 5 and 1 <= len(bad) <= 2
    assert "has a wrong checksum" in bad[0].faults[0].detail


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE topics SET name = CAST(x'ff80' AS TEXT)",
        "UPDATE topics SET type = CAST(x'ff80' AS TEXT)",
        "UPDATE messages SET timestamp = CAST(x'ff80' AS TEXT)",
        "UPDATE sqlite_master SET sql = CAST(x'ff80' AS TEXT) WHERE name = 'messages'",
        "UPDATE sqlite_master SET name = CAST(x'ff80' AS TEXT), sql = 'CREATE TABLE' WHERE name = 'messages'",
    ],
)
def test_text_of_a_database_that_is_not_utf8(tmp_path: Path, change: str) -> None:
    bag = write_bag(tmp_path / "bag", spread(), "db3")
    query(bag, change)
    with contextlib.suppress(UsageError):
        assert all(one.faults for one in read(bag, GAPS))


def test_a_claim_of_terabytes_in_a_chunk(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", spread())
    data = bytearray(path.read_bytes())
    at = data.index(b"\x06", 60)
    while data[at + 9 + 28 : at + 9 + 36] != b"\x04\0\0\0zstd":
        at = data.index(b"\x06", at + 1)
    data[at + 9 + 16 : at + 9 + 24] = struct.pack("<Q", 1 << 42)
    path.write_bytes(data)
    with pytest.raises(UsageError, match="4,398,046,511,104 bytes; at most"):
        opened(path, GAPS)
    data[at + 9 + 16 : at + 9 + 24] = struct.pack("<Q", 200 << 20)
    path.write_bytes(data)
    with pytest.raises(UsageError, match="claims 209,715,200 bytes, but the file stores only"):
        opened(path, GAPS)


@pytest.mark.parametrize("at", [4, 8, 12, 16, 24, 28, 36, 40, 52])
def test_absurd_lengths_in_a_message(tmp_path: Path, at: int) -> None:
    bag = write_bag(tmp_path / "a", spread(2), "db3")
    ((data,),) = query(bag, "SELECT data FROM messages WHERE id = 15")
    query(bag, "UPDATE messages SET data = ? WHERE id = 15", data[:at] + b"\xff\xff\xff\x7f" + data[at + 4 :])
    first, second = read(bag, GAPS)
    assert not first.faults
    assert not second.faults or "/joint_states: message" in second.faults[0].detail


def test_a_large_value_in_many_steps(tmp_path: Path) -> None:
    """A rate and two messages give any number of steps, which all take the first value."""
    sent = [text(T0, "x" * (1 << 20)), joints(T0, "a", [1]), joints(T0 + 10**12, "a", [2])]
    mapping = """
rate: 100
max_age_s: null
fields:
  language_instruction: {topic: /task, field: data}
  observation/x: {topic: /joint_states, field: position}
"""
    (episode,) = read(write_mcap(tmp_path / "a.mcap", sent), mapping)
    assert "/task: the values of 100,001 steps are larger than 4 GB" in episode.faults[0].detail


def test_an_episode_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of a kilobyte may hold many megabytes of messages."""
    monkeypatch.setattr("rlds_beam.formats.ros2.episodes.MAX_EPISODE_BYTES", 3000)
    sent = [joints(T0 + i * 10**8, ["x" * 200], [i]) for i in range(60)]
    episodes = read(write_mcap(tmp_path / "a.mcap", [*sent[:9], *sent[29:]]), GAPS)
    assert len(episodes[0]) == 9 and "its messages are larger than" in episodes[1].faults[0].detail


def test_a_text_without_its_end(tmp_path: Path) -> None:
    """ROS drops the last byte of a text, whatever it is."""
    bag = write_bag(tmp_path / "a", [text(T0, "pick")], "db3")
    ((data,),) = query(bag, "SELECT data FROM messages")
    query(bag, "UPDATE messages SET data = ?", data.replace(b"k\0", b"kk"))
    (episode,) = read(bag, "reference: /task\nfields: {language_instruction: {topic: /task, field: data}}")
    assert "a text in it has no end" in episode.faults[0].detail


def test_a_message_of_another_length(tmp_path: Path) -> None:
    sent = [*spread(1), joints(T0 + 2 * 10**8, "ab", [1, 2])]
    (episode,) = read(write_bag(tmp_path / "a", sent), GAPS)
    assert "observation/x has 2 values, but the first message has 1" in episode.faults[0].detail


def test_a_joint_that_disappears(tmp_path: Path) -> None:
    sent = [one for one in robot() if one.topic != "/leader"]
    sent += [joints(T0 + i * 10**8, ["a", "b", "cc" if i == 3 else "c"], [1, 2, 3], "/leader") for i in range(7)]
    (episode,) = read(write_bag(tmp_path / "a", sorted(sent, key=lambda one: one.time)), MAPPING)
    assert "it has c not; did you mean cc?" in episode.faults[0].detail


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "..", "a/../../b.mcap", "a\0b.mcap", "", "x.txt", 5]
)
def test_metadata_that_names_other_files(tmp_path: Path, name: object) -> None:
    import json

    bag = write_bag(tmp_path / "a", robot())
    path = bag / "metadata.yaml"
    path.write_text(json.dumps({"rosbag2_bagfile_information": {"relative_file_paths": [name]}}))
    with pytest.raises(UsageError, match=r"metadata\.yaml"):
        opened(bag, MAPPING)


def test_a_missing_file_of_a_bag(tmp_path: Path) -> None:
    write_bag(tmp_path / "bags" / "a", robot())
    (file,) = write_bag(tmp_path / "bags" / "b", robot()).glob("*.mcap")
    file.unlink()
    first, second = read(tmp_path / "bags", MAPPING)
    assert not first.faults and "b.mcap is missing" in second.faults[0].detail


def test_databases_that_are_no_bags(tmp_path: Path) -> None:
    path = tmp_path / "a.db3"
    views = """
        CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT);
        CREATE VIEW messages AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n)
          SELECT id, 1 AS topic_id, id AS timestamp, x'00' AS data FROM n;
    """
    computed = """
        CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT);
        CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INT, timestamp INT, data AS (zeroblob(900000000)));
    """
    virtual = """
        CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT);
        PRAGMA writable_schema=ON;
        INSERT INTO sqlite_master
          VALUES ('table', 'messages', 'messages', 0, 'CREATE VIRTUAL TABLE messages USING module(id)');
    """
    scripts = (
        ("", "no table"),
        (views, "no table messages"),
        (computed, "no column data"),
        (virtual, "no table messages"),
    )
    for script, said in scripts:
        path.unlink(missing_ok=True)
        base = sqlite3.connect(path)
        base.executescript(script)
        base.close()
        with pytest.raises(UsageError, match=said):
            opened(path, GAPS)
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(UsageError, match="cannot be read"):
        opened(path, GAPS)


def test_a_database_whose_pages_are_linked_many_times(tmp_path: Path) -> None:
    """Six pages that link to the next one forty times each: 4,096,000,000 rows of a kilobyte."""
    (path,) = write_bag(tmp_path / "a", [text(T0, "x")], "db3").glob("*.db3")
    with contextlib.closing(sqlite3.connect(path)) as base:
        (size,) = base.execute("PRAGMA page_size").fetchone()
        (root,) = base.execute("SELECT rootpage FROM sqlite_master WHERE name = 'messages'").fetchone()
    data = bytearray(path.read_bytes())
    pages = len(data) // size
    last = data[(root - 1) * size : root * size]
    for i in range(6):
        cells = struct.pack(">IB", pages + 1 + i, 1) * 40
        page = struct.pack(">BHHHBI", 5, 0, 40, size - len(cells), 0, pages + 1 + i)
        page += b"".join(struct.pack(">H", size - len(cells) + 5 * j) for j in range(40))
        page += bytes(size - len(page) - len(cells)) + cells
        if i:
            data += page
        else:
            data[(root - 1) * size : root * size] = page
    data += last
    data[28:32] = struct.pack(">I", len(data) // size)
    path.write_bytes(data)
    with pytest.raises(UsageError, match="more rows than the file has bytes for"):
        opened(path, "reference: /task\nfields: {language_instruction: {topic: /task, field: data}}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE messages SET topic_id = 77 WHERE id = 15", "1 messages are of no topic"),
        ("UPDATE messages SET timestamp = 1e30 WHERE id = 15", "a message has no time"),
        ("UPDATE messages SET timestamp = -1 WHERE id = 15", "a message has no time"),
    ],
)
def test_a_message_that_no_query_would_find(tmp_path: Path, change: str, said: str) -> None:
    bag = write_bag(tmp_path / "a", spread(2), "db3")
    query(bag, change)
    with pytest.raises(UsageError, match=said):
        opened(bag, GAPS)


def test_a_write_ahead_log(tmp_path: Path) -> None:
    (path,) = write_bag(tmp_path / "a", spread(1), "db3").glob("*.db3")
    Path(f"{path}-wal").write_bytes(b"x")
    with pytest.raises(UsageError, match="wal_checkpoint"):
        opened(path, GAPS)


def test_an_unfinished_transaction(tmp_path: Path) -> None:
    """The advice completes the database."""
    (path,) = write_bag(tmp_path / "a", spread(1), "db3").glob("*.db3")
    Path(f"{path}-journal").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"-journal .*'SELECT count\(\*\) FROM messages'"):
        opened(path, GAPS)
    query(path.parent, "SELECT count(*) FROM messages")
    (episode,) = read(path, GAPS)
    assert len(episode) == 10


@pytest.mark.parametrize("claimed", [1 << 40, 1 << 20, 3, None])
def test_a_compressed_message_of_another_size(tmp_path: Path, claimed: int | None) -> None:
    """Neither what a message claims nor what it holds is allocated beyond the limit."""
    import imagecodecs

    bag = write_bag(tmp_path / "a", spread(2), "db3", compression="MESSAGE")
    wrong = imagecodecs.zstd_encode(bytes(1 << 22))
    if claimed is None:
        wrong = wrong[:4] + b"\0\x58" + wrong[9:]  # no size, but a window
    else:
        wrong = wrong[:4] + b"\xe0" + struct.pack("<Q", claimed) + wrong[9:]
    query(bag, "UPDATE messages SET data = ? WHERE id = 15", wrong)
    first, second = read(bag, GAPS)
    assert not first.faults
    said = {None: "not zstd with a known size", 1 << 40: "claims 1,099,511,627,776 bytes; at most"}
    assert said.get(claimed, "cannot be decompressed") in second.faults[0].detail


@pytest.mark.parametrize("use_chunking", [True, False])
def test_a_corrupt_length_without_a_summary(tmp_path: Path, use_chunking: bool) -> None:
    """What was recorded before it is read; the rest is one rejected episode."""
    path = write_mcap(tmp_path / "a.mcap", spread(), chunk_size=600 if use_chunking else 0)
    data = bytearray(path.read_bytes())
    kind = b"\x06" if use_chunking else b"\x05"
    places = [at for at in _records(data) if data[at : at + 1] == kind]
    at = places[len(places) * 5 // 8]
    data[at + 1 : at + 9] = b"\xff" * 8
    path.write_bytes(data[:-30])
    *good, last = read(path, GAPS)
    assert len(good) > 1 and all(len(one) == 10 and not one.faults for one in good)
    assert "goes beyond" in last.faults[0].detail


def test_zeros_after_the_last_record(tmp_path: Path) -> None:
    """File systems leave them after a loss of power."""
    path = write_mcap(tmp_path / "a.mcap", spread(), chunk_size=600)
    data = path.read_bytes()
    path.write_bytes(data[: [*_records(data)][12]] + bytes(100_000))
    *good, last = read(path, GAPS)
    assert good and "no record begins there" in last.faults[0].detail


def _records(data: bytes | bytearray) -> list[int]:
    """Where the records of an MCAP file begin."""
    at, found = 8, []
    while at < len(data) - 8:
        found.append(at)
        at += 9 + int(struct.unpack_from("<Q", data, at + 1)[0])
    return found


def test_recognition_of_metadata_that_is_none(tmp_path: Path) -> None:
    from rlds_beam.formats.recognition import recognize

    bag = write_bag(tmp_path / "a", spread(1))
    assert str(recognize(bag)) == "ros2 (metadata.yaml)"
    with (bag / "metadata.yaml").open("r+b") as file:
        file.truncate(65 << 20)
    with pytest.raises(UsageError, match="larger than 64 MB"):
        recognize(bag)
    (bag / "metadata.yaml").unlink()
    (bag / "metadata.yaml").mkdir()
    with pytest.raises(UsageError, match=r"cannot be recognized: .*is not a regular file"):
        recognize(bag)


@pytest.mark.parametrize(
    "definition", ["float64[] position\nfoo/Bar x", "int32", "import os\n", "float64 a'); exit(1)\n", ""]
)
def test_definitions_that_do_not_parse(tmp_path: Path, definition: str) -> None:
    bag = write_bag(tmp_path / "a", spread(1), "db3")
    query(bag, "UPDATE message_definitions SET encoded_message_definition = ?", definition)
    assert len(read_if_possible(bag)) <= 1


def test_types_of_a_distribution(tmp_path: Path) -> None:
    """Bags of older ROS versions define no types."""
    bag = write_bag(tmp_path / "a", spread(1), "db3")
    query(bag, "DROP TABLE message_definitions")
    (episode,) = read(bag, GAPS, ros_distro="foxy")
    assert len(episode) == 10
    with pytest.raises(UsageError, match="did you mean humble"):
        opened(bag, GAPS, ros_distro="humbel")


def test_empty_bags(tmp_path: Path) -> None:
    write_bag(tmp_path / "bags" / "a", spread(1))
    write_bag(tmp_path / "bags" / "b", [])
    (tmp_path / "bags" / "c.mcap").write_bytes(b"")
    (tmp_path / "bags" / "d.db3").write_bytes(b"")
    good, *others = read(tmp_path / "bags", GAPS.replace("episodes: {gap_s: 1}", ""))
    assert len(good) == 10 and all(one.faults for one in others) and len(others) == 3


def test_images_of_another_kind(tmp_path: Path) -> None:
    image = jpegs(1)[0]
    sent = [compressed(T0 + i, image if i < 2 else b"\x89PNG....", "/c") for i in range(3)]
    (episode,) = read(write_bag(tmp_path / "a", sent), "reference: /c\nfields: {observation/i: {topic: /c}}")
    assert "a png image, but the first one is jpeg" in episode.faults[0].detail


def test_unordered_and_equal_times(tmp_path: Path) -> None:
    """The order of the file does not matter, but of equal times the last one counts."""
    sent = [joints(T0 + i * 10**7, "a", [i]) for i in (3, 1, 2, 2, 0, 4)]
    sent[3] = joints(T0 + 2 * 10**7, "a", [22])
    (episode,) = read(write_mcap(tmp_path / "a.mcap", sent), GAPS)
    assert np.ravel(episode.steps["observation/x"]).tolist() == [0, 1, 22, 3, 4]  # type: ignore[arg-type]


@pytest.mark.parametrize("storage", ["mcap", "db3"])
@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=12), st.sampled_from([1, 60, 100, 100_000]))
def test_the_last_message_before_a_time(storage: str, offsets: list[int], chunk_size: int) -> None:
    sent = [text(T0 + at, str(i)) for i, at in enumerate(offsets)]
    with tempfile.TemporaryDirectory() as directory:
        if storage == "mcap":
            file: BagFile = McapFile(str(write_mcap(Path(directory) / "a.mcap", sent, chunk_size=chunk_size)))
        else:
            file = SqliteFile(str(*write_bag(Path(directory) / "a", sent, "db3").glob("*.db3")))
        for time in range(T0, T0 + 7):
            earlier = [one.time for one in sent if one.time < time]
            assert file.last_time("/task", time) == max(earlier, default=None)
        file.close()


def with_summary(data: bytes, change: Callable[[list[tuple[int, bytes]]], None]) -> bytes:
    """An MCAP file whose summary was changed, as records (kind, content), and has no checksum."""
    start, _, _ = struct.unpack_from("<QQI", data, len(data) - 28)
    at, records = start, []
    while data[at] != 2:
        kind, length = struct.unpack_from("<BQ", data, at)
        records.append((kind, data[at + 9 : at + 9 + length]))
        at += 9 + length
    change(records)
    chunks = sum(kind == 8 for kind, _ in records)
    summary = b""
    for kind, content in records:
        if kind == 11:
            content = content[:22] + struct.pack("<I", chunks) + content[26:]
        if kind != 14:  # an offset in the summary
            summary += struct.pack("<BQ", kind, len(content)) + content
    return data[:start] + summary + struct.pack("<BQQQI", 2, 20, start, 0, 0) + data[-8:]


def repeat_a_chunk(records: list[tuple[int, bytes]]) -> None:
    chunks = [record for record in records if record[0] == 8]
    records += chunks[1:2] * 1000


def overlap_chunks(records: list[tuple[int, bytes]]) -> None:
    (at, content), *_ = [(i, content) for i, (kind, content) in enumerate(records) if kind == 8]
    records[at] = 8, content[:24] + struct.pack("<Q", struct.unpack_from("<Q", content, 24)[0] + 1) + content[32:]


def share_message_indexes(records: list[tuple[int, bytes]]) -> None:
    chunks = [i for i, (kind, _) in enumerate(records) if kind == 8]
    first = records[chunks[0]][1][32:46]
    for i in chunks:
        records[i] = 8, records[i][1][:32] + first + records[i][1][46:]


def forget_a_channel(records: list[tuple[int, bytes]]) -> None:
    records[:] = [record for record in records if record[0] != 4]
    records.append((4, struct.pack("<HHI2sI3sI", 77, 1, 2, b"/x", 3, b"cdr", 0)))


def forget_what_is_in_a_chunk(records: list[tuple[int, bytes]]) -> None:
    for i, (kind, content) in enumerate(records):
        if kind == 8:
            records[i] = 8, content[:32] + struct.pack("<I", 10) + b"\x01\0" + b"\xff" * 8 + content[46:]


@pytest.mark.parametrize(
    "change", [repeat_a_chunk, overlap_chunks, share_message_indexes, forget_a_channel, forget_what_is_in_a_chunk]
)
def test_a_summary_that_does_not_describe_the_file(tmp_path: Path, change: Any) -> None:
    """The file is scanned instead: each message is read once."""
    sent = spread()
    path = write_mcap(tmp_path / "a.mcap", sent, chunk_size=600)
    path.write_bytes(with_summary(path.read_bytes(), lambda records: None))
    whole = read(path, GAPS)
    path.write_bytes(with_summary(path.read_bytes(), change))
    file = McapFile(str(path))
    assert file.times("/joint_states").tolist() == [one.time for one in sent]
    assert [one.time for one in file.messages(["/joint_states"], 0, 1 << 63)] == [one.time for one in sent]
    file.close()
    episodes = read(path, GAPS)
    assert [one.steps["observation/x"].tolist() for one in episodes] == [  # type: ignore[union-attr]
        one.steps["observation/x"].tolist()  # type: ignore[union-attr]
        for one in whole
    ]


@pytest.mark.parametrize("at", ["channel", "count", "time", "time in the chunk", "chunk's start"])
def test_what_no_checksum_covers(tmp_path: Path, at: str) -> None:
    """Message indexes, and the first fields of a chunk, are compared with the rest of the file."""
    path = write_mcap(tmp_path / "a.mcap", spread(), chunk_size=600)
    data = bytearray(path.read_bytes())
    places = [place for place in _records(data) if data[place] == (6 if at == "chunk's start" else 7)]
    place = places[2] + 9
    (time,) = struct.unpack_from("<Q", data, place + 6)
    offset, form, value = {
        "channel": (0, "<H", 9),
        "count": (2, "<I", 7),
        "time": (6, "<Q", T0 + 10**12),
        "time in the chunk": (6, "<Q", time + 1),
        "chunk's start": (0, "<Q", 5),
    }[at]
    struct.pack_into(form, data, place + offset, value)
    path.write_bytes(data)
    try:
        said = [one.faults[0].detail for one in read(path, GAPS) if one.faults]
    except UsageError as error:
        said = [str(error)]
    assert any("message index" in detail or "as the summary describes" in detail for detail in said)


def test_messages_before_a_chunk_of_equal_times(tmp_path: Path) -> None:
    """Without a summary, the file's order counts as well: the last one of equal times is in the chunk."""
    first = write_mcap(tmp_path / "a.mcap", [text(T0, "first")], chunk_size=0).read_bytes()
    second = write_mcap(tmp_path / "b.mcap", [text(T0, "second")], chunk_size=100).read_bytes()
    alone = [place for place in _records(first) if first[place] in (1, 3, 4, 5)][:4]
    (chunk,) = [place for place in _records(second) if second[place] == 6]
    parts = [(first, place) for place in alone] + [(second, chunk)]
    joined = first[:8] + b"".join(
        data[place : place + 9 + struct.unpack_from("<Q", data, place + 1)[0]] for data, place in parts
    )
    path = tmp_path / "c.mcap"
    path.write_bytes(joined + struct.pack("<BQI", 15, 4, 0) + struct.pack("<BQQQI", 2, 20, 0, 0, 0) + first[:8])
    (episode,) = read(path, "reference: /task\nfields: {language_instruction: {topic: /task, field: data}}")
    assert episode.steps["language_instruction"].tolist() == [b"second"]  # type: ignore[union-attr]


def test_a_topic_of_two_types(tmp_path: Path) -> None:
    content = joints(T0, "a", [1]).content
    bag = write_mcap(tmp_path / "a.mcap", [Sent(T0, "/x", JOINTS, content), text(T0, "b", "/y")])
    with pytest.raises(UsageError, match=r"/joint_states"):
        opened(bag, GAPS)
    assert header(T0)


def test_a_file_without_topics_says_so(tmp_path: Path) -> None:
    bag = write_mcap(tmp_path / "empty.mcap", [])
    with pytest.raises(UsageError, match=r"no bag has the topic /camera/compressed; it has no topics"):
        opened(bag, MAPPING)
