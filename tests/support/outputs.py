"""Writes committed trajectory datasets range by range, without a conversion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlds_beam import naming, storage
from rlds_beam.encoding.tfrecord.framing import frame
from rlds_beam.episodes.schema import Field
from rlds_beam.formats.trajectories.output import SPEC, fields_json
from rlds_beam.output import commits, directory
from rlds_beam.output.commits import RangeCommit, split_infos, write_tfds_metadata
from rlds_beam.output.plans import OutputPlan, read_plan
from rlds_beam.output.shards import ShardInfo, WrittenFile
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import WorkRange
from rlds_beam.trajectories.spec import encode_spec

NAME = "data"


def plan(**content: Any) -> OutputPlan:
    """A plan with this content."""
    return OutputPlan.of(content)


def open_output(output: str, plan: OutputPlan, *, overwrite: bool = False) -> directory.Finished:
    """The progress of an earlier run; makes an unfinished output ready."""
    finished = directory.status(output, plan, overwrite=overwrite)
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
    return commits.commit_range(
        str(output), work, [written], **{"rejected": None, "report": Report(), "plan": digest, **counts}
    )


def commit_dataset(output: Path | str, ranges: Sequence[WorkRange], fields: Sequence[Field]) -> dict[str, Any]:
    """Finishes the dataset and returns its manifest."""

    def complete(done: Sequence[RangeCommit]) -> dict[str, Any]:
        splits = split_infos(str(output), [(commit.split, one) for commit in done for one in commit.files])
        write_tfds_metadata(str(output), NAME, splits, {field.path: field for field in fields})
        return {"fields": fields_json(fields)}

    return commits.commit_dataset(str(output), NAME, ranges, complete)
