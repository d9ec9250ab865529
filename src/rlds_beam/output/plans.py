"""plan.json: what an output directory is being made of, and which files in it are the output's own.

Nothing is removed from a directory, and no commit in it is believed, that its plan does not name.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from rlds_beam import naming, storage
from rlds_beam.encoding.checked_json import ANY, FILE, FILE_PATH, Kind, check_json, read_json
from rlds_beam.encoding.tfds.dataset_info import DATASET_INFO, FEATURES
from rlds_beam.errors import UsageError
from rlds_beam.output.files import CHECKSUMS, COMMITS, FITTED, LOCK, MANIFEST, PARTS, PLAN, REJECTED, REPORT, to_json
from rlds_beam.text import shortened, some

_KIND = "rlds-beam plan"
OUTPUT_FORMAT = 1
"""Format version of what is written; bump when the bytes change."""
RESERVED = (COMMITS, REJECTED, PARTS)
"""Directories whose files no plan names."""
_OWN_PATH = (
    FILE_PATH,
    Kind("a file of the output itself", lambda name: not any(str(name).startswith(f"{d}/") for d in RESERVED)),
)
_SCHEMA = {"plan": {"*": ANY}, "files": [_OWN_PATH], "name?": FILE}
_METADATA = (FEATURES, DATASET_INFO, REPORT, FITTED, CHECKSUMS)
_FINGERPRINTS = {"content": "the input", "functions": "the code"}
"""Parts of a plan that hold fingerprints, by name of what these are of."""
_LONGEST = 255 - len("..01234567.tmp")
"""Bytes of a file name: its temporary name has to fit, too."""


@dataclasses.dataclass(frozen=True)
class OutputPlan:
    """A plan.

    Attributes:
      content: all that the output's bytes depend on, as JSON: the source with its sizes, the options, the ranges, the
        version. Equal plans make equal bytes.
      files: names of the files that may be written; `name/name` for one in a directory of the output's (or deeper).
      name: the dataset's, if all of its shards `<name>-<split>.tfrecord-00000-of-00003` are the output's, however
        many: their number is not known before.
    """

    content: Mapping[str, Any]
    files: frozenset[str] = frozenset()
    name: str | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any], files: Iterable[str] = (), name: str | None = None) -> OutputPlan:
        """A plan as it reads back from its file: lists for tuples.

        Raises:
          UsageError: a file cannot have its name in an output directory.
        """
        plan = cls(json.loads(json.dumps(content)), frozenset(files), name)
        ranges = plan.content.get("ranges")
        _check_files(plan, [*plan.files, *(ranges if isinstance(ranges, dict) else ())])
        return plan

    @functools.cached_property
    def directories(self) -> tuple[str, ...]:
        """The directories that the output's files are in, besides its own; one that is in another comes after it."""
        parents = {tuple(file.split("/")[:-1]) for file in self.files if "/" in file}
        return tuple(sorted({"/".join(p[:depth]) for p in parents for depth in range(1, len(p) + 1)}))

    def names(self, file: str) -> bool:
        """Whether a file of the directory, or of one of `directories`, is of this output."""
        if file in self.files or file in _METADATA:
            return True
        return self.name is not None and naming.is_shard(file.removesuffix(".spec"), self.name, "tfrecord")

    def names_range(self, name: str) -> bool:
        """Whether `train-00000-of-00003` is a range of this output."""
        ranges = self.content.get("ranges")
        return name in ranges if isinstance(ranges, dict) else naming.is_range(name)

    @functools.cached_property
    def digest(self) -> str:
        """Of the content: hex SHA-256."""
        return hashlib.sha256(to_json(self.content).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        named = {} if self.name is None else {"name": self.name}
        return {"kind": _KIND, "plan": self.content, "files": sorted(self.files), **named}


def write_plan(output: str, plan: OutputPlan) -> None:
    """Writes plan.json: from then on the directory is known as ours."""
    storage.write_text(storage.below(output, PLAN), to_json(plan.to_json()))


def add_files(output: str, files: Iterable[str]) -> None:
    """Adds files to the plan of a directory, whose names are known only now; makes the directories that they are in.

    Raises:
      UsageError: one of these is a link, or a file cannot have its name.
    """
    plan = read_plan(output)
    if plan is None:  # which is said when the dataset is committed
        return
    extended = dataclasses.replace(plan, files=plan.files.union(files))
    if extended.files != plan.files:
        _check_files(extended, extended.files - plan.files)
        refuse_links(output, extended.directories)
        write_plan(output, extended)
    for directory in extended.directories:
        storage.makedirs(storage.below(output, directory))


def _check_files(plan: OutputPlan, files: Iterable[str]) -> None:
    """Checks names of files and ranges, which hold names that others gave: of splits, fields, cameras, modules."""
    taken = {PLAN, MANIFEST, LOCK, *_METADATA, *plan.files}
    clash = [directory for directory in plan.directories if directory in taken or directory in RESERVED]
    for file in (*clash, *files):
        too_long = any(len(name.encode(errors="replace")) > _LONGEST for name in str(file).split("/"))
        if file in clash or file in (PLAN, MANIFEST, LOCK) or too_long or not naming.is_file_path(file):
            why = f"a name has more than {_LONGEST} bytes" if too_long else "that is no name for it, or is taken"
            raise UsageError(
                f"the output would hold {shortened(file, 100)!r}, and {why}: rename the split, field, camera or module "
                "that it is named after"
            )


def refuse_links(output: str, names: Iterable[str]) -> None:
    """Raises UsageError where a directory of an output is a link."""
    for name in names:
        if storage.is_link(storage.join(output, name)):
            raise UsageError(f"{storage.join(output, name)} is a link, and rlds-beam makes none: remove it")


def refuse_directories(output: str, plan: OutputPlan) -> None:
    """Raises UsageError where there is a local directory in place of a file of an output."""
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
                raise UsageError(f"{path} is a directory, and rlds-beam writes a file of this name: remove it")


def read_plan(output: str) -> OutputPlan | None:
    """The plan of a directory; None where there is none, or a plan.json that is not of rlds-beam.

    Raises:
      UsageError: it is of rlds-beam, but is not as rlds-beam writes it.
    """
    path = storage.join(output, PLAN)
    content = read_json(path) if storage.exists(path) else None
    if not isinstance(content, dict) or content.get("kind") != _KIND:
        return None
    check_json(content, _SCHEMA, path)
    return OutputPlan(content["plan"], frozenset(content["files"]), content.get("name"))


def holds(plan: OutputPlan) -> str:
    """What a directory with a plan holds: `trajectories (--items=sequences)`, `--to=columns`, `a recording`."""
    to = plan.content.get("to")
    if "record" in plan.content and to == "rlds":
        return "a recording"
    items = plan.content.get("items")
    kind = items.get("items") if isinstance(items, dict) else None
    return f"trajectories (--items={kind or 'pairs'})" if to == "trajectories" else f"--to={to}"


def another(output: str, old: OutputPlan, new: OutputPlan) -> str:
    """What to say of a directory that holds the output of another plan."""
    remedy = "Choose another directory, or replace it with --overwrite."
    held, wanted = holds(old), holds(new)
    if held != wanted:
        held = f"the output of {held}" if held.startswith("--to") else held
        return f"{output} holds {held}; this command would write {wanted}. {remedy}"
    changes = "; ".join(differences(old.content, new.content))
    return f"{output} holds the output of another plan ({changes}). {remedy}"


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """The first few places where two plans differ, for a person."""
    if path.startswith("connectors") and isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = ({str(i): one for i, one in enumerate(part)} for part in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        places: list[str] = []
        for key in [*old, *(k for k in new if k not in old)]:
            places += differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        return places[:5]
    return [] if old == new else [_difference(path, old, new)]


def _difference(path: str, old: Any, new: Any) -> str:
    kind, _, name = path.partition(".")
    if kind not in _FINGERPRINTS or not name or old is None or new is None:
        return f"{path} was {shortened(json.dumps(old), 60)} and is now {shortened(json.dumps(new), 60)}"
    changed = [name] if kind != "content" else _changed(old, new)
    return f"{_FINGERPRINTS[kind]} has changed: {some(changed)}"


def _changed(old: Any, new: Any) -> list[str]:
    """The files whose fingerprint is new; both lists hold a file's name and its fingerprint."""
    known = {json.dumps(entry) for entry in old} if isinstance(old, list) else set()
    return [file for file, content in new if json.dumps([file, content]) not in known]
