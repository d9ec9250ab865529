"""Looks for names in directories while a path is recognized."""

from __future__ import annotations

import fnmatch
import re

from rlds_beam import storage

_MAX_BELOW = 3  # directories of each directory that `**` looks into
_MAX_TRIED = 4  # directories of a directory that `*` looks into
_MAX_LISTED = {True: 12, False: 60}  # directories that `**` lists: in a bucket, and on a disk
_FILE = re.compile(r"^[._]|\.[A-Za-z]\w{1,9}$")  # files and hidden directories: not directories that hold data


class DirectoryListing:
    """The names in directories. Each directory is listed once: in a bucket, a listing is a request."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, ...]] = {}

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a directory, sorted; none if it is missing, unreadable, or not a directory."""
        if path not in self._names:
            try:
                self._names[path] = tuple(storage.listdir(path))
            except (OSError, ValueError):  # ValueError: a path with a null byte or surrogates
                self._names[path] = ()
        return self._names[path]

    def find(self, path: str, pattern: str) -> str | None:
        """The first path with a name: of a file itself, or below a directory.

        Args:
          path: a file or a directory.
          pattern: `*.npz`: the name, or one in the directory. `meta/info.json`: a name in a directory there.
            `*/steps.riegeli`: a name in one of its first few directories. `**/*.h5`: a file at any depth, in the first
            few directories.
        """
        *folders, name = pattern.split("/")
        if folders == ["**"]:
            return self._find_below(path, name)
        parents = [path]
        for folder in folders:
            below = [(parent, own) for parent in parents for own in fnmatch.filter(self.names(parent), folder)]
            parents = [storage.join(parent, own) for parent, own in below[:_MAX_TRIED]]
        if not folders and not self.names(path):
            return path if fnmatch.fnmatch(storage.split(path.rstrip("/"))[1], name) else None
        found = [storage.join(parent, own) for parent in parents for own in fnmatch.filter(self.names(parent), name)]
        return found[0] if found else None

    def _find_below(self, path: str, pattern: str) -> str | None:
        if fnmatch.fnmatch(path, pattern):
            return path
        waiting = [path]
        for _ in range(_MAX_LISTED[storage.scheme(path) is not None]):
            directory = waiting.pop()
            names = [name for name in self.names(directory) if not name.startswith(".")]
            if found := fnmatch.filter(names, pattern):
                return storage.join(directory, found[0])
            below = [name for name in names if not _FILE.search(name)][:_MAX_BELOW]
            waiting += [storage.join(directory, name) for name in reversed(below)]
            if not waiting:
                break
        return None
