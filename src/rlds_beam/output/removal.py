"""Removes an output from its directory: the files that its plan names, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from rlds_beam import storage
from rlds_beam.output.files import APPEND, COMMITS, MANIFEST, PLAN, REJECTED, REJECTED_LIST, listdir
from rlds_beam.output.plans import OutputPlan, read_plan

if TYPE_CHECKING:
    from rlds_beam.output.commits import RangeCommit


def remove_output(output: str, *, kept: Collection[str] = ()) -> None:
    """Removes the files that a directory's plan names, the manifest first and the plan last.

    So a partly removed output can be recognized.

    Args:
      kept: the names of files in `rejected/` to keep.
    """
    plan = read_plan(output)
    if plan is None:
        return
    remove_leftovers(output, plan)
    if not output.endswith(f"/{APPEND}"):
        remove_output(storage.below(output, APPEND))
        storage.remove_empty(storage.below(output, APPEND))
    storage.remove_files(output, [MANIFEST])
    storage.remove_files(output, [name for name in listdir(output) if plan.names(name)])
    for directory in reversed(plan.directories):
        storage.remove_files(output, [path for path in _paths(output, directory) if plan.names(path)])
        storage.remove_empty(storage.below(output, directory))
    for directory in (COMMITS, REJECTED):
        paths = [path for path in _paths(output, directory) if _is_of_a_range(path.rpartition("/")[2], plan)]
        storage.remove_files(output, [path for path in paths if path.rpartition("/")[2] not in kept])
        storage.remove_empty(storage.below(output, directory))
    storage.remove_files(output, [PLAN])


def remove_leftovers(output: str, plan: OutputPlan) -> None:
    """Removes the temporary files of killed writers."""

    def is_ours(path: str) -> bool:
        directory, slash, name = path.rpartition("/")
        final = storage.final_name(name)
        if final is None:
            return False
        if directory in (COMMITS, REJECTED):
            return _is_of_a_range(final, plan)
        return final in (PLAN, MANIFEST) or plan.names(f"{directory}{slash}{final}")

    paths = [path for directory in (COMMITS, REJECTED, *plan.directories) for path in _paths(output, directory)]
    storage.remove_files(output, [path for path in (*listdir(output), *paths) if is_ours(path)])


def _paths(output: str, directory: str) -> list[str]:
    """The files in an output's subdirectory, as paths below the output."""
    return [f"{directory}/{name}" for name in listdir(storage.join(output, directory))]


def remove_parts(output: str, files: Collection[str]) -> None:
    """Removes ranges' files that are no longer needed, and directories that become empty."""
    storage.remove_files(output, files)
    for directory in {file.rpartition("/")[0] for file in files} - {""}:
        storage.remove_empty(storage.below(output, directory))


def remove_temporary(output: str, plan: OutputPlan, commits: Iterable[RangeCommit]) -> None:
    """Removes the files that only an unfinished dataset needs."""
    files = [file.file for commit in commits for file in commit.files if file.role == "temporary"]
    remove_parts(output, [file for file in files if plan.names(file)])


def _is_of_a_range(name: str, plan: OutputPlan) -> bool:
    """Whether `name` is a range's commit or a file of its rejected records."""
    work, _, ending = name.rpartition(".")
    return name == REJECTED_LIST or (ending in ("json", "jsonl", "tfrecord") and plan.names_range(work))
