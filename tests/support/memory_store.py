"""The files in memory of fsspec."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import fsspec


@contextlib.contextmanager
def memory_store() -> Iterator[str]:
    """Yields the path of an empty store."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield "memory://bucket"
    files.store.clear()


def put(path: str, content: bytes) -> None:
    """Writes a file to the store, which rlds-beam only reads."""
    fsspec.filesystem("memory").pipe_file(path, content)
