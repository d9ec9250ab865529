"""Fingerprints the content of input files, and detects files that change while a job reads them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import xxhash

from rlds_beam import storage
from rlds_beam.encoding.base import Headers, RecordFormat, format_of
from rlds_beam.encoding.tfrecord.file import TFRecordFormat
from rlds_beam.errors import NotVerifiedError, UsageError
from rlds_beam.reading.base import Shard, Source, Split
from rlds_beam.reading.shard_list import Columns, shard_indices
from rlds_beam.typing import Array
from rlds_beam.worker_status import count

AGAIN = "run the same command again when the file no longer changes"
"""The remedy for a changed file in a job that keeps nothing."""

RECORDS = "records:"
"""How the fingerprint of a TFRecord file begins that is not compressed."""

_VIDEO = ".mp4"
_VIDEO_SAMPLE, _VIDEO_SAMPLES = 1 << 20, 16
"""The block size in bytes and the number of blocks hashed of a long video. They include its beginning and end, which
hold the sizes of all frames of an MP4 file."""

_AT_ONCE, _THREADS = 1024, 32
"""Shards whose fingerprints are computed together, and those read at a time: with large records or requests, most of
the time is spent waiting."""
_SMALL = 256 << 10
"""Bytes of a local file below which threads take four times as long: most of the time is Python's."""


class Snapshot:
    """The input files at the time the job was planned. Picklable.

    Local files are compared by inode, size, and modification time, which takes a system call each; files in a bucket
    by what the store says of their content.

    Args:
      source: the dataset.
      advice: the remedy for a changed file, for the error.
      by_content: whether to fingerprint the content of local files, for `contents`.

    Raises:
      UsageError: a file cannot be read.
    """

    def __init__(self, source: Source, advice: str = AGAIN, *, by_content: bool = False):
        self._files, self._advice = source.files, advice
        self._splits: dict[str, Columns] = {}  # sorted by index
        self._companions: dict[tuple[str, int], Sequence[str]] = {}
        for split in source.splits if source.has_files else ():
            shards = split.shards if not split.sliced else [shard for shard, _, _ in split.taken]
            index, stamp = np.zeros(len(shards), np.int64), np.zeros(len(shards), np.uint64)
            for i, shard in enumerate(shards):  # before the content is read
                index[i] = shard.index
                if companions := source.companions(shard):
                    self._companions[split.name, shard.index] = companions
                stamp[i] = _stamp(self._paths(split.name, shard))
            content = np.full(len(shards), b"", "S1")
            if len(shards) and (by_content or storage.scheme(shards[0].path) is not None):
                content = self._fingerprint_all(split.name, shards)
            columns = {"index": index, "stamp": stamp, "content": content}
            if (np.diff(index) < 0).any():
                order = np.argsort(index, kind="stable")
                columns = {name: column[order] for name, column in columns.items()}
            self._splits[split.name] = Columns(columns)

    def contents(self, split: Split) -> Array:
        """The fingerprint of each shard's content, as bytes (N,); empty if it is not read, or has none."""
        shards, seen = split.shards, self._splits.get(split.name)
        if seen is None or not len(seen["index"]):
            return np.full(len(shards), b"", "S1")
        wanted = shard_indices(shards)
        if np.array_equal(seen["index"], wanted):
            return seen["content"]
        rows = np.minimum(np.searchsorted(seen["index"], wanted), len(seen["index"]) - 1)
        return np.where(seen["index"][rows] == wanted, seen["content"][rows], b"")

    def verify(self, split: str, shard: Shard) -> None:
        """Raises NotVerifiedError if a shard, or a file read along with it, has changed since the job was planned."""
        if (seen := self._splits.get(split)) is None:
            return
        row = int(np.searchsorted(seen["index"], shard.index))
        paths = self._paths(split, shard)
        same = _stamp(paths) == seen["stamp"][row]
        if same and storage.scheme(shard.path) is not None:
            same = (fingerprint_files(self._files, paths) or "").encode() == seen["content"][row]
        if not same:
            others = f" (or a file read with it, for example {paths[1]})" if paths[1:] else ""
            raise NotVerifiedError(
                f"{shard.path}{others} changed while the job was reading the dataset: {self._advice}"
            )

    def _paths(self, split: str, shard: Shard) -> list[str]:
        return [shard.path, *self._companions.get((split, shard.index), ())]

    def _fingerprint_all(self, split: str, shards: Sequence[Shard]) -> Array:
        """The fingerprints of shards, bytes (N,); in several threads, unless the files are small and local."""

        def fingerprint_shard(shard: Shard) -> bytes:
            return (fingerprint_files(self._files, self._paths(split, shard)) or "").encode()

        waiting, parts = iter(shards), list[Array]()
        with ThreadPoolExecutor(_THREADS) as pool:
            while some := [*itertools.islice(waiting, _AT_ONCE)]:
                is_local = storage.scheme(some[0].path) is None
                small = is_local and sum(shard.size for shard in some) < len(some) * _SMALL
                prints = map(fingerprint_shard, some) if small else pool.map(fingerprint_shard, some)
                parts.append(np.array([*prints], np.bytes_))
        return np.concatenate(parts)


def _stamp(paths: Sequence[str]) -> int:
    """A hash of the stamps of local files; of objects in a bucket, it says nothing."""
    # Inode, size, and modification time: the rest changes with permissions and links.
    stamps = [found and found[:3] for found in map(storage.stamp, paths)]
    return xxhash.xxh3_64_intdigest(repr(stamps).encode())


def fingerprint_files(files: RecordFormat, paths: Sequence[str]) -> str | None:
    """Fingerprints the content of a shard, and of the files read along with it (`Source.companions`).

    A fingerprint covers the lengths and checksums of all records if their framing is cheap to read, otherwise all
    bytes of a local file; for an object in a bucket it is the store's checksum or entity tag; for a long video, its
    size and samples of its bytes (`_VIDEO_SAMPLE`).

    Returns:
      The fingerprint; None if there is no such shard.

    Raises:
      UsageError: a file cannot be read.
    """
    path, *companions = paths
    content = _fingerprint_file(path, format_of(files, path))
    if not companions:
        return content
    prints = storage.at_once(_fingerprint_file, companions, companions[0])
    text = "\n".join(each or "none" for each in prints)
    return f"{content}+{xxhash.xxh3_128_hexdigest(text.encode())}"


def fingerprint(headers: Headers) -> str:
    """The fingerprint of records by their lengths and checksums."""
    return f"{RECORDS}{xxhash.xxh3_128_hexdigest(headers.lengths.tobytes() + headers.payload_crcs.tobytes())}"


def _fingerprint_file(path: str, framing: RecordFormat | None = None) -> str | None:
    with naming_shard(path), contextlib.suppress(FileNotFoundError):
        if storage.scheme(path) is not None:
            return storage.checksum(path)
        headers = framing.scan_plain(path) if isinstance(framing, TFRecordFormat) else None
        return _xxh3_of_file(path, sampled=path.endswith(_VIDEO)) if headers is None else fingerprint(headers)
    return None


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


@contextlib.contextmanager
def naming_shard(path: str) -> Iterator[None]:
    """Converts an OSError to a UsageError that names the file."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
