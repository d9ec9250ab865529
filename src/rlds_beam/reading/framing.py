"""Where the records of a dataset's shards begin, and what their checksums are, from their framing alone.

A cut within a record must not be read from: the record's data may hold bytes that look like records. So a range begins
where a record does, and that is known by following the framing from the start of the file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import xxhash

from rlds_beam import storage
from rlds_beam.encoding.base import Headers, RecordFormat
from rlds_beam.errors import UsageError
from rlds_beam.reading.base import Segment, Shard, Source
from rlds_beam.worker_status import count, working_on

RecordStarts = Callable[[Shard, Sequence[int]], Sequence[int]]
"""Of each of these positions in a shard, the first record that begins at it or after it."""

_VIDEO = ".mp4"
_VIDEO_SAMPLE, _VIDEO_SAMPLES = 1 << 20, 16
"""Bytes of a block, and number of blocks, that are hashed of a longer video. They include its beginning and
end, where an MP4 file has the sizes of all frames."""

_THREADS = 8
"""Shards that are looked at at a time: most of what a shard of large records takes is waiting for the disk."""


def has_offsets(files: RecordFormat) -> bool:
    """Whether a position may lie within a record: an offset may, the number of a record may not."""
    return files.unit == "bytes"


class Framing:
    """The framing of a dataset's shards; each is looked at once, when it is first asked for.

    It holds 20 bytes a record. Files of whole records (ArrayRecord) and compressed files have no framing that could be
    read without the rest, and files in a bucket are not looked at but for a cut: `covers` is False of them.
    """

    def __init__(self, source: Source | RecordFormat):
        self._files = source.files if isinstance(source, Source) else source
        self._headers: dict[str, Headers] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_files": self._files, "_headers": {}}  # scanned again, not sent along

    def covers(self, shard: Shard) -> bool:
        """Whether the shard's framing is cheap to read; raises UsageError if the shard cannot be read at all."""
        if not has_offsets(self._files) or storage.scheme(shard.path) is not None:
            return False
        with _reading(shard):
            return self._files.is_splittable(shard.path)

    def read_all(self, shards: Iterable[Shard]) -> None:
        """Reads the framing of several shards at a time."""
        missing = [shard for shard in shards if shard.path not in self._headers]
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(self.headers, missing):
                pass

    def headers(self, shard: Shard) -> Headers:
        """The records of a shard; raises UsageError if it cannot be read."""
        if shard.path not in self._headers:
            with working_on(f"the framing of {shard.path}"), _reading(shard):
                self._headers[shard.path] = self._files.scan(shard.path)
        return self._headers[shard.path]

    def headers_of(self, segment: Segment) -> Headers:
        """The records of a stretch of a shard."""
        positions, lengths, crcs = self.headers(segment.shard)
        within = slice(*np.searchsorted(positions, [segment.start, _end(segment)]))
        return Headers(positions[within], lengths[within], crcs[within])

    def record_starts(self, shard: Shard, positions: Sequence[int]) -> list[int]:
        """As `RecordStarts`; the shard's end where no record follows. Positions that cannot be wrong are kept."""
        if not positions or not has_offsets(self._files):
            return list(positions)
        starts = np.append(self.headers(shard).positions, self._files.end(shard.path, shard.size))
        nearest: list[int] = starts[np.searchsorted(starts[:-1], positions)].tolist()
        return nearest

    def content(self, shards: Sequence[Shard], companions: Sequence[Sequence[str]] = ()) -> list[str | None]:
        """A fingerprint of each shard's content: another one means other episodes.

        It is of the lengths and checksums of all records where their framing is cheap to read, of all bytes of other
        local files, and what a bucket says of an object: its checksum or entity tag. None where there is no file.

        Args:
          shards: the shards.
          companions: for each of them, the files that are read along with it (`Source.companions`). Of a video, the
            fingerprint is of its size and of samples of its bytes (`_VIDEO_SAMPLE`).

        Raises:
          UsageError: a file cannot be read.
        """
        if not shards:
            return []
        self.read_all(shard for shard in shards if self.covers(shard))
        fingerprints = storage.at_once(self._content, shards, shards[0].path)
        if not any(companions):
            return fingerprints
        return [_joined(fingerprint, paths) for fingerprint, paths in zip(fingerprints, companions, strict=True)]

    def _content(self, shard: Shard) -> str | None:
        with _reading(shard):
            if storage.scheme(shard.path) is not None:
                return storage.checksum(shard.path)
            if not storage.exists(shard.path):
                return None
            if not self.covers(shard):
                return _xxh3_of_file(shard.path)
        _, lengths, crcs = self.headers(shard)
        return f"records:{xxhash.xxh3_128_hexdigest(lengths.tobytes() + crcs.tobytes())}"


def first_record(files: RecordFormat, segment: Segment, position: int) -> int:
    """The first record of a segment that begins at `position` or after it, by the framing from the segment's start.

    The segment's end where there is none.
    """
    if position == segment.start or not has_offsets(files):
        return position
    positions = files.scan(segment.shard.path, segment.start, segment.stop).positions
    after = positions[np.searchsorted(positions, position) :]
    return int(after[0]) if len(after) else _end(segment)


@contextlib.contextmanager
def _reading(shard: Shard) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{shard.path} cannot be read: {error}") from error


def _end(segment: Segment) -> int:
    return segment.shard.size if segment.stop is None else segment.stop


def _xxh3_of_file(path: str, sampled: bool = False) -> str:
    """The hash of a local file: of all of its bytes, or of its size, beginning, end, and some blocks between them."""
    digest = xxhash.xxh3_128()
    with storage.open_read(path) as file:
        size = storage.size(path)
        if sampled and size > _VIDEO_SAMPLES * _VIDEO_SAMPLE:
            digest.update(str(size).encode())
            for i in range(_VIDEO_SAMPLES):
                file.seek((size - _VIDEO_SAMPLE) * i // (_VIDEO_SAMPLES - 1))
                digest.update(file.read(_VIDEO_SAMPLE))
            return f"xxh3-128-sampled:{digest.hexdigest()}"
        while block := file.read(1 << 20):
            digest.update(block)
            count(framed=len(block))
    return f"xxh3-128:{digest.hexdigest()}"


def _joined(content: str | None, companions: Sequence[str]) -> str | None:
    """A shard's fingerprint, with those of its companions."""
    if content is None or not companions:
        return content
    prints = storage.at_once(_companion, companions, companions[0])
    digest = xxhash.xxh3_128_hexdigest("\n".join(prints).encode())
    return f"{content}+{digest}"


def _companion(path: str) -> str:
    try:
        if storage.scheme(path) is not None:
            return storage.checksum(path)
        return _xxh3_of_file(path, sampled=path.endswith(_VIDEO))
    except FileNotFoundError:
        return "none"
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
