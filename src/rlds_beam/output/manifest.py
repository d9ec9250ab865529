"""The manifest of an output: written when all of its ranges are finished and were checked."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlds_beam import storage
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.output.checksums import checksum_files, with_checksum
from rlds_beam.output.commits import RangeCommit, problems_of, read_commits, sizes
from rlds_beam.output.directory import read_plan, remove_leftovers
from rlds_beam.output.files import MANIFEST, REJECTED, load_json, to_json

if TYPE_CHECKING:
    from rlds_beam.reading.plan import WorkRange

VERSION = "1.0.0"
"""Of every dataset that is written."""


def commit_dataset(
    output: str, name: str, ranges: Sequence[WorkRange], complete: Callable[[Sequence[RangeCommit]], dict[str, Any]]
) -> dict[str, Any]:
    """Checks that every range is there, then writes the output's metadata and manifest.json, in this order.

    Args:
      output: what `open_output` made ready.
      name: of the dataset.
      ranges: all ranges of the plan.
      complete: writes the metadata, and says what the manifest is to say of the records (`FileOutput.complete`).

    Returns:
      The manifest: items and bytes, `splits`, `shards` and `rejected` with their checksums, `fields`.

    Raises:
      NotVerifiedError: a shard is missing, of another size than it was written, or holds another
        number of items than predicted. No manifest is left then.
    """
    commits = read_commits(output)
    missing = [str(work) for work in ranges if str(work) not in commits]
    done = [commits[str(work)] for work in ranges if str(work) in commits]
    there = sizes(output)
    wrong = [problem for commit in done for problem in problems_of(there.get, commit)]
    if missing or wrong:
        storage.remove_files(output, [MANIFEST])
        unfinished = [f"{len(missing)} of {len(ranges)} ranges were not finished: {_some(missing)}"] if missing else []
        problems = _some([*unfinished, *wrong])
        raise NotVerifiedError(f"{output}: {problems}; run the same command again to make up for it")
    remove_leftovers(output)
    manifest = _manifest(output, name, done, complete(done))
    for file, content in checksum_files([*manifest["shards"], *manifest["rejected"]]).items():
        storage.write_text(storage.join(output, file), content)
    storage.sync(output)  # a manifest that survives a power failure tells the truth
    storage.write_text(storage.join(output, MANIFEST), to_json(manifest))
    storage.sync(output)
    return manifest


def read_manifest(path: str) -> dict[str, Any]:
    """The manifest of a finished dataset.

    Raises:
      UsageError: there is none: the conversion did not come to its end, or this is no output of rlds-beam.
    """
    manifest = load_json(storage.join(path, MANIFEST)) if storage.exists(storage.join(path, MANIFEST)) else None
    if manifest is not None:
        return manifest | {kind: [*map(with_checksum, manifest[kind])] for kind in ("shards", "rejected")}
    if read_plan(path) is not None:
        raise UsageError(f"{path} is not finished: it has no {MANIFEST}; run its `rlds-beam convert` again")
    raise UsageError(f"{path} is not a dataset that rlds-beam wrote: it has no {MANIFEST}")


def _manifest(output: str, name: str, done: Sequence[RangeCommit], records: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "version": VERSION,
        "items": sum(c.shard.records for c in done),
        "bytes": sum(c.shard.bytes for c in done),
        **records,
        "shards": [
            {
                "file": c.file,
                "split": c.split,
                "range": c.range,
                "predicted": c.predicted,
                **dataclasses.asdict(c.shard),
            }
            for c in done
        ],
        "rejected": [
            {"file": f"{REJECTED}/{c.range}.tfrecord", "range": c.range, **dataclasses.asdict(c.rejected)}
            for c in done
            if c.rejected is not None
        ],
        "plan_sha256": hashlib.sha256(to_json(read_plan(output)).encode()).hexdigest(),
    }


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
