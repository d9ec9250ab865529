"""plan.json: the input and options of an output directory, and the files that belong to the output.

Only files that the plan names are removed, and only commits that it names count.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from rlds_beam import naming, storage
from rlds_beam.encoding.metadata import FilePath, decode_json
from rlds_beam.encoding.tfds.dataset_info import DATASET_INFO, FEATURES
from rlds_beam.errors import UsageError
from rlds_beam.output.files import (
    APPEND,
    CHECKSUMS,
    COMMITS,
    FITTED,
    INPUTS,
    LOCK,
    MANIFEST,
    PARTS,
    PLAN,
    REJECTED,
    REJECTED_LIST,
    REPORT,
    inputs_file,
    listdir,
)
from rlds_beam.output.inputs import Inputs, decode_inputs, read_inputs
from rlds_beam.text import format_size, shorten, some

OUTPUT_FORMAT = 1
"""Output format version; bump when the bytes change."""
RESERVED = (COMMITS, REJECTED, PARTS, APPEND)
"""Directories whose files are not in any plan."""
_METADATA = (FEATURES, DATASET_INFO, REPORT, FITTED, CHECKSUMS)
_MAX_RANGES = 1_000_000
"""Ranges of a split beyond which plan.json is not believed."""
_MAX_NAME_BYTES = 255 - len("..01234567.tmp")
"""The longest file name in bytes; its temporary name must also fit."""


class OutputPlan(msgspec.Struct, frozen=True, dict=True, omit_defaults=True, tag_field="kind", tag="rlds-beam plan"):
    """A plan.

    Attributes:
      content: everything that the output's bytes depend on, as JSON: the number of shards and ranges of each split,
        the digest of the input (`output.inputs`), the options, the version. Equal plans give equal bytes.
      files: the names of the files that may be written: `name`, `name/name`, ..., with `*` for each number of three
        or more digits.
      directories: the subdirectories of these files; a nested one comes after its parent.
      appended: the content of the plan of each append (`output.append`), in order.
      inputs: the content of the input's file (`inputs.encode_inputs`), in a plan that is not written yet. It is not in
        plan.json.
    """

    content: dict[str, Any] = msgspec.field(default_factory=dict, name="plan")
    files: tuple[FilePath, ...] = ()
    directories: tuple[FilePath, ...] = ()
    appended: tuple[dict[str, Any], ...] = ()
    inputs: bytes = b""

    @classmethod
    def of(cls, content: Mapping[str, Any], files: Iterable[str] = (), inputs: bytes = b"") -> OutputPlan:
        """Makes a plan as it would be read back from its file, with lists for tuples.

        Raises:
          UsageError: a file name is not allowed in an output directory.
        """
        plan = cls(content=json.loads(json.dumps(content)), inputs=inputs)
        _check_files(plan.ranges)
        return plan.with_files(files)

    def with_files(self, files: Iterable[str]) -> OutputPlan:
        """A plan with more files. Raises UsageError if a name is not allowed in an output directory."""
        examples: dict[str, str] = {}  # of the names without their numbers
        parents = set(self.directories)
        for file in files:
            examples[_NUMBER.sub("*", file)] = file
            parents.add(file.rpartition("/")[0])
        _check_files(examples.values())
        parents |= {path[:i] for path in parents for i, character in enumerate(path) if character == "/"}
        directories = tuple(sorted(parents - {""}))
        taken = {PLAN, MANIFEST, LOCK, *_METADATA, *RESERVED, *self.files, *examples}
        for directory in directories:
            if directory in taken:
                raise _not_allowed(directory, "that name is already taken")
        return msgspec.structs.replace(self, files=tuple(sorted({*self.files, *examples})), directories=directories)

    @functools.cached_property
    def _names(self) -> frozenset[str]:
        return frozenset((*self.files, *_METADATA))

    def names(self, file: str) -> bool:
        """Whether a file in the directory or in one of `directories` belongs to this output."""
        return file in self._names or _NUMBER.sub("*", file) in self._names or INPUTS.fullmatch(file) is not None

    @functools.cached_property
    def ranges(self) -> tuple[str, ...]:
        """The names of the ranges, `train-00000-of-00003`: those of an append continue those of their split."""
        contents = (self.content, *self.appended) if "inputs" in self.content else ()
        splits = ((split, *entry["ranges"]) for content in contents for split, entry in content["splits"].items())
        return tuple(
            f"{split}-{naming.format_shard_number(i, of)}"
            for split, first, number, of in splits
            for i in range(first, first + min(number, _MAX_RANGES))
        )

    @functools.cached_property
    def _ranges(self) -> frozenset[str]:
        return frozenset(self.ranges)

    def names_range(self, name: str) -> bool:
        """Whether `train-00000-of-00003` is a range of this output."""
        return name in self._ranges if "inputs" in self.content else naming.is_range(name)

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the content, in hex."""
        return _digest(self.content)

    @functools.cached_property
    def digests(self) -> tuple[str, ...]:
        """The digest, and those of the appended plans."""
        return (self.digest, *map(_digest, self.appended))


_NUMBER = re.compile(r"\d{3,}")


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()


