"""Directories of Reverb checkpoints.

A server has a root directory. A checkpoint is a directory in it, named by its time, whose `DONE` file is written last;
a server that starts loads the latest one with a `DONE`. Two dangers (both in tfrecord_checkpointer.cc): if no
checkpoint has a `DONE`, the server silently starts empty; and after each checkpoint it deletes everything else in the
root.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping

from rlds_beam import storage
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.reverb.protocol.info import DONE, FILES, TABLES, TableInfo, parse_tables

_CHECKPOINT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?[+-]\d\d:\d\d")


def find_checkpoint(path: str) -> str:
    """Finds the finished checkpoint at `path`: the directory itself, or the latest one in it.

    Raises:
      UsageError: there is none. Reverb would silently start empty.
    """
    path = os.path.abspath(path)
    checkpoint = path if os.path.exists(os.path.join(path, DONE)) else latest_checkpoint(path)
    if checkpoint is None:
        raise UsageError(
            f"{path} has no finished checkpoint: expected a directory with a file {DONE}, or a directory of such "
            "directories"
        )
    return checkpoint


def latest_checkpoint(root: str) -> str | None:
    """The checkpoint that a server with this root would load, if any."""
    if not os.path.isdir(root):
        return None
    finished = [name for name in os.listdir(root) if os.path.exists(os.path.join(root, name, DONE))]
    return os.path.join(root, max(finished)) if finished else None


def open_root(root: str) -> str:
    """Prepares `root` for a server's checkpoints; returns its absolute path.

    Raises:
      UsageError: the directory contains other files, which Reverb would delete, or cannot be written to.
    """
    if storage.scheme(root) is not None or any(c in root for c in "*?[]\\"):
        raise UsageError(f"{root}: expected a local directory for checkpoints, without any of *?[]\\ in its name")
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
        f"{root} contains {foreign[0]}, which is not a Reverb checkpoint. Reverb deletes everything in its checkpoint "
        "directory except the latest checkpoint: name an empty or new directory"
    )


def read_tables(checkpoint: str) -> dict[str, TableInfo]:
    """The tables of a finished checkpoint, by name. Raises UsageError if the checkpoint cannot be read."""
    try:
        with open(os.path.join(checkpoint, TABLES), "rb") as file:
            return parse_tables(file.read())
    except (OSError, ValueError) as error:
        raise UsageError(f"{checkpoint} is not a complete Reverb checkpoint: {TABLES}: {error}") from error


def read_sizes(tables: Mapping[str, TableInfo]) -> dict[str, int]:
    """The number of items in each table."""
    return {name: table.current_size for name, table in tables.items()}


def check_sizes(where: str, tables: Mapping[str, TableInfo], expected: Mapping[str, int]) -> None:
    """Raises NotVerifiedError if a table is missing or does not have the expected number of items."""
    sizes = read_sizes(tables)
    for name, size in expected.items():
        if name not in sizes:
            raise NotVerifiedError(f"{where} has no table {name!r}; it has: {', '.join(sizes) or 'none'}")
        if sizes[name] != size:
            raise NotVerifiedError(f"{where} holds {sizes[name]:,} items in table {name!r}, not {size:,}")


def settle(checkpoint: str) -> None:
    """Flushes a server's checkpoint to the disk. Raises NotVerifiedError if the checkpoint is incomplete."""
    names = set(os.listdir(checkpoint)) if os.path.isdir(checkpoint) else set()
    missing = sorted(FILES - names)
    if missing:
        raise NotVerifiedError(
            f"{checkpoint}: the server reported this checkpoint as written, but it lacks {missing[0]}"
        )
    storage.sync(checkpoint)


def _is_checkpoint(root: str, name: str) -> bool:
    """Whether `name` is a checkpoint, finished or not."""
    path = os.path.join(root, name)
    if os.path.islink(path):  # Reverb would delete its target
        return False
    return bool(_CHECKPOINT.fullmatch(name)) and os.path.isdir(path) and FILES.issuperset(os.listdir(path))
