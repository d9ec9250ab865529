"""Directories of Reverb checkpoints: what is in them, and what Reverb would do to them.

A server has a root directory. A checkpoint is a directory in it, named by its time, whose `DONE` file is
written last; a server that starts loads the latest one with a `DONE`. Two things to know before a directory
is given to it (both in tfrecord_checkpointer.cc): where no checkpoint has a `DONE`, it silently
starts empty; and after each checkpoint it deletes everything else in the root.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping

from rlds_beam import storage
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.reverb.protocol.checkpoint import DONE, FILES, TABLES, parse_tables
from rlds_beam.reverb.protocol.info import TableInfo

_CHECKPOINT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d:\d\d")


def find_checkpoint(path: str) -> str:
    """The finished checkpoint at `path`: that directory itself, or the latest one in it.

    Raises:
      UsageError: there is none. Reverb would start empty, and say nothing.
    """
    path = os.path.abspath(path)
    checkpoint = path if os.path.exists(os.path.join(path, DONE)) else latest_checkpoint(path)
    if checkpoint is None:
        raise UsageError(
            f"{path} holds no finished checkpoint: a Reverb checkpoint is a directory with a file {DONE}, "
            "or holds such directories"
        )
    return checkpoint


def latest_checkpoint(root: str) -> str | None:
    """The checkpoint that a server with this root would load."""
    if not os.path.isdir(root):
        return None
    finished = [name for name in os.listdir(root) if os.path.exists(os.path.join(root, name, DONE))]
    return os.path.join(root, max(finished)) if finished else None


def open_root(root: str) -> str:
    """Makes `root` ready to take a server's checkpoints; returns its absolute path.

    Raises:
      UsageError: it holds something else, which Reverb would delete; or it cannot be written to.
    """
    if storage.scheme(root) is not None or any(c in root for c in "*?[]\\"):
        raise UsageError(f"{root}: checkpoints go to a directory of this machine, without any of *?[]\\ in its name")
    root = os.path.abspath(root)
    try:
        os.makedirs(root, exist_ok=True)
        foreign = sorted(name for name in os.listdir(root) if not _is_checkpoint(root, name))
        if not foreign:
            with tempfile.TemporaryFile(dir=root):
                return root
    except OSError as error:
        raise UsageError(f"{root} cannot take checkpoints: {error.strerror}") from error
    raise UsageError(
        f"{root} holds {foreign[0]}, which is not a Reverb checkpoint. Reverb deletes everything in its checkpoint "
        "directory but the latest checkpoint: name an empty directory, or a new one"
    )


def read_tables(checkpoint: str) -> dict[str, TableInfo]:
    """The tables of a finished checkpoint, by name.

    Raises:
      UsageError: it cannot be read.
    """
    try:
        with open(os.path.join(checkpoint, TABLES), "rb") as file:
            return parse_tables(file.read())
    except (OSError, ValueError) as error:
        raise UsageError(f"{checkpoint} is not a complete Reverb checkpoint: {TABLES}: {error}") from error


def sizes_of(tables: Mapping[str, TableInfo]) -> dict[str, int]:
    """Items in each table."""
    return {name: table.current_size for name, table in tables.items()}


def check_sizes(where: str, tables: Mapping[str, TableInfo], expected: Mapping[str, int]) -> None:
    """Raises NotVerifiedError where a table is missing or does not hold what is expected of it."""
    sizes = sizes_of(tables)
    for name, size in expected.items():
        if name not in sizes:
            raise NotVerifiedError(f"{where} has no table {name!r}; there are: {', '.join(sizes) or 'none'}")
        if sizes[name] != size:
            raise NotVerifiedError(f"{where} holds {sizes[name]:,} items in table {name!r}, not {size:,}")


def settle(checkpoint: str) -> None:
    """Writes a checkpoint of the server through to the disk.

    Raises:
      NotVerifiedError: it is incomplete.
    """
    names = set(os.listdir(checkpoint)) if os.path.isdir(checkpoint) else set()
    missing = sorted(FILES - names)
    if missing:
        raise NotVerifiedError(f"{checkpoint}: the server says that this checkpoint is written; it lacks {missing[0]}")
    storage.sync(checkpoint)


def _is_checkpoint(root: str, name: str) -> bool:
    """Whether it is one, finished or not."""
    path = os.path.join(root, name)
    if os.path.islink(path):  # Reverb would delete what it leads to
        return False
    return bool(_CHECKPOINT.fullmatch(name)) and os.path.isdir(path) and FILES.issuperset(os.listdir(path))
