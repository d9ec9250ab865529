"""Outputs with several files per range, in separate directories: commits, plans, and removal."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlds_beam import storage
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.output import directory
from rlds_beam.output.commits import RangeCommit, commit_dataset, commit_range, load_manifest, read_commit, read_commits
from rlds_beam.output.plans import OutputPlan, read_plan, write_plan
from rlds_beam.output.shards import ShardWriter, WrittenFile
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import WorkRange

WORK = WorkRange("train", 0, 1, ())
FILES = ("a/data-train", "b/data-train")
PLAN = OutputPlan.from_content({"splits": {"train": {"ranges": [0, 1, 1]}}, "inputs": "0" * 64})


def write(output: Path, name: str, count: int, predicted: int | None = None) -> WrittenFile:
    writer = ShardWriter(str(output / name))
    writer.write([b"x"] * count, count)
    return WrittenFile(name, writer.commit(), count if predicted is None else predicted)


def commit(output: Path, *files: WrittenFile) -> None:
    made = RangeCommit(split="train", index=0, of=1, files=files, rejected=None, report=Report(), plan=PLAN.digest)
    commit_range(str(output), made)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    directory.make_ready(str(tmp_path / "out"), PLAN, overwrite=False)
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


def test_overwriting_removes_everything(output: Path) -> None:
    commit(output, write(output, FILES[0], 3), write(output, FILES[1], 2))
    (output / "a" / "info.json").write_text("{}")
    (output / "a" / ".info.json.01234567.tmp").write_text("{")
    (output / "mine").mkdir()
    (output / "mine" / "notes").write_text("notes")
    directory.make_ready(str(output), OutputPlan.from_content({"another": 1}), overwrite=True)
    assert sorted(str(p.relative_to(output)) for p in output.rglob("*") if p.is_file()) == ["plan.json"]
    assert not (output / "a").exists()


def test_a_link_in_place_of_a_directory_is_rejected(output: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (output / "a").symlink_to(tmp_path / "elsewhere")
    for plan in (PLAN, OutputPlan.from_content({"another": 1})):
        with pytest.raises(UsageError, match="is a link"):
            directory.check_output(str(output), plan, overwrite=True)


def test_a_plan_that_could_not_be_read_again_is_refused(tmp_path, monkeypatch):
    plan = OutputPlan.from_content({"splits": {"train": {"shards": ["name"] * 2000}}})
    write_plan(str(tmp_path), plan)
    assert read_plan(str(tmp_path)) == plan
    monkeypatch.setattr(storage, "SMALL", 10_000)
    with pytest.raises(UsageError, match="convert a part of the splits"):
        write_plan(str(tmp_path), plan)
