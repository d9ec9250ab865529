"""Appends to a finished output: `convert --append`.

    OUTPUT/
      plan.json       its `appended` lists the plan of each append
      ...             the finished output, which nothing changes until the last step
      _append/        an output directory: the plan of this append, its commits, its files, and last the metadata and
                      the manifest of the whole

The ranges of an append continue the numbers of those that exist: `train-00003-of-00003` follows `train-00002-of-00003`.
So no new file has the name of an old one. When everything is in `_append/`, `publish` renames it into the output: new
files first, then the files that replace others, the format's own index (`dataset_info.json`, `meta/info.json`), the
commits, and last the manifest. A run killed before the manifest of the whole was in `_append/` is resumed like any
conversion; one killed after that is finished by `publish`, without reading the input.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rlds_beam import storage
from rlds_beam.connectors.base import with_attributes
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.output.base import Output
from rlds_beam.output.commits import EarlierOutput, load_manifest, read_commits, remove_temporary
from rlds_beam.output.directory import find_finished
from rlds_beam.output.files import APPEND, COMMITS, LOCK, MANIFEST, PLAN
from rlds_beam.output.plans import (
    InputFile,
    OutputPlan,
    differences,
    read_inputs,
    read_plan,
    remove_output,
    write_plan,
)
from rlds_beam.reading.base import WorkRange
from rlds_beam.reading.changes import RECORDS, Snapshot, fingerprint
from rlds_beam.text import some

if TYPE_CHECKING:
    from rlds_beam.reading.base import Shard, Source

_COMPARED = ("format", "to", "check", "connectors", "functions", "to_options")
"""Entries of a plan that an append must share, besides those of the output."""

_INDEXES = ("dataset_info.json", "meta/info.json")
"""The ends of the files in which a format lists other files, or their rows: replaced last."""


_RECENT_SECONDS, _PAUSE_SECONDS = 60.0, 1.0
"""A file that changed this recently is looked at again after this pause."""


def staging(directory: str) -> str:
    """The directory in which an append is written."""
    return storage.join(directory, APPEND)


def open_earlier(directory: str) -> EarlierOutput | None:
    """The finished output in a directory; None if there is none, so that an ordinary conversion begins it.

    Raises:
      UsageError: it cannot be appended to.
    """
    plan, manifest = read_plan(directory), load_manifest(directory)
    if plan is None or (manifest is None and not plan.appended):
        return None
    if storage.exists(storage.join(staging(directory), MANIFEST)):
        raise UsageError(
            f"{directory}: an earlier --append was interrupted: run `rlds-beam convert ... --append` first"
        )
    if "inputs" not in plan.content or "record" in plan.content:
        raise UsageError(
            f"--append: {directory} was not written by convert: write the new episodes to another directory"
        )
    finished = find_finished(directory)
    if manifest is None or not finished.complete or not finished.ranges.keys() >= {*plan.ranges}:
        lost = [MANIFEST] if manifest is None else [name for name in plan.ranges if name not in finished.ranges]
        raise UsageError(
            f"--append: {directory} is damaged (files of {some(lost)} are missing or cut short): convert again with "
            "--overwrite"
        )
    unfinished = read_plan(staging(directory))
    commits = tuple(finished.ranges[name] for name in plan.ranges)
    return EarlierOutput(directory, plan, manifest, commits, None if unfinished is None else unfinished.digest)


def number_ranges(earlier: EarlierOutput, ranges: Iterable[WorkRange]) -> Sequence[WorkRange]:
    """The ranges with numbers that follow those of the earlier ranges of their split."""
    written, of = Counter(commit.split for commit in earlier.commits), {c.split: c.of for c in earlier.commits}
    return tuple(
        dataclasses.replace(work, index=written[work.split] + work.index, of=of.get(work.split, work.of))
        for work in ranges
    )


def continue_output(output: Output, earlier: EarlierOutput, ranges: Sequence[WorkRange], to: str) -> Output:
    """The output that adds these ranges to an earlier one. Raises UsageError if `--to` cannot."""
    if earlier.plan.content["to"] != to:
        raise UsageError(f"{earlier.directory} was written with --to={earlier.plan.content['to']}, not --to={to}")
    whole = output.with_ranges((*earlier.ranges, *ranges))
    added = whole.append_to(earlier, ranges, staging(earlier.directory))
    if added is None:
        raise UsageError(
            f"--append: --to={to} cannot be appended to: convert again, to another directory or with --overwrite"
        )
    return added


def append_plan(earlier: EarlierOutput, content: Mapping[str, Any], inputs: bytes, output: Output) -> OutputPlan:
    """The plan of an append. Raises UsageError if its options differ from those of the output."""
    number = {"append": {"number": len(earlier.plan.appended) + 1, "after": earlier.plan.digests[-1]}}
    plan = OutputPlan.from_content({**content, **number}, inputs)
    old, new = (
        {key: _without(side.get(key), key, output.input_facts) for key in (*_COMPARED, *output.plan())}
        for side in (earlier.plan.content, plan.content)
    )
    if changes := differences(old, new):
        raise UsageError(
            f"--append: {earlier.directory} was written with other options or fields ({some(changes)}): use the same, "
            "or convert to another directory"
        )
    return plan


def _without(value: Any, path: str, left_out: Collection[str]) -> Any:
    """A plan's entry without what depends only on the input, and without the versions of a user's source."""
    if not isinstance(value, Mapping):
        return value
    kept = {name: entry for name, entry in value.items() if f"{path}.{name}" not in {*left_out, "functions.--from"}}
    return {name: _without(entry, f"{path}.{name}", left_out) for name, entry in kept.items()}


def select_new(source: Source, snapshot: Snapshot, earlier: EarlierOutput | None) -> tuple[Source, int, list[str]]:
    """Leaves out the shards whose content an output has already, and those that are still written to.

    Args:
      source: the dataset.
      snapshot: a snapshot of its files, with their contents.
      earlier: the output; None if there is none yet.

    Returns:
      The dataset with the other shards only, the number of those that the output has, and the paths of those that are
      still written to.

    Raises:
      UsageError: a file has changed since it was converted, so some of its episodes may be there already.
    """
    plans = () if earlier is None else (earlier.plan.content, *earlier.plan.appended)
    inputs = [] if earlier is None else [read_inputs(earlier.directory, plan) for plan in plans]
    known = {(split, file.content) for each in inputs for split, entry in each.items() for file in entry.shards()}
    seen = {
        split.name: list(
            zip(split.shards, (c.decode() or None for c in snapshot.contents(split).tolist()), strict=True)
        )
        for split in source.splits
    }
    fresh = {
        split: [shard for shard, content in shards if (split, content) not in known] for split, shards in seen.items()
    }
    growing = _find_growing(source, [shard for shards in fresh.values() for shard in shards])
    fresh = {split: [shard for shard in shards if shard.path not in growing] for split, shards in fresh.items()}
    same = [each for plan, each in zip(plans, inputs, strict=True) if plan["dataset"] == source.dataset]
    there = {(split, content) for split, shards in seen.items() for _, content in shards}
    changed = list[str]()
    for each, (split, shards) in itertools.product(same, fresh.items()):
        converted = list(each[split].shards()) if split in each else []
        changed += [shard.path for shard in shards if _has_changed(source, shard, converted, there, split)]
    if changed:
        raise UsageError(
            f"--append: {some(changed)} has the name of a file that was converted from {source.dataset}, and other "
            "content, perhaps with the same episodes: keep new episodes in new files, or rename the file or its "
            "directory if all of its episodes are new"
        )
    taken = [[name, *entry.get("slice", [0, None])] for plan in plans for name, entry in plan["splits"].items()]
    for name, start, stop in (*taken, *([split.name, split.start, split.stop] for split in source.splits)):
        if (start, stop) != (0, None):
            raise UsageError(f"--append: only some episodes of {name} were or are converted: use whole splits")
    splits = [
        dataclasses.replace(split, shards=tuple(fresh[split.name])) for split in source.splits if fresh[split.name]
    ]
    selected = with_attributes(source, splits=tuple(splits))
    return selected, sum(map(len, seen.values())) - sum(map(len, fresh.values())) - len(growing), growing


def _find_growing(source: Source, shards: Sequence[Shard]) -> list[str]:
    """The paths of local shards that are still written to: they, or their companions, change during a second."""

    def stamps(shard: Shard) -> list[storage.Stamp | None]:
        return [storage.stamp(path) for path in (shard.path, *source.companions(shard))]

    now = time.time()
    seen = [(shard, stamps(shard)) for shard in shards]
    recent = [(shard, own) for shard, own in seen if any(s and now - s[2] / 1e9 < _RECENT_SECONDS for s in own)]
    if recent:
        time.sleep(_PAUSE_SECONDS)
    return [shard.path for shard, own in recent if stamps(shard) != own]


def _has_changed(
    source: Source, shard: Shard, converted: Sequence[InputFile], there: Collection[tuple[str, str | None]], split: str
) -> bool:
    """Whether a shard may be a file that was converted, with more episodes: one of its name is no longer there.

    A shard of records may also be that of another dataset of the same name: if no shard that was converted is there,
    and it does not begin with the records of one.
    """
    name, records = storage.split(shard.path)[1], source.files
    gone = [file for file in converted if file.name == name and (split, file.content) not in there]
    if not gone or records.name not in ("tfrecord", "array_record"):
        return bool(gone)
    if any((split, file.content) in there for file in converted):
        return True
    framed = [file for file in gone if (file.content or "").startswith(RECORDS)]
    return any(fingerprint(records.scan(shard.path, 0, file.size)) == file.content for file in framed)


def finish_interrupted(directory: str) -> bool:
    """Publishes what an append that was killed meanwhile had completed; returns whether there was something."""
    plan, staged = read_plan(directory), read_plan(staging(directory))
    if plan is None or staged is None:
        return False
    if storage.exists(storage.below(staging(directory), MANIFEST)):
        publish(directory)
        return True
    if plan.appended and plan.appended[-1] == staged.content:
        _remove_staging(directory)
    return False


def publish(directory: str) -> None:
    """Moves a complete append from `_append/` into its output. May be killed and called again.

    Raises:
      NotVerifiedError: another command has changed the output meanwhile.
    """
    place = staging(directory)
    plan, staged = read_plan(directory), read_plan(place)
    if plan is None or staged is None:
        raise NotVerifiedError(f"{directory} was replaced by another command while this one ran: run it again")
    if plan.appended[-1:] != (staged.content,):
        if staged.content["append"]["after"] != plan.digests[-1]:
            raise NotVerifiedError(f"another command appended to {directory} while this one ran: run it again")
        write_plan(directory, msgspec.structs.replace(plan, appended=(*plan.appended, staged.content)))
    storage.remove_leftovers(directory)
    remove_temporary(place, read_commits(place).values())
    files = [name for name in storage.sizes(place, below=True) if name not in (PLAN, MANIFEST, LOCK)]
    for folder in sorted({storage.split(file)[0] for file in files} - {""}):
        storage.makedirs(storage.below(directory, folder))
    replaced = {file for file in files if storage.exists(storage.below(directory, file))}

    def place_in_order(file: str) -> tuple[Any, ...]:
        return file.startswith(f"{COMMITS}/"), file in replaced, [file.endswith(index) for index in _INDEXES], file

    for file in sorted(files, key=place_in_order):
        storage.rename(storage.below(place, file), storage.below(directory, file))
    storage.sync(directory)
    storage.rename(storage.below(place, MANIFEST), storage.below(directory, MANIFEST))
    storage.sync(directory)
    _remove_staging(directory)


def _remove_staging(directory: str) -> None:
    remove_output(staging(directory))  # its plan last, so that a killed command can go on
    storage.rmtree(staging(directory))


def interrupted_plan(directory: str) -> OutputPlan | None:
    """The plan of an append that was interrupted, perhaps while its files were renamed into the directory."""
    return read_plan(staging(directory)) if APPEND in storage.listdir(directory) else None
