"""An in-memory store that Beam sees as `mem://`."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest


class MemoryStore(NamedTuple):
    """An in-memory store.

    Attributes:
      root: the path, `mem://bucket`.
      files: the content of each file, by path.
    """

    root: str
    files: dict[str, bytes]


@contextlib.contextmanager
def memory_store() -> Iterator[MemoryStore]:
    """Yields an empty store; skips the test if Beam is not installed."""
    files = _registered()
    files.clear()
    yield MemoryStore("mem://bucket", files)
    files.clear()


@functools.cache
def _registered() -> dict[str, bytes]:
    """Registers a filesystem with Beam in this process and returns its files."""
    filesystem = pytest.importorskip("apache_beam.io.filesystem")
    files: dict[str, bytes] = {}

    class Writer(io.BytesIO):
        def __init__(self, path: str) -> None:
            super().__init__()
            self.path = path

        def close(self) -> None:
            files[self.path] = self.getvalue()
            super().close()

    class MemoryFileSystem(filesystem.FileSystem):  # type: ignore[name-defined, misc]
        @classmethod
        def scheme(cls) -> str:
            return "mem"

        def join(self, basepath: str, *paths: str) -> str:
            return "/".join([basepath, *paths])

        def split(self, path: str) -> tuple[str, str]:
            head, _, tail = path.rpartition("/")
            return head, tail

        def mkdirs(self, path: str) -> None:
            pass

        def has_dirs(self) -> bool:
            return False

        def _list(self, dir_or_prefix: str) -> Any:
            for path, data in list(files.items()):
                if path.startswith(dir_or_prefix):
                    yield filesystem.FileMetadata(path, len(data))

        def create(self, path: str, mime_type: str = "", compression_type: str = "") -> Any:
            assert compression_type == "uncompressed"
            return Writer(path)

        def open(self, path: str, mime_type: str = "", compression_type: str = "") -> Any:
            assert compression_type == "uncompressed"
            if path not in files:
                raise FileNotFoundError(path)
            return io.BytesIO(files[path])

        def copy(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
            raise NotImplementedError

        def rename(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
            for source, destination in zip(source_file_names, destination_file_names, strict=True):
                files[destination] = files.pop(source)

        def exists(self, path: str) -> bool:
            return path in files

        def size(self, path: str) -> int:
            return len(files[path])

        def last_updated(self, path: str) -> float:
            return 0.0

        def checksum(self, path: str) -> str:
            return ""

        def metadata(self, path: str) -> Any:
            return filesystem.FileMetadata(path, len(files[path]))

        def delete(self, paths: list[str]) -> None:
            for path in paths:
                for name in [n for n in files if n == path or n.startswith(path + "/")]:
                    del files[name]

    _kept.append(MemoryFileSystem)
    return files


_kept: list[type] = []
"""Keeps the class alive: Beam holds its filesystems by weak reference."""
