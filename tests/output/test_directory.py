"""Outputs with several files per range, in separate directories: commits, plans, and removal."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlds_beam import storage
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.output import directory
from rlds_beam.output.commits import commit_range, read_commit, read_commits
from rlds_beam.output.manifest import commit_dataset, load_manifest
from rlds_beam.output.plans import OutputPlan, read_plan, write_plan
from rlds_beam.output.shards import ShardWriter, WrittenFile
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import WorkRange

WORK = WorkRange("train", 0, 1, ())
FILES = ("a/data-train", "b/data-train")
PLAN = OutputPlan.of({"splits": {"train": {"ranges": [0, 1, 1]}}, "inputs": "0" * 64}, [*FILES, "a/info.json"])


def write(output: Path, name: str, count: int, predicted: int | None = None) -> WrittenFile:
    writer = ShardWriter(str(output / name))
    writer.write([b"x"] * count, count)
    return WrittenFile(name, writer.commit(), count if predicted is None else predicted)


def commit(output: Path, *files: WrittenFile) -> None:
    commit_range(str(output), WORK, files, rejected=None, report=Report(), plan=PLAN.digest)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    directory.open_output(str(tmp_path / "out"), PLAN)
    return tmp_path / "out"


def test_several_files_are_one_range(output: Path) -> None:
    commit(output, write(output, FILES[0], 3), write(output, FILES[1], 0))
    (found,) = read_commits(str(output)).values()
    assert [(one.file, one.shard.records, one.predicted) for one in found.files] == [(FILES[0], 3, 3), (FILES[1], 0, 0)]
    assert read_commit(str(output), WORK, PLAN.digest) == found
    manifest = commit_dataset(str(output), "data", [WORK], lambda done: {})
    assert [shard["file"] for shard in manifest["shards"]] == [*FILES]
    assert manifest["items"] == 3
    assert load_manifest(str(output)) == manifest
    assert directory.find_finished(str(output)).complete
    assert (output / "checksums.xxh128").read_text().split() == [manifest["shards"][0]["checksum"][9:], FILES[0]]


def test_each_file_must_match_the_prediction(output: Path) -> None:
    with pytest.raises(NotVerifiedError, match="b/data-train holds 2 items, but 3 were predicted"):
        commit(output, write(output, FILES[0], 3), write(output, FILES[1], 2, predicted=3))


def test_a_range_with_a_missing_file_is_redone(output: Path) -> None:
    commit(output, write(output, FILES[0], 3), write(output, FILES[1], 2))
    (output / FILES[1]).unlink()
    assert read_commit(str(output), WORK, PLAN.digest) is None
    assert not directory.find_finished(str(output)).ranges


def test_overwriting_removes_what_the_plan_names(output: Path) -> None:
    commit(output, write(output, FILES[0], 3), write(output, FILES[1], 2))
    (output / "a" / "info.json").write_text("{}")
    (output / "a" / ".info.json.01234567.tmp").write_text("{")
    (output / "mine").write_text("stays")
    directory.open_output(str(output), OutputPlan.of({"another": 1}), overwrite=True)
    assert sorted(str(p.relative_to(output)) for p in output.rglob("*") if p.is_file()) == ["mine", "plan.json"]
    assert not (output / "a").exists()


def test_a_link_in_place_of_a_directory_is_rejected(output: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (output / "a").rmdir()
    (output / "a").symlink_to(tmp_path / "elsewhere")
    for plan in (PLAN, OutputPlan.of({"another": 1})):
        with pytest.raises(UsageError, match="is a link"):
            directory.check_output(str(output), plan, overwrite=True)


def test_a_plan_of_many_shards_names_files_by_pattern(tmp_path, monkeypatch):
    """A plan takes a few bytes a shard, and one that could not be read again is refused before the work."""
    names = [f"toy-train.tfrecord-{i:05d}-of-20000" for i in range(20_000)]
    content = {"splits": {"train": {"shards": [[name, 1 << 28] for name in names]}}}
    plan = OutputPlan.of(content, [*names, *(f"data/chunk-{i:03d}/file-{i:03d}.parquet" for i in range(3))])
    assert plan.files == ("data/chunk-*/file-*.parquet", "toy-train.tfrecord-*-of-*")
    assert plan.directories == ("data", "data/chunk-000", "data/chunk-001", "data/chunk-002")
    assert all(map(plan.names, names)) and not plan.names("toy-test.tfrecord-00000-of-20000")
    write_plan(str(tmp_path), plan)
    assert read_plan(str(tmp_path)) == plan
    assert (tmp_path / "plan.json").stat().st_size < 55 * len(names)
    monkeypatch.setattr(storage, "SMALL", 10_000)
    with pytest.raises(UsageError, match="convert one split or a part"):
        write_plan(str(tmp_path), plan)
