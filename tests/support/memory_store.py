"""The files in memory of fsspec."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping
from typing import NamedTuple

import fsspec


class MemoryStore(NamedTuple):
    """A store.

    Attributes:
      root: its path.
      files: the content of each file, by path.
    """

    root: str
    files: MutableMapping[str, bytes]


@contextlib.contextmanager
def memory_store() -> Iterator[MemoryStore]:
    """Yields an empty store."""
    files = _Files()
    files.clear()
    yield MemoryStore("memory://bucket", files)
    files.clear()


class _Files(MutableMapping[str, bytes]):
    def __init__(self) -> None:
        self._files = fsspec.filesystem("memory")

    def __getitem__(self, path: str) -> bytes:
        return self._files.cat_file(path)

    def __setitem__(self, path: str, content: bytes) -> None:
        self._files.pipe_file(path, content)

    def __delitem__(self, path: str) -> None:
        self._files.rm_file(path)

    def __iter__(self) -> Iterator[str]:
        return iter([f"memory:/{name}" for name in self._files.store])

    def __len__(self) -> int:
        return len(self._files.store)
