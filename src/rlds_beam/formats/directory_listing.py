"""Look at the names in directories while a path is recognized: each directory is listed once."""

from __future__ import annotations

import contextlib
import contextvars
import fnmatch
import re
from collections.abc import Iterator

from rlds_beam import storage

_DEPTH = 8
"""How far below a directory `first_file` looks."""
_MAX_BELOW = 3
"""Maximum number of directories in each directory that it looks into."""
MAX_TRIED = 4
"""Directories of a directory in which a name is looked for."""
_MAX_LISTED = {True: 12, False: 60}
"""Maximum number of directories that it lists: in a bucket, and on a disk."""
_FILE = re.compile(r"^[._]|\.[A-Za-z]\w{1,9}$")
"""Names of files and hidden directories: not of directories that hold data."""

_listed: contextvars.ContextVar[dict[str, tuple[str, ...]] | None] = contextvars.ContextVar("listed", default=None)


@contextlib.contextmanager
def listing_once() -> Iterator[None]:
    """Within the block, `names_in` lists each directory once: in a bucket, a listing is a request."""
    before = _listed.set({} if _listed.get() is None else _listed.get())
    try:
        yield
    finally:
        _listed.reset(before)


def names_in(path: str) -> tuple[str, ...]:
    """The names in a directory, sorted; none if it is missing, unreadable, or not a directory."""
    known = _listed.get()
    if known is not None and path in known:
        return known[path]
    try:
        names = tuple(storage.listdir(path))
    except (OSError, ValueError):  # ValueError: a path with a null byte or surrogates
        names = ()
    if known is not None:
        known[path] = names
    return names


def names_below(path: str, *names: str) -> tuple[str, ...]:
    """The names in the directory `path/name/name`; lists it only if its parents have it."""
    for name in names:
        if name not in names_in(path):
            return ()
        path = storage.join(path, name)
    return names_in(path)


def holds(path: str, pattern: str) -> bool:
    """Whether a file has a name, or a directory holds it.

    Args:
      path: a file or a directory.
      pattern: `*.npz`: the name, or one in the directory. `meta/info.json`: a name in a directory there.
        `*/metadata.yaml`: a name in one of its first few directories. `**/*.h5`: a file below, as `first_file` finds.
    """
    *folders, name = pattern.split("/")
    if folders == ["**"]:
        return first_file(path, (name.removeprefix("*"),)) is not None
    if folders == ["*"]:
        return any(name in names_below(path, folder) for folder in names_in(path)[:MAX_TRIED])
    names = names_below(path, *folders)
    if not folders and not names:
        names = (storage.split(path.rstrip("/"))[1],)
    return any(map(re.compile(fnmatch.translate(name)).match, names))


def first_file(path: str, endings: tuple[str, ...]) -> str | None:
    """The path itself, or the first file below it whose name has one of these endings; looks into few directories."""
    if path.endswith(endings):
        return path
    left = _MAX_LISTED[storage.scheme(path) is not None]
    waiting = [(path, 0)]
    while waiting and left:
        left -= 1
        directory, depth = waiting.pop()
        names = [name for name in names_in(directory) if not name.startswith(".")]
        if (found := next((name for name in names if name.endswith(endings)), None)) is not None:
            return storage.join(directory, found)
        if depth < _DEPTH:
            below = [name for name in names if not _FILE.search(name)][:_MAX_BELOW]
            waiting += [(storage.join(directory, name), depth + 1) for name in reversed(below)]
    return None
