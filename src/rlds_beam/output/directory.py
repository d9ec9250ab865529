"""The output directory of a conversion: its plan, its progress, and its lock.

    OUTPUT/
      plan.json                                   written first: the input and the options of this directory
      <name>-<split>.tfrecord-00000-of-00003      a shard; it gets its name when it is complete
      <name>-<split>.tfrecord-00000-of-00003.spec its sidecar (`Output.sidecars`)
      <module>/<name>-<split>.tfrecord-...        a shard of each module, if ranges have several files
      rejected/<split>-00000-of-00003.tfrecord    rejected records as they were read, if any
      rejected/<split>-00000-of-00003.jsonl       the reasons, a line for each
      _commits/<split>-00000-of-00003.json        written after the shard: the range is finished
      features.json  dataset_info.json            the output's metadata (`Output.complete`)
      fitted.json                                 the results of fitted connectors, if any
      checksums.xxh128                            for `xxh128sum --check`
      manifest.json                               written last: everything is complete and checked

A run killed at any point is resumed by the next one with the same plan, which only converts ranges without a commit and
ends with the same bytes. A commit counts only while its files exist with the committed size.

One command at a time writes into a local directory: it holds the operating system's lock (`flock`) on a file there,
which ends with its process. A bucket has no such lock, and a network file system only if it is mounted with one. There
the plan decides (`commits.commit_dataset`): a command whose plan was replaced while it ran does not exit with 0.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from rlds_beam import platforms, storage
from rlds_beam.encoding.metadata import decode_whole, encode
from rlds_beam.errors import DiskError, UsageError
from rlds_beam.output.commits import RangeCommit, find_problems, load_manifest, read_commits
from rlds_beam.output.files import COMMITS, FITTED, INPUTS, LOCK, MANIFEST, REJECTED
from rlds_beam.output.plans import OutputPlan, differences, read_plan, remove_output, write_plan


@dataclasses.dataclass(frozen=True)
class Finished:
    """The finished part of a plan.

    Attributes:
      ranges: the commits by `str(work_range)`.
      complete: whether the dataset is committed, so that nothing is left to do.
    """

    ranges: Mapping[str, RangeCommit] = dataclasses.field(default_factory=dict)
    complete: bool = False


def check_output(output: str, plan: OutputPlan, *, overwrite: bool = False) -> None:
    """Checks whether `make_ready` would accept the directory; writes nothing.

    Args:
      output: a directory that does not exist, is empty, or was written by rlds-beam.
      plan: the plan of the new output.
      overwrite: remove the output of an earlier run, whatever its plan, with everything in the directory.

    Raises:
      UsageError: the directory holds something else, or the output of another plan.
    """
    storage.refuse_read_only(output, "output")
    # A full disk may have kept plan.json from following the input's file.
    names = [n for n in storage.listdir(output) if not (storage.is_temporary(n) or n == LOCK or INPUTS.fullmatch(n))]
    existing = read_plan(output)
    if names and existing is None:
        raise UsageError(
            f"{output} is not empty, and rlds-beam did not write its content: choose another or an empty directory "
            "(--overwrite replaces only what rlds-beam wrote)"
        )
    for path in (storage.join(output, name) for name in names):
        if os.path.islink(path) and storage.isdir(path):
            raise UsageError(f"{path} is a link, which rlds-beam never creates: remove it")
    if existing is not None and existing.content != plan.content and not overwrite:
        changes = "; ".join(differences(existing.content, plan.content))
        raise UsageError(
            f"{output} holds the output of another plan ({changes}). Choose another directory, or replace it with "
            "--overwrite."
        )
    if existing is not None and existing.appended and not overwrite:
        raise UsageError(f"{output} has been appended to: add --append to go on, or replace it with --overwrite")


def check_apart(output: str | None, input: str | Sequence[str] | None, flag: str) -> None:
    """Checks that a directory to write is neither a dataset that is read nor inside one.

    Args:
      output: the directory to write; None for none.
      input: the datasets that are read.
      flag: the option that names the output.

    Raises:
      UsageError: it is.
    """
    for path in storage.paths_in(input) if output is not None and input is not None else ():
        if output is not None and storage.is_inside(output, path) and storage.isdir(path):
            same = storage.is_inside(path, output)
            where = "is the input itself" if same else f"is inside the input, {path}"
            raise UsageError(f"{flag}={output} {where}: choose a directory outside it")


def make_ready(output: str, plan: OutputPlan, *, overwrite: bool = False) -> None:
    """Prepares an unfinished output directory for writing, after `check_output`."""
    if overwrite:
        remove_output(output)
    storage.makedirs(output)
    if not is_output(output):
        write_plan(output, plan)
    storage.remove_files(output, [MANIFEST])  # it names more than exists
    for name in (COMMITS, REJECTED):
        storage.makedirs(storage.below(output, name))


def is_output(path: str) -> bool:
    """Whether rlds-beam wrote the directory, finished or not."""
    return read_plan(path) is not None


@dataclasses.dataclass(frozen=True)
class Holding:
    """The content of a directory that `convert` or `record` wrote.

    Attributes:
      to: the output's name (`--to`).
      kind: what its items are called: `pairs`, `rows`.
      dataset: the input dataset.
      items: the number of items; None if unfinished.
      command: the command that wrote it, or `pipeline`: a pipeline of public transforms, whose plan names no dataset.
    """

    to: str
    kind: str
    dataset: str
    items: int | None
    command: Literal["convert", "record", "pipeline"]


def holding(path: str) -> Holding | None:
    """The content of a directory that `convert` or `record` wrote; None for any other directory."""
    plan = read_plan(path)
    if plan is None:
        return None
    to, items = str(plan.content.get("to")), plan.content.get("items")
    kind = items.get("items", "pairs") if isinstance(items, dict) else "rows" if to == "columns" else "items"
    manifest = load_manifest(path)
    dataset, count = str(plan.content.get("dataset")), None if manifest is None else manifest["items"]
    command: Literal["convert", "record", "pipeline"] = "convert"
    if "record" in plan.content:
        command = "record"
    elif "pipeline" in plan.content:
        command = "pipeline"
    return Holding(to, kind, dataset, count, command)


def find_finished(output: str) -> Finished:
    """The ranges whose commit and files exist."""
    commits = read_commits(output)
    file_sizes = storage.sizes(output, below=True)  # after the commits, or a file written in between would be missed
    manifest = load_manifest(output)
    if manifest is not None and manifest.get("merged"):
        if all(file_sizes.get(file["file"]) == file["bytes"] for file in manifest["shards"]):
            return Finished(commits, True)
    elif manifest is not None:
        whole = {
            n: commit for n, commit in commits.items() if not any(find_problems(file_sizes.get, commit, complete=True))
        }
        if {shard["range"] for shard in manifest["shards"]} <= whole.keys():
            return Finished(whole, True)
    return Finished(
        {name: commit for name, commit in commits.items() if not any(find_problems(file_sizes.get, commit))}
    )


@contextlib.contextmanager
def lock_output(directory: str) -> Iterator[None]:
    """Holds the lock of an output directory. It and those above it are created if needed, and removed if empty.

    Raises:
      UsageError: another command holds it, or the directory cannot be created.
    """
    with contextlib.ExitStack() as ends:
        try:
            if storage.scheme(directory) is None:
                above = [directory, *map(str, pathlib.PurePath(directory).parents)]
                for missing in reversed([path for path in above if path and not os.path.lexists(path)]):
                    ends.callback(storage.remove_empty, missing)
                storage.makedirs(directory)
                ends.enter_context(platforms.locked(os.path.join(directory, LOCK)))
        except BlockingIOError:
            raise UsageError(
                f"another rlds-beam is writing into {directory}: wait until it ends, or choose another directory"
            ) from None
        except OSError as error:
            disk = DiskError.from_errno(error.errno or 0, directory)
            raise UsageError(
                str(disk or f"cannot write to {error.filename or directory}: {error.strerror or error}")
            ) from error
        yield


class _Fitted(msgspec.Struct):
    plan_sha256: str
    results: list[Any]


def write_fitted(output: str, plan: OutputPlan, results: Sequence[Any]) -> None:
    """Saves the results for later runs of the same plan."""
    storage.write_text(storage.below(output, FITTED), encode(_Fitted(plan.digest, list(results))))


def read_fitted(output: str, plan: OutputPlan) -> list[Any] | None:
    """The results of an earlier run of the plan; None if there are none. Raises UsageError if the file is malformed."""
    fitted = decode_whole(storage.join(output, FITTED), _Fitted)
    return fitted.results if fitted is not None and fitted.plan_sha256 == plan.digest else None
