"""plan.json: the input and options of an output directory, and the files that belong to the output.

The directories that the plan names are rlds-beam's, with all of their content. Of the files next to them, only those
that the plan names are removed, and only commits of this plan count.
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
    REPORT,
    inputs_file,
    listdir,
)
from rlds_beam.text import format_size, shorten

OUTPUT_FORMAT = 1
"""Output format version; bump when the bytes change."""
RESERVED = (COMMITS, REJECTED, PARTS, APPEND)
"""Directories whose files are not in any plan."""
_METADATA = (FEATURES, DATASET_INFO, REPORT, FITTED, CHECKSUMS)
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
        return cls(content=json.loads(json.dumps(content)), inputs=inputs).with_files(files)

    def with_files(self, files: Iterable[str]) -> OutputPlan:
        """A plan with more files. Raises UsageError if a name is not allowed in an output directory."""
        examples: dict[str, str] = {}  # of the names without their numbers
        parents = set(self.directories)
        for file in files:
            examples[_NUMBER.sub("*", file)] = file
            parents.add(file.rpartition("/")[0])
        for file in examples.values():
            _check_file(file)
        parents |= {path[:i] for path in parents for i, character in enumerate(path) if character == "/"}
        return msgspec.structs.replace(
            self, files=tuple(sorted({*self.files, *examples})), directories=tuple(sorted(parents - {""}))
        )

    def names(self, file: str) -> bool:
        """Whether a file in the directory or in one of `directories` belongs to this output."""
        own = (*self.files, *_METADATA)
        return file in own or _NUMBER.sub("*", file) in own or INPUTS.fullmatch(file) is not None

    @functools.cached_property
    def ranges(self) -> tuple[str, ...]:
        """The names of the ranges, `train-00000-of-00003`: those of an append continue those of their split."""
        contents = (self.content, *self.appended) if "inputs" in self.content else ()
        splits = ((split, *entry["ranges"]) for content in contents for split, entry in content["splits"].items())
        return tuple(
            f"{split}-{naming.format_shard_number(i, of)}"
            for split, first, number, of in splits
            for i in range(first, first + number)
        )

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the content, in hex."""
        return self.digests[0]

    @functools.cached_property
    def digests(self) -> tuple[str, ...]:
        """The digest, and those of the appended plans."""
        contents = (self.content, *self.appended)
        return tuple(hashlib.sha256(msgspec.json.encode(content)).hexdigest() for content in contents)


_NUMBER = re.compile(r"\d{3,}")


def _check_file(file: str) -> None:
    """Checks the name of a file, which contains untrusted names of splits, fields, cameras, and modules."""
    top, nested, _ = file.partition("/")
    reserved = (PLAN, MANIFEST, LOCK, *((*RESERVED, *_METADATA) if nested else ()))
    if top in reserved or not naming.is_file_path(file):
        why = "that name is not allowed"
    elif max(len(name.encode()) for name in file.split("/")) > _MAX_NAME_BYTES:
        why = f"its name has more than {_MAX_NAME_BYTES} bytes"
    else:
        return
    raise UsageError(
        f"the output would contain {shorten(file, 100)!r}, but {why}: rename the split, field, camera, or module that "
        "it is named after"
    )


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
      UsageError: a file name is not allowed.
    """
    plan = read_plan(output)
    if plan is None:  # reported when the dataset is committed
        return
    extended = plan.with_files(files)
    if extended != plan:
        write_plan(output, extended)
    for directory in extended.directories:
        storage.makedirs(storage.below(output, directory))


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


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """The first few differences between the contents of two plans, in words."""
    if path.startswith("connectors") and isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = ({str(i): entry for i, entry in enumerate(part)} for part in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        places: list[str] = []
        for key in dict.fromkeys([*old, *new]):
            places += differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        return places[:5]
    if old == new:
        return []
    if path == "inputs":
        return ["the input has changed, or is cut into other ranges"]
    if path.startswith("functions.") and old is not None and new is not None:
        return [f"the code has changed: {path.removeprefix('functions.')}"]
    return [f"{path} was {shorten(json.dumps(old), 60)} and is now {shorten(json.dumps(new), 60)}"]


def remove_output(output: str, *, kept: Collection[str] = ()) -> None:
    """Removes what a directory's plan names, the manifest first and the plan last.

    So a partly removed output can be recognized.

    Args:
      kept: the names of files in `rejected/` to keep.
    """
    plan = read_plan(output)
    if plan is None:
        return
    storage.remove_files(output, [MANIFEST])
    for directory in (COMMITS, APPEND, *(name for name in plan.directories if "/" not in name)):
        storage.rmtree(storage.below(output, directory))
    rejected = listdir(storage.join(output, REJECTED))
    storage.remove_files(output, [f"{REJECTED}/{name}" for name in rejected if name not in {PARTS, *kept}])
    storage.remove_empty(storage.below(output, REJECTED))
    storage.remove_files(output, [n for n in listdir(output) if plan.names(n) or storage.is_temporary(n)])
    storage.remove_files(output, [PLAN])


def sizes(output: str, plan: OutputPlan | None, *others: str) -> dict[str, int]:
    """The size of each file of an output, by path: those next to the plan, rejected ones, those of its directories.

    Args:
      others: more directories to list.
    """
    by_path = storage.sizes(output) if storage.isdir(output) else {}
    for name in (REJECTED, *(plan.directories if plan is not None else ()), *others):
        directory = storage.join(output, name)
        if storage.isdir(directory):
            by_path |= {f"{name}/{file}": size for file, size in storage.sizes(directory).items()}
    return by_path


def remove_leftovers(output: str, plan: OutputPlan) -> None:
    """Removes the temporary files of killed writers."""
    paths = sizes(output, plan, COMMITS)
    storage.remove_files(output, [path for path in paths if storage.is_temporary(path.rpartition("/")[2])])


def remove_parts(output: str, files: Collection[str]) -> None:
    """Removes ranges' files that are no longer needed, and directories that become empty."""
    storage.remove_files(output, files)
    for directory in {file.rpartition("/")[0] for file in files} - {""}:
        storage.remove_empty(storage.below(output, directory))
