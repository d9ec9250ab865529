"""Shards whose number is known only at the end: they are written as parts, and named when all are finished."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence

from rlds_beam import storage
from rlds_beam.errors import UsageError
from rlds_beam.formats.rlds.output import RldsOutput
from rlds_beam.output.commits import commit_range, rejected_path
from rlds_beam.output.directory import check_output, make_ready
from rlds_beam.output.files import PARTS, listdir
from rlds_beam.output.manifest import load_manifest
from rlds_beam.output.plans import OutputPlan, add_files, read_plan
from rlds_beam.output.removal import remove_output
from rlds_beam.output.shards import ShardInfo, WrittenFile
from rlds_beam.processing.report import Report
from rlds_beam.reading.plan import WorkRange

FROM = "write_rlds"
"""The source in the plan of a directory that a program writes."""

_PART = re.compile(r".+-\d{5,}-of-00000(\.tfrecord|\.jsonl)?")
"""The names of parts: shards of a dataset with 0 shards, which no dataset has."""


@dataclasses.dataclass(frozen=True)
class FinishedPart:
    """A finished part.

    Attributes:
      work: its split and number; `of` is 0.
      files: its files, in `PARTS`.
      rejected: its rejected records, if any.
      report: the report on its episodes.
    """

    work: WorkRange
    files: tuple[WrittenFile, ...]
    rejected: ShardInfo | None
    report: Report


def find_range(split: str, index: int) -> WorkRange:
    """The range of a part."""
    return WorkRange(split, index, 0, ())


def in_parts(output: RldsOutput) -> RldsOutput:
    """The output with the directory of parts."""
    return dataclasses.replace(output, directory=storage.join(output.directory, PARTS))


def rejected_part(output: RldsOutput, work: WorkRange) -> str:
    """The path of a part's rejected records, without the ending."""
    return storage.below(output.directory, PARTS, f"rejected-{work}")


def check_directory(directory: str, *, overwrite: bool) -> None:
    """Checks that a new dataset may be written to a directory. Writes nothing.

    An unfinished one of an earlier run is replaced, because its episodes cannot be read again.

    Raises:
      UsageError: it holds something else, or a dataset, and `overwrite` is False.
    """
    existing = read_plan(directory)
    check_output(directory, existing or OutputPlan.of({}), overwrite=overwrite)
    if existing is None or overwrite:
        return
    if load_manifest(directory) is not None:
        raise UsageError(f"{directory} holds a finished dataset: choose another directory, or pass overwrite=True")
    if existing.content.get("from") != FROM:
        raise UsageError(
            f"{directory} holds the unfinished output of another job: choose another directory, or pass overwrite=True"
        )


def open_parts(directory: str, plan: OutputPlan) -> None:
    """Prepares a directory that `check_directory` accepted; removes what an earlier run wrote."""
    remove_all(directory)
    make_ready(directory, plan)
    storage.makedirs(storage.below(directory, PARTS))


def remove_all(directory: str) -> None:
    """Removes everything that was written, finished or not."""
    remove_parts(directory)
    remove_output(directory)


def remove_parts(directory: str) -> None:
    """Removes the parts."""
    parts = storage.below(directory, PARTS)
    names = listdir(parts)
    ours = [name for name in names if _PART.fullmatch(storage.final_name(name) or name)]
    storage.remove_files(directory, [f"{PARTS}/{name}" for name in ours])
    storage.remove_empty(parts)


def commit_parts(output: RldsOutput, parts: Sequence[FinishedPart], plan: OutputPlan) -> tuple[WorkRange, ...]:
    """Gives the parts their names as shards, and commits each. Returns the ranges of the dataset."""
    directory, numbered = output.directory, _number(parts)
    add_files(directory, [name for work, _ in numbered for name in output.files(work)])
    for work, part in numbered:
        files = []
        for name, file in zip(output.files(work), part.files, strict=True):
            storage.rename(storage.below(directory, PARTS, file.file), storage.below(directory, name))
            files.append(dataclasses.replace(file, file=name))
        if part.rejected is not None:
            for ending in (".tfrecord", ".jsonl"):
                storage.rename(rejected_part(output, part.work) + ending, rejected_path(directory, work) + ending)
        commit_range(directory, work, files, rejected=part.rejected, report=part.report, plan=plan.digest)
    return tuple(work for work, _ in numbered)


def _number(parts: Sequence[FinishedPart]) -> list[tuple[WorkRange, FinishedPart]]:
    """The range that each part becomes."""
    by_split = {split: list(own) for split, own in itertools.groupby(parts, key=lambda part: part.work.split)}
    return [(WorkRange(split, i, len(own), ()), part) for split, own in by_split.items() for i, part in enumerate(own)]
