"""Files that libraries write to a local disk: videos, HDF5."""

from __future__ import annotations

import os
from types import TracebackType

from rlds_beam import storage
from rlds_beam.output.checksums import checksum_of
from rlds_beam.output.scratch import ScratchDirectory
from rlds_beam.output.shards import ShardInfo

_BLOCK = 4 << 20


class LocalFile:
    """A local temporary file that becomes a file of an output, possibly in a bucket.

    A context manager: it removes the file if it was not committed by the end of the block.

    Attributes:
      name: the path to write to.
    """

    def __init__(self, path: str):
        self._path = path
        self._home: ScratchDirectory | None = None
        if storage.scheme(path) is None:
            self.name = storage.temporary_name(path)
        else:
            self._home = ScratchDirectory()
            self.name = os.path.join(self._home.name, f"file{os.path.splitext(path)[1]}")

    def commit(self, records: int, first_key: str | None = None, last_key: str | None = None) -> ShardInfo:
        """Moves the file to its final path, replacing any file there; returns its `ShardInfo`."""
        size, checksum = os.path.getsize(self.name), checksum_of(self.name)
        if storage.scheme(self._path) is None:
            storage.rename(self.name, self._path)
        else:
            with open(self.name, "rb") as file, storage.open_write(self._path) as target:
                while block := file.read(_BLOCK):
                    target.write(block)
            self.abort()
        return ShardInfo(records, size, checksum, first_key, last_key)

    def abort(self) -> None:
        """Removes the unfinished file; does nothing after `commit`."""
        storage.discard(self.name)
        if self._home is not None:
            self._home.cleanup()

    def __enter__(self) -> LocalFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
