"""Shards, commits, and the manifest: an output is finished, or known to be unfinished."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import xxhash
from directories import bytes_of

from rlds_beam import naming, storage
from rlds_beam.encoding.base import Record
from rlds_beam.encoding.tfrecord.file import open_tfrecord, read_records
from rlds_beam.encoding.tfrecord.framing import frame
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.formats.trajectories.output import SPEC, fields_json
from rlds_beam.output import commits, directory
from rlds_beam.output.commits import RangeCommit, rejected_path, split_infos, write_tfds_metadata
from rlds_beam.output.plans import OutputPlan, read_plan
from rlds_beam.output.shards import RejectedWriter, ShardInfo, ShardWriter, WrittenFile
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import WorkRange
from rlds_beam.trajectories.spec import encode_spec

NAME = "data"


def plan(**content: Any) -> OutputPlan:
    """A plan with this content."""
    return OutputPlan.from_content(content)


def open_output(output: str, plan: OutputPlan, *, overwrite: bool = False) -> directory.Finished:
    """The progress of an earlier run; makes an unfinished output ready."""
    directory.check_output(output, plan, overwrite=overwrite)
    finished = directory.Finished() if overwrite else directory.find_finished(output)
    if not finished.complete:
        directory.make_ready(output, plan, overwrite=overwrite)
    return finished


def shard_path(output: Path | str, work: WorkRange) -> str:
    return str(Path(output) / naming.shard_name(NAME, work.split, "tfrecord", work.number))


def commit_range(
    output: Path | str, work: WorkRange, shard: ShardInfo, fields: Sequence[Field], **counts: Any
) -> RangeCommit:
    """Commits the shard at `shard_path`, with its spec."""
    path = shard_path(output, work)
    storage.write_bytes(path + SPEC, frame(encode_spec(fields)))
    file = Path(path).name
    written = WrittenFile(file, shard, counts.pop("predicted", shard.records), (file + SPEC,))
    plan = read_plan(str(output))
    digest = "" if plan is None else plan.digest
    given = {"rejected": None, "report": Report(), "plan": digest, **counts}
    commit = RangeCommit(split=work.split, index=work.index, of=work.of, files=(written,), **given)
    commits.commit_range(str(output), commit)
    return commit


def commit_dataset(output: Path | str, ranges: Sequence[WorkRange], fields: Sequence[Field]) -> dict[str, Any]:
    """Finishes the dataset and returns its manifest."""

    def complete(done: Sequence[RangeCommit]) -> dict[str, Any]:
        splits = split_infos(str(output), [(commit.split, one) for commit in done for one in commit.files])
        write_tfds_metadata(str(output), NAME, splits, {field.path: field for field in fields})
        return {"fields": fields_json(fields)}

    return commits.commit_dataset(str(output), NAME, ranges, complete)


FIELDS = (Field("step_type", "int32", (2,), "bytes"), Field("observation", "float32", (2, 3)))
CONTENT = {"source": {"dataset": "data/1.0.0", "bytes": 123}, "options": {"items": "pairs", "shards": [1, 2]}}
PLAN = plan(**CONTENT)
RANGES = [WorkRange("train", i, 3, ()) for i in range(3)] + [WorkRange("val", 0, 1, ())]


def make_range(output: Path, work: WorkRange, records: int = 2, *, rejected: int = 0, predicted: int | None = None):
    path = shard_path(output, work)
    with ShardWriter(path) as writer, RejectedWriter(rejected_path(str(output), work)) as aside:
        for i in range(records):
            writer.write([frame(f"{work}/{i}".encode())], 1, f"key{i}")
        for i in range(rejected):
            aside.write(b"bad", {"key": f"bad{i}", "rule": "non_finite", "detail": "é"}, f"bad{i}")
        kept = aside.commit()
        shard = writer.commit()
    predicted = records if predicted is None else predicted
    return commit_range(output, work, shard, FIELDS, predicted=predicted, rejected=kept, report=Report(records=records))


def make_dataset(output: Path, records=(2, 0, 3, 1)):
    open_output(str(output), PLAN)
    for work, count in zip(RANGES, records, strict=True):
        make_range(output, work, count, rejected=work.index)
    return commit_dataset(output, RANGES, FIELDS)


def compute_checksum(data: bytes) -> str:
    return f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}"


def test_a_shard_appears_on_commit(tmp_path):
    path = tmp_path / "shard"
    with ShardWriter(str(path)) as writer:
        writer.write([b"ab", memoryview(b"c")], 2, "first")
        writer.write([], 0, "empty")
        writer.write([b"d"], 1, "last")
        assert not path.exists()
        assert all(storage.is_temporary(p.name) for p in tmp_path.iterdir())
        info = writer.commit()
    assert path.read_bytes() == b"abcd"
    assert info == ShardInfo(3, 4, compute_checksum(b"abcd"), "first", "last")
    assert [p.name for p in tmp_path.iterdir()] == ["shard"]


def test_an_uncommitted_shard_leaves_nothing(tmp_path):
    with ShardWriter(str(tmp_path / "shard")) as writer:
        writer.write([b"ab"], 1)
    assert not list(tmp_path.iterdir())


def test_rejected_records_are_kept_unchanged(tmp_path):
    with RejectedWriter(str(tmp_path / "r")) as writer:
        writer.write(b"original \x00", {"key": "k", "detail": "é\n"}, "k")
        assert writer.commit().records == 1
    with open_tfrecord(str(tmp_path / "r.tfrecord")) as file:
        assert list(read_records(file)) == [Record(0, b"original \x00")]
    assert json.loads((tmp_path / "r.jsonl").read_text()) == {"key": "k", "detail": "é\n"}
    with RejectedWriter(str(tmp_path / "none")) as writer:
        assert writer.commit() is None
    assert len(list(tmp_path.iterdir())) == 2


def test_commit_of_a_dataset(tmp_path):
    made = make_dataset(tmp_path)
    assert made["items"] == 6
    assert made == commits.read_manifest(str(tmp_path))
    for shard in made["shards"]:
        data = (tmp_path / shard["file"]).read_bytes()
        assert (len(data), compute_checksum(data)) == (shard["bytes"], shard["checksum"])
        assert (tmp_path / (shard["file"] + ".spec")).stat().st_size
    assert [r["records"] for r in made["rejected"]] == [1, 2]
    info = json.loads((tmp_path / "dataset_info.json").read_text())
    assert [(s["name"], s["shardLengths"]) for s in info["splits"]] == [("train", ["2", "0", "3"]), ("val", ["1"])]


def test_an_empty_split_is_left_out(tmp_path):
    make_dataset(tmp_path, (2, 0, 3, 0))
    info = json.loads((tmp_path / "dataset_info.json").read_text())
    assert [s["name"] for s in info["splits"]] == ["train"]
    assert not list(tmp_path.glob("data-val*"))
    assert open_output(str(tmp_path), PLAN).complete


def test_the_same_plan_again_has_nothing_to_do(tmp_path):
    make_dataset(tmp_path)
    before = bytes_of(tmp_path)
    finished = open_output(str(tmp_path), plan(**{**CONTENT, "options": {"items": "pairs", "shards": (1, 2)}}))
    assert finished.complete
    assert finished.ranges.keys() == {str(work) for work in RANGES}
    assert finished.ranges["train-00000-of-00003"].report.records == 2
    commit_dataset(tmp_path, RANGES, FIELDS)
    assert bytes_of(tmp_path) == before


def damage_file(output):
    (output / "data-train.tfrecord-00002-of-00003").write_bytes(b"short")


def lose_file(output):
    (output / "data-train.tfrecord-00002-of-00003").unlink()


def lose_commit(output):
    (output / "_commits" / "train-00002-of-00003.json").unlink()


def lose_manifest(output):
    (output / "manifest.json").unlink()
    lose_commit(output)
    (output / ".data-train.tfrecord-00002-of-00003.0badcafe.tmp").write_bytes(b"half")
    (output / "_commits" / ".train-00002-of-00003.json.0badcafe.tmp").write_bytes(b"{")


@pytest.mark.parametrize("fault", [damage_file, lose_file, lose_commit, lose_manifest])
def test_a_rerun_completes_the_output(tmp_path, fault):
    make_dataset(tmp_path)
    before = bytes_of(tmp_path)
    fault(tmp_path)
    finished = open_output(str(tmp_path), PLAN)
    assert not finished.complete
    assert not (tmp_path / "manifest.json").exists()
    assert {str(work) for work in RANGES} - finished.ranges.keys() == {"train-00002-of-00003"}
    make_range(tmp_path, RANGES[2], 3, rejected=2)
    commit_dataset(tmp_path, RANGES, FIELDS)
    assert bytes_of(tmp_path) == before


def test_another_plan_needs_overwrite(tmp_path):
    make_dataset(tmp_path)
    before = bytes_of(tmp_path)
    other = plan(**{**CONTENT, "options": {"items": "frames", "shards": [1, 2]}})
    with pytest.raises(UsageError, match=r'options.items was "pairs" and is now "frames".*--overwrite'):
        open_output(str(tmp_path), other)
    assert bytes_of(tmp_path) == before
    assert open_output(str(tmp_path), other, overwrite=True) == directory.Finished()
    assert bytes_of(tmp_path).keys() == {"plan.json"}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", "plan.json", "data-train.tfrecord-00000-of-00001"])
def test_a_foreign_directory_is_never_touched(tmp_path, overwrite, name):
    (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(UsageError, match="not empty, and rlds-beam did not write"):
        open_output(str(tmp_path), PLAN, overwrite=overwrite)
    assert bytes_of(tmp_path) == {name: b'{"mine": 1}'}


def test_an_unfinished_dataset_is_not_committed(tmp_path):
    open_output(str(tmp_path), PLAN)
    make_range(tmp_path, RANGES[0])
    with pytest.raises(NotVerifiedError, match="3 of 4 ranges were not finished"):
        commit_dataset(tmp_path, RANGES, FIELDS)
    assert not (tmp_path / "manifest.json").exists()
    with pytest.raises(UsageError, match="is not finished"):
        commits.read_manifest(str(tmp_path))


def test_a_damaged_shard_is_not_committed(tmp_path):
    make_dataset(tmp_path)
    damage_file(tmp_path)
    with pytest.raises(NotVerifiedError, match="has 5 bytes, but"):
        commit_dataset(tmp_path, RANGES, FIELDS)
    assert not (tmp_path / "manifest.json").exists()


def test_a_wrong_prediction_is_an_error(tmp_path):
    open_output(str(tmp_path), PLAN)
    with pytest.raises(NotVerifiedError, match="holds 2 items, but 3 were predicted"):
        make_range(tmp_path, RANGES[0], 2, predicted=3)
