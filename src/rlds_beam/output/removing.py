"""Removing what rlds-beam wrote from an output directory: files that its plan names, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from rlds_beam import storage
from rlds_beam.output.files import COMMITS, MANIFEST, PLAN, REJECTED, REJECTED_LIST, listdir
from rlds_beam.output.plans import OutputPlan, read_plan

if TYPE_CHECKING:
    from rlds_beam.output.commits import RangeCommit


def remove_output(output: str, *, kept: Collection[str] = ()) -> None:
    """Removes the files that the plan of a directory names; the manifest first and the plan last.

    So an output that was removed in part is known as such.

    Args:
      kept: names of files in `rejected/` that stay.
    """
    plan = read_plan(output)
    if plan is None:
        return
    remove_leftovers(output, plan)
    storage.remove_files(output, [MANIFEST])
    storage.remove_files(output, [name for name in listdir(output) if plan.names(name)])
    for directory in reversed(plan.directories):
        path = storage.join(output, directory)
        storage.remove_files(path, [name for name in listdir(path) if plan.names(f"{directory}/{name}")])
        storage.remove_empty(path)
    for directory in (COMMITS, REJECTED):
        path = storage.join(output, directory)
        names = [name for name in listdir(path) if _is_of_a_range(name, plan) and name not in kept]
        storage.remove_files(path, names)
        storage.remove_empty(path)
    storage.remove_files(output, [PLAN])


def remove_leftovers(output: str, plan: OutputPlan) -> None:
    """Removes the temporary files of writers that were killed."""

    def is_ours(name: str) -> bool:
        return name in (PLAN, MANIFEST) or plan.names(name) or _is_of_a_range(name, plan)

    for directory in (output, storage.join(output, COMMITS), storage.join(output, REJECTED)):
        names = [name for name in listdir(directory) if is_ours(storage.temporary_of(name) or "")]
        storage.remove_files(directory, names)
    for own in plan.directories:
        path = storage.join(output, own)
        names = [name for name in listdir(path) if plan.names(f"{own}/{storage.temporary_of(name) or ''}")]
        storage.remove_files(path, names)


def remove_parts(output: str, files: Collection[str]) -> None:
    """Removes files of ranges that are not needed any more, and the directories that are empty then."""
    for directory in {file.rpartition("/")[0] for file in files}:
        path = storage.join(output, directory) if directory else output
        storage.remove_files(path, [file.rpartition("/")[2] for file in files if file.rpartition("/")[0] == directory])
        if directory:
            storage.remove_empty(path)


def remove_temporary(output: str, plan: OutputPlan, commits: Iterable[RangeCommit]) -> None:
    """Removes the files that only an unfinished dataset needs."""
    files = [one.file for commit in commits for one in commit.files if one.role == "temporary"]
    remove_parts(output, [file for file in files if plan.names(file)])


def _is_of_a_range(name: str, plan: OutputPlan) -> bool:
    """Whether it is the name of a range's commit, or of one of its files of rejected records."""
    work, _, ending = name.rpartition(".")
    return name == REJECTED_LIST or (ending in ("json", "jsonl", "tfrecord") and plan.names_range(work))
