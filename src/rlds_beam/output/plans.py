"""plan.json: the input and options of an output directory, and the files that belong to the output.

Only files that the plan names are removed, and only commits that it names count.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rlds_beam import naming, storage
from rlds_beam.encoding.checked_json import ANY, FILE, FILE_PATH, Kind, check_json, read_json
from rlds_beam.encoding.tfds.dataset_info import DATASET_INFO, FEATURES
from rlds_beam.errors import UsageError
from rlds_beam.output.files import (
    APPEND,
    CHECKSUMS,
    COMMITS,
    FITTED,
    LOCK,
    MANIFEST,
    PARTS,
    PLAN,
    REJECTED,
    REPORT,
    to_json,
)
from rlds_beam.text import shorten, some

_KIND = "rlds-beam plan"
OUTPUT_FORMAT = 1
"""Output format version; bump when the bytes change."""
RESERVED = (COMMITS, REJECTED, PARTS, APPEND)
"""Directories whose files are not in any plan."""
_OWN_PATH = (
    FILE_PATH,
    Kind("a file of the output itself", lambda name: not any(str(name).startswith(f"{d}/") for d in RESERVED)),
)
_SCHEMA = {"plan": {"*": ANY}, "files": [_OWN_PATH], "name?": FILE, "appended?": [{"*": ANY}]}
_METADATA = (FEATURES, DATASET_INFO, REPORT, FITTED, CHECKSUMS)
_FINGERPRINTS = {"content": "the input", "functions": "the code"}
"""Parts of a plan that hold fingerprints, and what these identify."""
_MAX_NAME_BYTES = 255 - len("..01234567.tmp")
"""The longest file name in bytes; its temporary name must also fit."""


@dataclasses.dataclass(frozen=True)
class OutputPlan:
    """A plan.

    Attributes:
      content: everything that the output's bytes depend on, as JSON: the source with its sizes, the options, the
        ranges, the version. Equal plans give equal bytes.
      files: the names of the files that may be written: `name`, `name/name`, ...
      name: the dataset's name, if all shards `<name>-<split>.tfrecord-00000-of-00003` belong to the output because
        their number is not known in advance.
      appended: the content of the plan of each append (`output.append`), in order.
    """

    content: Mapping[str, Any]
    files: frozenset[str] = frozenset()
    name: str | None = None
    appended: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, content: Mapping[str, Any], files: Iterable[str] = (), name: str | None = None) -> OutputPlan:
        """Makes a plan as it would be read back from its file, with lists for tuples.

        Raises:
          UsageError: a file name is not allowed in an output directory.
        """
        plan = cls(json.loads(json.dumps(content)), frozenset(files), name)
        ranges = plan.content.get("ranges")
        _check_files(plan, [*plan.files, *(ranges if isinstance(ranges, dict) else ())])
        return plan

    @functools.cached_property
    def directories(self) -> tuple[str, ...]:
        """The subdirectories of the output's files; a nested one comes after its parent."""
        parents = {tuple(file.split("/")[:-1]) for file in self.files if "/" in file}
        return tuple(sorted({"/".join(p[:depth]) for p in parents for depth in range(1, len(p) + 1)}))

    def names(self, file: str) -> bool:
        """Whether a file in the directory or in one of `directories` belongs to this output."""
        if file in self.files or file in _METADATA:
            return True
        return self.name is not None and naming.is_shard(file.removesuffix(".spec"), self.name, "tfrecord")

    def names_range(self, name: str) -> bool:
        """Whether `train-00000-of-00003` is a range of this output."""
        every = [content.get("ranges") for content in (self.content, *self.appended)]
        return any(name in ranges if isinstance(ranges, dict) else naming.is_range(name) for ranges in every)

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the content, in hex."""
        return _digest(self.content)

    @functools.cached_property
    def digests(self) -> tuple[str, ...]:
        """The digest, and those of the appended plans."""
        return (self.digest, *map(_digest, self.appended))

    def to_json(self) -> dict[str, Any]:
        named = {} if self.name is None else {"name": self.name}
        appended = {"appended": list(self.appended)} if self.appended else {}
        return {"kind": _KIND, "plan": self.content, "files": sorted(self.files), **named, **appended}


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(to_json(content).encode()).hexdigest()


def write_plan(output: str, plan: OutputPlan) -> None:
    """Writes plan.json, which marks the directory as rlds-beam's."""
    storage.write_text(storage.below(output, PLAN), to_json(plan.to_json()))


