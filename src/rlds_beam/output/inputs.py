"""The input of a plan: its shards and ranges, in a file of their own (`inputs-<digest>.bin`): there may be a million.

The file has the name and the four columns of a `SplitInput` for each split, each after its length in bytes (int64),
compressed by zlib: about 40 bytes a shard.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.errors import UsageError
from rlds_beam.output.files import inputs_file
from rlds_beam.reading.shard_list import ShardList, list_segments
from rlds_beam.typing import Array

if TYPE_CHECKING:
    from rlds_beam.reading.base import Source, Split, WorkRange
    from rlds_beam.reading.changes import Snapshot

_LIMIT = 1 << 30
"""The most bytes of an input that are read: about eight million shards."""


class InputFile(NamedTuple):
    """A shard of the input: its file name, size in bytes, and fingerprint (`Framing.content`) if it was read."""

    name: str
    size: int
    content: str | None


class SplitInput(NamedTuple):
    """The input of a split.

    Attributes:
      names: the file names of the shards, separated by NUL; names that are not UTF-8 have surrogates.
      contents: their fingerprints, each of the same number of bytes, with zeros behind.
      sizes: their sizes in bytes, int64.
      segments: what each range reads, int64 (N, 4): its number, the shard's index, start, and stop (-1: to the end).
    """

    names: memoryview
    contents: memoryview
    sizes: memoryview
    segments: memoryview

    def files(self) -> Iterator[InputFile]:
        """The shards, in order."""
        if self.sizes:
            names, sizes = str(self.names, "utf-8", "surrogatepass").split("\0"), np.frombuffer(self.sizes, "<i8")
            contents = np.frombuffer(self.contents, f"S{len(self.contents) // len(sizes)}")
            for name, size, content in zip(names, sizes, contents, strict=True):
                yield InputFile(name, int(size), content.decode() or None)


Inputs = Mapping[str, SplitInput]
"""Split -> its input."""


def encode_inputs(source: Source, ranges: Sequence[WorkRange], snapshot: Snapshot) -> tuple[str, bytes]:
    """The input of a plan as the content of its file, and its digest."""
    digest, compressor, parts = hashlib.sha256(), zlib.compressobj(1), list[bytes]()
    for split in source.splits:
        for column in _encode_split(split, ranges, snapshot):
            for part in (struct.pack("<q", len(column)), column):
                digest.update(part)
                parts.append(compressor.compress(part))
            del column, part  # before the next one is made
    parts.append(compressor.flush())
    return digest.hexdigest(), b"".join(parts)


def _encode_split(split: Split, ranges: Sequence[WorkRange], snapshot: Snapshot) -> Iterator[bytes | memoryview]:
    """The name of a split, and the columns of its `SplitInput`: one at a time, because they are large."""
    shards = split.shards
    yield split.name.encode()
    if isinstance(shards, ShardList):
        yield shards.join_names()
    else:
        yield "\0".join(storage.split(shard.path)[1] for shard in shards).encode(errors="surrogatepass")
    yield _view(snapshot.contents(split))
    sizes = shards.sizes if isinstance(shards, ShardList) else np.array([shard.size for shard in shards], np.int64)
    yield _view(sizes.astype("<i8", copy=False))
    yield _view(list_segments(ranges, split.name).astype("<i8", copy=False))


def _view(array: Array) -> bytes | memoryview:
    """The bytes of an array, without a copy."""
    return np.ascontiguousarray(array).data.cast("B") if array.size else b""


def read_inputs(output: str, content: Mapping[str, Any]) -> Inputs:
    """The input of a plan with this content, or of an append; empty if it has none.

    Raises:
      UsageError: its file is missing or damaged.
      OSError: its file cannot be read.
    """
    if "inputs" not in content:
        return {}
    path = storage.below(output, inputs_file(content["inputs"]))
    try:
        with storage.open_read(path) as file:
            inputs = zlib.decompressobj().decompress(file.read(_LIMIT), _LIMIT)
        if hashlib.sha256(inputs).hexdigest() != content["inputs"]:
            raise ValueError("it is not the input of this plan")
    except (FileNotFoundError, zlib.error, ValueError) as error:
        raise UsageError(
            f"{path} is missing or damaged ({error}): restore it, or replace the output with --overwrite"
        ) from error
    columns, at = list[memoryview](), 0
    while at < len(inputs):
        (size,) = struct.unpack_from("<q", inputs, at)
        columns.append(memoryview(inputs)[at + 8 : at + 8 + size])
        at += 8 + size
    return {str(name, "utf-8"): SplitInput(*own) for name, *own in zip(*[iter(columns)] * 5, strict=True)}
