"""Beam filesystems for other schemes (`hdfs://`, or a user-defined filesystem)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, cast

from rlds_beam.buckets.base import Entry, Store
from rlds_beam.errors import UsageError


class BeamStore(Store):
    """Beam's filesystem for a path."""

    def __init__(self, path: str):
        from apache_beam.io.filesystem import CompressionTypes
        from apache_beam.io.filesystems import FileSystems

        self._raw = ("application/octet-stream", str(CompressionTypes.UNCOMPRESSED))
        try:
            self._files: Any = FileSystems.get_filesystem(path)
        except Exception as error:  # ValueError for an unknown scheme, BeamIOError for a failed start
            scheme = path.partition("://")[0]
            raise UsageError(
                f"cannot open {path}: there is no filesystem for {scheme}://; use a local path or gs://, s3://, az://"
            ) from error

    def check(self, path: str) -> None:
        pass

    def open_read(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._files.open(path, *self._raw))

    def open_write(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._files.create(path, *self._raw))

    def find(self, path: str) -> Entry | None:
        if not self._files.exists(path):
            return None
        return Entry(path, int(self._files.metadata(path).size_in_bytes), str(self._files.checksum(path)))

    def entries(self, prefix: str, *, below: bool) -> Iterator[Entry]:
        by_path = {}
        pattern = re.sub(r"[*\[]", "?", prefix)  # Beam's patterns have no escapes, so this lists too much
        for file in self._files.match([f"{pattern}**"])[0].metadata_list:
            if not str(file.path).startswith(prefix):
                continue
            first, slash, _ = str(file.path)[len(prefix) :].partition("/")
            is_directory = slash and not below
            path = prefix + first if is_directory else str(file.path)
            by_path[path] = Entry(path, None if is_directory else int(file.size_in_bytes))
        yield from (by_path[path] for path in sorted(by_path))

    def rename(self, source: str, destination: str) -> None:
        self._files.rename([source], [destination])

    def delete(self, paths: Sequence[str]) -> None:
        self._files.delete(list(paths))