def add_files(output: str, files: Iterable[str]) -> None:
    """Adds files whose names have just become known to a directory's plan; creates their subdirectories.

    Raises:
      UsageError: a subdirectory is a link, or a file name is not allowed.
    """
    plan = read_plan(output)
    if plan is None:  # reported when the dataset is committed
        return
    extended = dataclasses.replace(plan, files=plan.files.union(files))
    if extended.files != plan.files:
        _check_files(extended, extended.files - plan.files)
        refuse_links(output, extended.directories)
        write_plan(output, extended)
    for directory in extended.directories:
        storage.makedirs(storage.below(output, directory))


def _check_files(plan: OutputPlan, files: Iterable[str]) -> None:
    """Checks names of files and ranges, which contain untrusted names of splits, fields, cameras, and modules."""
    taken = {PLAN, MANIFEST, LOCK, *_METADATA, *plan.files}
    clash = [directory for directory in plan.directories if directory in taken or directory in RESERVED]
    for file in (*clash, *files):
        too_long = any(len(name.encode(errors="replace")) > _MAX_NAME_BYTES for name in str(file).split("/"))
        if file in clash or file in (PLAN, MANIFEST, LOCK) or too_long or not naming.is_file_path(file):
            why = (
                f"its name has more than {_MAX_NAME_BYTES} bytes"
                if too_long
                else "that name is not allowed or already taken"
            )
            raise UsageError(
                f"the output would contain {shorten(file, 100)!r}, but {why}: rename the split, field, camera, or "
                "module that it is named after"
            )


def refuse_links(output: str, names: Iterable[str]) -> None:
    """Raises UsageError if a directory of an output is a link."""
    for name in names:
        if storage.is_link(storage.join(output, name)):
            raise UsageError(f"{storage.join(output, name)} is a link, which rlds-beam never creates: remove it")


def refuse_directories(output: str, plan: OutputPlan) -> None:
    """Raises UsageError if a local directory has the name of an output file."""
    if storage.scheme(output) is not None:
        return
    for parent in ("", COMMITS, REJECTED, *plan.directories):
        place = storage.join(output, parent) if parent else output
        if not storage.isdir(place):
            continue
        for name in set(storage.listdir(place)) - set(storage.sizes(place)):
            file, path = f"{parent}/{name}" if parent else name, storage.join(place, name)
            is_file = parent in (COMMITS, REJECTED) or plan.names(file) or file in (PLAN, MANIFEST, LOCK)
            if is_file and storage.isdir(path):
                raise UsageError(f"{path} is a directory, but rlds-beam writes a file of this name: remove it")


def read_plan(output: str) -> OutputPlan | None:
    """The plan of a directory; None if there is none or plan.json is not rlds-beam's.

    Raises:
      UsageError: it is rlds-beam's but malformed.
    """
    path = storage.join(output, PLAN)
    content = read_json(path) if storage.exists(path) else None
    if not isinstance(content, dict) or content.get("kind") != _KIND:
        return None
    check_json(content, _SCHEMA, path)
    appended = tuple(content.get("appended", ()))
    return OutputPlan(content["plan"], frozenset(content["files"]), content.get("name"), appended)


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
    changes = {re.sub(r"^(record|settings)\.", "", text): text for text in differences(old.content, new.content)}
    return f"{output} holds the output of another plan ({'; '.join(changes.values())}). {remedy}"


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
    if kind not in _FINGERPRINTS or not name or old is None or new is None:
        return f"{path} was {shorten(json.dumps(old), 60)} and is now {shorten(json.dumps(new), 60)}"
    changed = [name] if kind != "content" else _find_changed(old, new)
    return f"{_FINGERPRINTS[kind]} has changed: {some(changed)}"


def _find_changed(old: Any, new: Any) -> list[str]:
    """The files whose fingerprint changed; both lists hold names and fingerprints."""
    known = {json.dumps(entry) for entry in old} if isinstance(old, list) else set()
    return [file for file, content in new if json.dumps([file, content]) not in known]
