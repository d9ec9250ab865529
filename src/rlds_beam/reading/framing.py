"""Finds the records of a dataset's shards and their checksums from the framing alone.

A range must begin at a record, because a record's data may contain bytes that look like records. Record positions are
known only by following the framing from the start of the file.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import xxhash

from rlds_beam import storage
from rlds_beam.encoding.base import Headers, RecordFormat, has_offsets
from rlds_beam.errors import UsageError
from rlds_beam.reading.base import Segment, Shard, Source
from rlds_beam.worker_status import count

Result = TypeVar("Result")

RecordStarts = Callable[[Shard, Sequence[int]], Sequence[int]]
"""Maps each of these positions in a shard to the first record that begins at or after it."""

_VIDEO = ".mp4"
_VIDEO_SAMPLE, _VIDEO_SAMPLES = 1 << 20, 16
"""The block size in bytes and the number of blocks hashed of a long video. They include its beginning and end, which
hold the sizes of all frames of an MP4 file."""

_AT_ONCE = 1024
"""Shards whose scans are planned together."""
_SMALL = 256 << 10
"""Bytes of a file below which threads cost more than they gain: most of the time is Python's."""
_THREADS = 8
"""Shards scanned at a time: with large records, most of the time is spent waiting for the disk."""


class Framing:
    """The framing of a dataset's shards; each is scanned once, on first use, unless `keep` is False.

    Takes 20 bytes of memory per record, and 300 per shard. `covers` is False for ArrayRecord and compressed files,
    whose framing cannot be read without the rest, and for files in a bucket, which are scanned only to cut them.
    """

    def __init__(self, source: Source | RecordFormat, *, keep: bool = True):
        self._files = source.files if isinstance(source, Source) else source
        self._keep = keep
        self._headers: dict[str, Headers] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_files": self._files, "_keep": self._keep, "_headers": {}}  # scanned again instead of pickled

    def covers(self, shard: Shard) -> bool:
        """Whether the shard's framing is cheap to read; raises UsageError if the shard cannot be read at all."""
        with reading_shard(shard):
            return self._covers(shard.path)

    def _covers(self, path: str) -> bool:
        return has_offsets(self._files, path) and storage.scheme(path) is None and self._files.is_splittable(path)

    def read_all(self, shards: Iterable[Shard]) -> None:
        """Reads the framing of several shards in parallel."""
        for _ in _map(self.headers, (shard for shard in shards if shard.path not in self._headers)):
            pass

    def headers(self, shard: Shard) -> Headers:
        """The record headers of a shard; raises UsageError if it cannot be read."""
        if shard.path not in self._headers:
            with reading_shard(shard):
                self._headers[shard.path] = self._files.scan(shard.path)
        return self._headers[shard.path]

    def read_headers(self, segment: Segment) -> Headers:
        """The record headers of a segment of a shard."""
        positions, lengths, crcs = self.headers(segment.shard)
        within = slice(*np.searchsorted(positions, [segment.start, _end(segment)]))
        return Headers(positions[within], lengths[within], crcs[within])

    def record_starts(self, shard: Shard, positions: Sequence[int]) -> list[int]:
        """Implements `RecordStarts`; gives the shard's end if no record follows. Keeps record numbers."""
        if not positions or not has_offsets(self._files, shard.path):
            return list(positions)
        starts = np.append(self.headers(shard).positions, self._files.end(shard.path, shard.size))
        nearest: list[int] = starts[np.searchsorted(starts[:-1], positions)].tolist()
        return nearest

    def content(self, shards: Sequence[Shard], companions: Sequence[Sequence[str]] = ()) -> list[str | None]:
        """Fingerprints each shard's content.

        A fingerprint covers the lengths and checksums of all records if their framing is cheap to read, otherwise all
        bytes of a local file; for an object in a bucket it is the store's checksum or entity tag. None if there is no
        file.

        Args:
          shards: the shards.
          companions: for each shard, the files read along with it (`Source.companions`). A video's fingerprint covers
            its size and samples of its bytes (`_VIDEO_SAMPLE`).

        Raises:
          UsageError: a file cannot be read.
        """
        if not shards:
            return []
        remote = storage.scheme(shards[0].path) is not None
        fingerprints = (
            storage.at_once(self._content, shards, shards[0].path) if remote else [*_map(self._content, shards)]
        )
        if not any(companions):
            return fingerprints
        return [_join(fingerprint, paths) for fingerprint, paths in zip(fingerprints, companions, strict=True)]

    def _content(self, shard: Shard) -> str | None:
        with reading_shard(shard):
            if storage.scheme(shard.path) is not None:
                return storage.checksum(shard.path)
            try:
                if not self._covers(shard.path):
                    return _xxh3_of_file(shard.path)
            except FileNotFoundError:
                return None
            return fingerprint(self.headers(shard) if self._keep else self._files.scan(shard.path))


def _map(function: Callable[[Shard], Result], shards: Iterable[Shard]) -> Iterator[Result]:
    """Maps a function that reads local files over shards; in several threads, unless the files are small."""
    waiting = iter(shards)
    with ThreadPoolExecutor(_THREADS) as pool:
        while some := [*itertools.islice(waiting, _AT_ONCE)]:
            small = sum(shard.size for shard in some) < len(some) * _SMALL
            yield from map(function, some) if small else pool.map(function, some)


def fingerprint(headers: Headers) -> str:
    """The fingerprint of records by their lengths and checksums."""
    _, lengths, crcs = headers
    return f"records:{xxhash.xxh3_128_hexdigest(lengths.tobytes() + crcs.tobytes())}"


def first_record(files: RecordFormat, segment: Segment, position: int) -> int:
    """The first record of a segment at or after `position`, by the framing from the segment's start.

    Returns the segment's end if there is none.
    """
    if position == segment.start or not has_offsets(files, segment.shard.path):
        return position
    positions = files.scan(segment.shard.path, segment.start, segment.stop).positions
    after = positions[np.searchsorted(positions, position) :]
    return int(after[0]) if len(after) else _end(segment)


@contextlib.contextmanager
def reading_shard(shard: Shard) -> Iterator[None]:
    """Converts an OSError to a UsageError that names the shard."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot read {shard.path}: {error.strerror or error}") from error


def _end(segment: Segment) -> int:
    return segment.shard.size if segment.stop is None else segment.stop


def _xxh3_of_file(path: str, sampled: bool = False) -> str:
    """Hashes a local file: all of its bytes, or its size, beginning, end, and some blocks in between."""
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


def _join(content: str | None, companions: Sequence[str]) -> str | None:
    """A shard's fingerprint combined with those of its companions."""
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
        raise UsageError(f"cannot read {path}: {error}") from error
