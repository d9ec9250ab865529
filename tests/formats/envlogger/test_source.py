"""Reading EnvLogger logs, intact and damaged."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from envlogger_data import STEPS_OF_EPISODE, write_log
from exchanging import export, open_job, plain, read_back
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run

from rlds_beam.formats.envlogger.riegeli import BLOCK, Gap, RiegeliChunk, bridge, riegeli_file, scan
from rlds_beam.formats.envlogger.shard import read_index


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log of 40 episodes of 6 steps, in small chunks; the last one is unfinished."""
    directory = tmp_path_factory.mktemp("log")
    write_log(directory, 40)
    return directory


@pytest.fixture(scope="module")
def whole(log):
    """The episodes of the intact log."""
    return read_back(log, "envlogger")


def find_shard(log: Path) -> Path:
    (shard,) = [path for path in log.iterdir() if path.is_dir()]
    return shard


def test_the_bytes_of_a_record_are_the_same_on_every_read(log, whole):
    """EnvLogger's reader gives the names of a dict in random order."""
    assert [episode.payload for episode in read_back(log, "envlogger")] == [episode.payload for episode in whole]
    assert all(episode.payload for episode in whole)


def test_envlogger_reads_logged_episodes(log):
    found = read_back(log, "envlogger", ranges=3)
    assert [len(e) for e in found] == [6] * 39 + [3]
    episode = found[4]
    assert episode.faults == ()
    assert episode.steps["observation/state"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert episode.steps["observation/image"].shape == (6, 32, 32, 3)
    assert episode.steps["action"][:, 0].tolist() == [np.float32(0.1)] * 5 + [0]
    assert episode.steps["reward"].tolist() == [0.5, 1.0, 1.5, 2.0, 1.0, 0]
    assert episode.steps["discount"].tolist() == [1, 1, 1, 1, 0, 0]
    assert episode.steps["is_terminal"].tolist() == [False] * 5 + [True]
    assert plain(episode.steps["propensity"]) == [0.25] * 6
    assert not found[-1].steps["is_last"].any()


@pytest.mark.parametrize("damage", ["byte", "cut"])
def test_envlogger_reads_the_intact_part_of_a_damaged_log(log, tmp_path, damage):
    shutil.copytree(log, tmp_path / "log")
    file = find_shard(tmp_path / "log") / "steps.riegeli"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content if damage == "byte" else content[: len(content) // 2])
    found, whole = read_back(tmp_path / "log", "envlogger"), read_back(log, "envlogger")
    lost = [i for i, episode in enumerate(found) if episode.faults]
    assert {fault.rule for i in lost for fault in found[i].faults} == {"corrupt_record"}
    assert len(found) == 40 and 0 < len(lost) < (15 if damage == "byte" else 26)
    assert lost == list(range(lost[0], lost[-1] + 1))
    if damage == "byte":
        assert lost[-1] < 39  # episodes after the damage are read
    for ours, other in zip(found, whole, strict=True):
        assert ours.faults or plain(ours.steps["observation/image"]) == plain(other.steps["observation/image"])


def damaged(log: Path, into: Path) -> Path:
    """The shard of a copy to damage."""
    shutil.copytree(log, into)
    return find_shard(into)


def images_of(episodes: list[Any]) -> list[Any]:
    return [plain(e.steps["observation/image"]) for e in episodes if not e.faults]


def reasons(episodes: list[Any]) -> list[str]:
    assert {fault.rule for e in episodes for fault in e.faults} <= {"corrupt_record"}
    return [fault.detail for e in episodes for fault in e.faults]


INDEXES = ("episode_index.riegeli", "step_offsets.riegeli", "episode_metadata.riegeli")


@pytest.mark.parametrize(
    ("how", "names"),
    [("missing", INDEXES[:1]), ("missing", INDEXES[1:2]), ("missing", INDEXES), ("empty", INDEXES)],
    ids=["index", "offsets", "all", "all empty"],
)
def test_envlogger_without_index_files(log, whole, tmp_path, how, names):
    shard = damaged(log, tmp_path / "log")
    for name in names:
        (shard / name).unlink() if how == "missing" else (shard / name).write_bytes(b"")
    found = read_back(tmp_path / "log", "envlogger", ranges=3)
    assert images_of(found) == images_of(whole)
    told = reasons(found)
    assert len(told) == 1 and len(found) == 41 and found[-1].faults
    assert "found 40 episodes with 237 steps in steps.riegeli" in told[0]
    if how == "missing":
        assert all(f"{name} is missing" in told[0] for name in names)


@pytest.mark.parametrize("chunks", [4, 5, 6])
def test_envlogger_whose_writer_was_killed(log, whole, tmp_path, chunks):
    """After a flush, the last episode has no index, and the last chunk is unfinished."""
    from rlds_beam.formats.envlogger.riegeli import RiegeliChunk, scan

    shard = damaged(log, tmp_path / "log")
    with open(shard / "steps.riegeli", "rb") as file:
        written = [chunk for chunk in scan(file) if isinstance(chunk, RiegeliChunk)]
    steps, size = sum(chunk.records for chunk in written[:chunks]), written[chunks].begin + 1000
    (shard / "steps.riegeli").write_bytes((shard / "steps.riegeli").read_bytes()[:size])
    for name in INDEXES:
        (shard / name).unlink()
    found = read_back(tmp_path / "log", "envlogger")
    complete = [e for e in found if not e.faults and e.steps["is_last"].any()]
    assert images_of(complete) == images_of(whole)[: len(complete)]
    if steps % STEPS_OF_EPISODE == 1:  # a first step alone has no action
        assert {fault.rule for fault in found.pop(-2).faults} == {"missing_field"}
        steps -= 1
    (told,) = reasons(found)
    assert sum(len(e) for e in found) == steps and f"to {size:,} of steps.riegeli hold no readable step" in told
    report = export(tmp_path / "log", tmp_path / "out", "rlds", from_="envlogger")
    assert report.items_written == len(complete) and report.rejected == report.records - len(complete)


def test_envlogger_with_a_damaged_header_and_no_offsets(log, whole, tmp_path):
    """The steps of one chunk are lost; the next ones are found by block headers."""
    from rlds_beam.formats.envlogger.riegeli import RiegeliChunk, scan

    shard = damaged(log, tmp_path / "log")
    with open(shard / "steps.riegeli", "rb") as file:
        chunks = [chunk for chunk in scan(file) if isinstance(chunk, RiegeliChunk)]
    content = bytearray((shard / "steps.riegeli").read_bytes())
    content[chunks[1].begin + (24 if chunks[1].begin % 65536 == 0 else 0) + 3] ^= 0xFF
    (shard / "steps.riegeli").write_bytes(content)
    (shard / "step_offsets.riegeli").unlink()
    found = read_back(tmp_path / "log", "envlogger")
    (told,) = reasons(found)
    images, expected = images_of(found), images_of(whole)
    kept = [image for image in images if image in expected]
    assert f"bytes {chunks[1].begin:,} to" in told and "whose beginning is lost" in told
    assert 25 < len(kept) < 40 and expected[-2] in kept
    (cut,) = [e for e in found[:-2] if not e.steps["is_last"].any()]  # two episodes are not joined
    image = plain(cut.steps["observation/image"])
    assert image in [e[: len(image)] for e in expected]


@pytest.mark.parametrize("lost", [0, 1])
def test_no_step_takes_the_place_of_one_in_a_chunk_with_a_damaged_header(log, whole, tmp_path, lost):
    """The reader finds the next readable step at the position of a lost one."""
    from rlds_beam.formats.envlogger.riegeli import RiegeliChunk, scan

    shard = damaged(log, tmp_path / "log")
    with open(shard / "steps.riegeli", "rb") as file:
        chunks = [chunk for chunk in scan(file) if isinstance(chunk, RiegeliChunk)]
    content = bytearray((shard / "steps.riegeli").read_bytes())
    content[chunks[lost].begin + (24 if chunks[lost].begin % 65536 == 0 else 0) + 3] ^= 0xFF
    (shard / "steps.riegeli").write_bytes(content)
    found = read_back(tmp_path / "log", "envlogger")
    first = sum(chunk.records for chunk in chunks[:lost])
    touched = range(first // 6, (first + chunks[lost].records - 1) // 6 + 1)
    assert [i for i, episode in enumerate(found) if episode.faults] == [*touched]
    assert images_of(found) == [image for i, image in enumerate(images_of(whole)) if i not in touched]


def test_envlogger_with_a_shard_without_steps(log, tmp_path):
    shard = damaged(log, tmp_path / "log")
    other = shard.with_name("20990101T000000000000")
    shutil.copytree(shard, other)
    (other / "steps.riegeli").unlink()
    found = read_back(tmp_path / "log", "envlogger")
    assert len(found) == 41 and found[-1].faults[0].detail.count("has no steps.riegeli") == 1
    job = open_job(tmp_path / "log", tmp_path / "out", "rlds", from_="envlogger")
    assert len(job.source.splits[0].shards) == 2


def test_the_logs_of_envlogger_are_hidden(log, tmp_path):
    file = damaged(log, tmp_path / "log") / "steps.riegeli"
    file.write_bytes(file.read_bytes()[:-1000])
    code, _, said = run(["inspect", tmp_path / "log"])
    assert code == 0 and not said


@pytest.mark.parametrize("name", ["steps.riegeli", "step_offsets.riegeli"])
def test_a_pipe_is_not_waited_for(log, tmp_path, name):
    file = damaged(log, tmp_path / "log") / name
    file.unlink()
    os.mkfifo(file)
    code, _, said = run(["inspect", tmp_path / "log", "--from=envlogger"])
    assert code == 2 and "has no readable episode" in said


def test_a_file_with_its_old_times_is_another_file(log, tmp_path):
    shutil.copytree(log, tmp_path / "log")
    shard = find_shard(tmp_path / "log")
    file = shard / "step_offsets.riegeli"
    assert read_index(str(shard)).damage == ""
    content, status = file.read_bytes(), file.stat()
    file.write_bytes(bytes(len(content)))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert "step_offsets.riegeli" in read_index(str(shard)).damage


SIGNATURE = bytes.fromhex(
    "83af70d10d884a3f00000000000000004000000000000000 91bac23c9287e1a9"
    "0000000000000000e19f13c0e9b1c37273000000000000000000000000000000".replace(" ", "")
)
"""The first 64 bytes of every file: a block header and a chunk header, with HighwayHash hashes."""


def chunks(content: bytes) -> list[RiegeliChunk | Gap]:
    return list(scan(io.BytesIO(content)))


def test_a_file_begins_as_documented():
    assert riegeli_file([]) == SIGNATURE
    assert chunks(SIGNATURE) == []


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2 * BLOCK), max_size=3), st.integers(0, 40))
def test_written_chunks_are_found(sizes, short):
    content = riegeli_file([bytes(size) for size in sizes] + [b"x"] * short)
    assert chunks(content) == ([RiegeliChunk(64, len(sizes) + short)] if sizes or short else [])
    assert len(content) >= 64 + len(sizes) + short  # each record has its own position


def test_more_records_than_bytes():
    assert chunks(riegeli_file([b""] * 70_000)) == [RiegeliChunk(64, 70_000)]


@pytest.mark.parametrize("size", [10, 63 * 1024, 65_400, 200_000])
def test_a_truncated_chunk_is_a_gap(size):
    content = riegeli_file([bytes(size)])
    for cut in (65, 90, len(content) - 1):
        assert chunks(content[:cut]) == [Gap(64, cut)]


@pytest.mark.parametrize("size", [40, 900, 200_000])
def test_a_damaged_header_costs_one_chunk_and_is_bridged(size):
    whole = riegeli_file([bytes(10)] * 3, [bytes(size)] * 2, [bytes(90_000)], [b"last"])
    first, damaged, third, last = chunks(whole)
    content = bytearray(whole)
    content[damaged.begin + (24 if damaged.begin % BLOCK == 0 else 0)] ^= 0xFF
    _, gap, *rest = chunks(bytes(content))
    assert gap == Gap(damaged.begin, third.begin) and rest == [third, last]
    for place, byte in bridge(gap):
        content[place : place + 1] = byte
    assert chunks(bytes(content)) == [first, third, last]
