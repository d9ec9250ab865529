"""The output directory of a conversion: its plan, what of that is finished, and its removal.

    OUTPUT/
      plan.json                                   written first: what this directory is being made of
      <name>-<split>.tfrecord-00000-of-00003      a shard, under its name once it is complete
      <name>-<split>.tfrecord-00000-of-00003.spec what stands beside it (`FileOutput.beside`)
      rejected/<split>-00000-of-00003.tfrecord    rejected records as they were read, where there are any
      rejected/<split>-00000-of-00003.jsonl       why, a line for each
      _commits/<split>-00000-of-00003.json        written behind the shard: this range is done
      features.json  dataset_info.json            the output's metadata (`FileOutput.complete`)
      checksums.xxh128                            for `xxh128sum --check`
      manifest.json                               written last: all is there, checked

A run that was killed at any point is taken up by the next one with the same plan, which does only
the ranges without a commit, and ends with the same bytes. A commit counts only while its files are
there in the size that it states.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.errors import UsageError
from rlds_beam.output import checksums
from rlds_beam.output.commits import RangeCommit, problems_of, read_commits, sizes
from rlds_beam.output.files import COMMITS, MANIFEST, PLAN, REJECTED, REPORT, listdir, load_json, to_json

_METADATA = ("features.json", "dataset_info.json", REPORT, *checksums.FILES)
_SHARD = re.compile(r".+\.tfrecord-\d{5}-of-\d{5}(\.spec)?")
_KIND = "rlds-beam plan"


@dataclasses.dataclass(frozen=True)
class Finished:
    """What of a plan is done already.

    Attributes:
      ranges: by `str(work_range)`.
      complete: the dataset is committed; nothing is left to do.
    """

    ranges: Mapping[str, RangeCommit] = dataclasses.field(default_factory=dict)
    complete: bool = False


def check_output(output: str, plan: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Says whether `open_output` would take the directory, and touches nothing.

    Args:
      output: a directory that is not there, is empty, or was written by rlds-beam.
      plan: all that the output depends on, as JSON: the source with its sizes, the options, the
        ranges, the version. Equal plans make equal bytes.
      overwrite: remove what an earlier run wrote, whatever its plan. Files that are not of
        rlds-beam's making stay.

    Raises:
      UsageError: the directory holds something else, or the output of another plan.
    """
    names = [name for name in listdir(output) if not storage.is_temporary(name)]
    existing = read_plan(output)
    wanted = json.loads(json.dumps(plan))  # as it reads back: lists for tuples
    if names and existing is None:
        raise UsageError(
            f"{output} is not empty, and rlds-beam did not write what is in it: name another directory, or an empty "
            "one (--overwrite replaces only what rlds-beam wrote)"
        )
    if existing is not None and existing != wanted and not overwrite:
        differences = "; ".join(_differences(existing, wanted))
        raise UsageError(
            f"{output} holds the output of another plan ({differences}): name another directory, or replace it whole "
            "with --overwrite"
        )


def open_output(
    output: str, plan: Mapping[str, Any], *, overwrite: bool = False, files: Sequence[str] = ()
) -> Finished:
    """Makes the output directory ready to be written to, or finds out how far an earlier run of the plan came.

    Args and what is raised: as for `check_output`.
      files: names of the files that may be written here, to be removed if the output is overwritten later.
    """
    check_output(output, plan, overwrite=overwrite)
    if overwrite:
        _remove_output(output)
    storage.makedirs(output)
    if read_plan(output) is None:  # the plan comes first: from then on the directory is known as ours
        storage.write_text(storage.join(output, PLAN), to_json({"kind": _KIND, "plan": plan, "files": list(files)}))
    storage.makedirs(storage.join(output, COMMITS))
    storage.makedirs(storage.join(output, REJECTED))
    return _finished(output)


def is_complete(output: str) -> bool:
    """Whether the dataset is committed, and all that it names is there. The plan was checked before."""
    return storage.exists(storage.join(output, MANIFEST)) and _finished(output).complete


def is_output(path: str) -> bool:
    """Whether rlds-beam wrote the directory, finished or not."""
    return read_plan(path) is not None


def _finished(output: str) -> Finished:
    """The ranges whose commit and files are there; a manifest that names any other is removed."""
    commits = read_commits(output)
    there = sizes(output)  # after what it is held against: a file that came in between would be missed
    ranges = {name: commit for name, commit in commits.items() if not any(problems_of(there.get, commit))}
    manifest = load_json(storage.join(output, MANIFEST)) if storage.exists(storage.join(output, MANIFEST)) else None
    complete = manifest is not None and {shard["range"] for shard in manifest["shards"]} <= ranges.keys()
    if not complete:
        storage.remove_files(output, [MANIFEST])
    return Finished(ranges, complete)


def read_plan(output: str) -> Mapping[str, Any] | None:
    """The plan in a plan.json of ours; None where there is none, or one of anybody else's."""
    path = storage.join(output, PLAN)
    content = load_json(path) if storage.exists(path) else None
    if content is None or content.get("kind") != _KIND:
        return None
    plan: Mapping[str, Any] = content["plan"]
    return plan


def _differences(old: Any, new: Any, path: str = "") -> list[str]:
    """The first few places where two plans differ, for a person."""
    if isinstance(old, dict) and isinstance(new, dict):
        found: list[str] = []
        for key in [*old, *(k for k in new if k not in old)]:
            found += _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        return found[:5]
    return [] if old == new else [f"{path} was {_short(old)} and is now {_short(new)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _remove_output(output: str) -> None:
    """Removes what rlds-beam writes, the manifest first and the plan last: a half removed output is known as such."""
    planned = {*_METADATA, *(load_json(storage.join(output, PLAN)) or {}).get("files", ())}
    storage.remove_files(output, [MANIFEST])
    storage.remove_files(output, [n for n in listdir(output) if n in planned or _SHARD.fullmatch(n)])
    storage.rmtree(storage.join(output, COMMITS))
    storage.rmtree(storage.join(output, REJECTED))
    remove_leftovers(output)
    storage.remove_files(output, [PLAN])


def remove_leftovers(output: str) -> None:
    """Removes the temporary files of writers that were killed."""
    for directory in (output, storage.join(output, COMMITS), storage.join(output, REJECTED)):
        storage.remove_files(directory, [name for name in listdir(directory) if storage.is_temporary(name)])