def write_plan(output: str, plan: OutputPlan) -> None:
    """Writes plan.json, which marks the directory as rlds-beam's.

    Raises:
      UsageError: it would be too large to read again. A job writes it first, so no work is lost.
    """
    content = msgspec.json.encode(msgspec.structs.replace(plan, inputs=b"")) + b"\n"
    if len(content) > storage.SMALL:
        raise UsageError(
            f"{output}: the plan takes {format_size(len(content))}, and the limit is {format_size(storage.SMALL)}: "
            "convert one split or a part of the files at a time"
        )
    if plan.inputs:
        storage.write_bytes(storage.below(output, inputs_file(plan.content["inputs"])), plan.inputs)
    storage.write_bytes(storage.below(output, PLAN), content)


def add_files(output: str, files: Iterable[str]) -> None:
    """Adds files whose names have just become known to a directory's plan; creates their subdirectories.

    Raises:
      UsageError: a subdirectory is a link, or a file name is not allowed.
    """
    plan = read_plan(output)
    if plan is None:  # reported when the dataset is committed
        return
    extended = plan.with_files(files)
    if extended != plan:
        refuse_links(output, extended.directories)
        write_plan(output, extended)
    for directory in extended.directories:
        storage.makedirs(storage.below(output, directory))


def _check_files(files: Iterable[str]) -> None:
    """Checks names of files and ranges, which contain untrusted names of splits, fields, cameras, and modules."""
    for file in files:
        if any(len(name.encode(errors="replace")) > _MAX_NAME_BYTES for name in str(file).split("/")):
            raise _not_allowed(file, f"its name has more than {_MAX_NAME_BYTES} bytes")
        if file in (PLAN, MANIFEST, LOCK) or not naming.is_file_path(file):
            raise _not_allowed(file, "that name is not allowed")


def _not_allowed(file: str, why: str) -> UsageError:
    return UsageError(
        f"the output would contain {shorten(file, 100)!r}, but {why}: rename the split, field, camera, or module that "
        "it is named after"
    )


def refuse_links(output: str, names: Iterable[str]) -> None:
    """Raises UsageError if a directory of an output is a link."""
    for name in names:
        if storage.is_link(storage.join(output, name)):
            raise UsageError(f"{storage.join(output, name)} is a link, which rlds-beam never creates: remove it")


def read_plan(output: str) -> OutputPlan | None:
    """The plan of a directory; None if there is none or plan.json is not rlds-beam's.

    Raises:
      UsageError: it is rlds-beam's but malformed.
    """
    path = storage.join(output, PLAN)
    content = storage.read_small(path) if storage.exists(path) else b""
    try:
        kind = msgspec.json.decode(content, type=_Kind).kind
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return decode_json(content, OutputPlan, path) if kind == "rlds-beam plan" else None


class _Kind(msgspec.Struct):
    kind: str


def holds(plan: OutputPlan) -> str:
    """The content of a directory with a plan: `trajectories (--items=sequences)`, `--to=columns`, `a recording`."""
    to = plan.content.get("to")
    if "record" in plan.content and to == "rlds":
        return "a recording"
    items = plan.content.get("items")
    kind = items.get("items") if isinstance(items, dict) else None
    return f"trajectories (--items={kind or 'pairs'})" if to == "trajectories" else f"--to={to}"


def another(output: str, old: OutputPlan, new: OutputPlan) -> str:
    """The message about a directory that holds the output of another plan."""
    remedy = "Choose another directory, or replace it with --overwrite."
    held, wanted = holds(old), holds(new)
    if held != wanted:
        held = f"the output of {held}" if held.startswith("--to") else held
        return f"{output} holds {held}; this command would write {wanted}. {remedy}"
    # A recording's plan has some options twice, for example the seed.
    known = dict(old.content)
    changes: list[str] = []
    if (digest := new.content.get("inputs")) != known.get("inputs") and digest is not None and "inputs" in known:
        changes += _input_changes(read_inputs(output, known), decode_inputs(new.inputs, digest, "the input"))
        known["inputs"] = digest
    changes += {re.sub(r"^(record|settings)\.", "", text): text for text in differences(known, new.content)}.values()
    return f"{output} holds the output of another plan ({'; '.join(changes[:5])}). {remedy}"


def _input_changes(old: Inputs, new: Inputs) -> list[str]:
    """The changed files of an input, in words."""
    known = {(split, *file) for split, entry in old.items() for file in entry.files()}
    found = [(split, *file) for split, entry in new.items() for file in entry.files()]
    changed = [name for split, name, *rest in found if (split, name, *rest) not in known]
    gone = [name for _, name, *_ in known.difference(found)] if not changed else []
    if changed or gone:
        return [f"the input has changed: {some(changed or gone)}"]
    return ["the same files are cut into other ranges"]


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """The first few differences between two plans, in words."""
    if path.startswith("connectors") and isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = ({str(i): entry for i, entry in enumerate(part)} for part in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        places: list[str] = []
        for key in [*old, *(k for k in new if k not in old)]:
            places += differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        return places[:5]
    return [] if old == new else [_difference(path, old, new)]


def _difference(path: str, old: Any, new: Any) -> str:
    kind, _, name = path.partition(".")
    if kind == "functions" and name and old is not None and new is not None:
        return f"the code has changed: {name}"
    return f"{path} was {shorten(json.dumps(old), 60)} and is now {shorten(json.dumps(new), 60)}"


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


def _is_of_a_range(name: str, plan: OutputPlan) -> bool:
    """Whether `name` is a range's commit or a file of its rejected records."""
    work, _, ending = name.rpartition(".")
    return name == REJECTED_LIST or (ending in ("json", "jsonl", "tfrecord") and plan.names_range(work))
