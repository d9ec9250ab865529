"""The input of a plan: its shards and ranges, in a file of their own (`inputs-<digest>.bin`): there may be a million.

The file is msgpack of a `SplitInput` for each split, compressed by zlib: about 40 bytes a shard.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from rlds_beam import storage
from rlds_beam.errors import UsageError
from rlds_beam.output.files import inputs_file

if TYPE_CHECKING:
    from rlds_beam.reading.base import Source, WorkRange
    from rlds_beam.reading.changes import Snapshot

_LIMIT = 1 << 30
"""The most bytes of an input without compression: about eight million shards."""


class InputFile(NamedTuple):
    """A shard of the input: its file name, size in bytes, and fingerprint (`Framing.content`) if it was read."""

    name: str
    size: int
    content: str | None


class SplitInput(msgspec.Struct, frozen=True):
    """The input of a split.

    Attributes:
      names, contents: file names and fingerprints of the shards, separated by NUL.
      sizes: their sizes in bytes, int64.
      segments: what each range reads, int64 (N, 4): its number, the shard's index, start, and stop (-1: to the end).
    """

    names: bytes
    contents: bytes
    sizes: bytes
    segments: bytes

    def files(self) -> Iterator[InputFile]:
        """The shards, in order."""
        if self.names:
            names, contents = self.names.decode().split("\0"), self.contents.decode().split("\0")
            for name, size, content in zip(names, np.frombuffer(self.sizes, "<i8").tolist(), contents, strict=True):
                yield InputFile(name, size, content or None)


Inputs = Mapping[str, SplitInput]
"""Split -> its input."""


def encode_inputs(source: Source, ranges: Iterable[WorkRange], snapshot: Snapshot) -> tuple[str, bytes]:
    """The input of a plan as the content of its file, and its digest.

    Raises:
      UsageError: the input has too many shards for one plan.
    """
    segments: dict[str, list[int]] = {split.name: [] for split in source.splits}
    for work in ranges:
        of_split = segments[work.split]
        for segment in work.segments:
            stop = -1 if segment.stop is None else segment.stop
            of_split += (work.index, segment.shard.index, segment.start, stop)
    inputs = {}
    for split in source.splits:
        inputs[split.name] = SplitInput(
            "\0".join(storage.split(shard.path)[1] for shard in split.shards).encode(errors="surrogateescape"),
            "\0".join(snapshot.contents(split)).encode(),
            np.fromiter((shard.size for shard in split.shards), "<i8", len(split.shards)).tobytes(),
            np.array(segments[split.name], "<i8").tobytes(),
        )
    content = msgspec.msgpack.encode(inputs)
    if len(content) > _LIMIT:
        raise UsageError(
            f"{source.dataset}: so many shards do not fit into one plan: convert one split or a part of the files at a "
            "time"
        )
    return hashlib.sha256(content).hexdigest(), zlib.compress(content, 1)


def decode_inputs(compressed: bytes, where: str) -> Inputs:
    """The input that `encode_inputs` encoded; `where` names its file. Raises UsageError if it is damaged."""
    try:
        decompressor = zlib.decompressobj()
        content = decompressor.decompress(compressed, _LIMIT)
        if not decompressor.eof:
            raise ValueError("it is cut short, or too large")
        return msgspec.msgpack.decode(content, type=dict[str, SplitInput])
    except (zlib.error, ValueError, msgspec.DecodeError) as error:
        raise UsageError(f"{where} is damaged or not written by rlds-beam: {error}") from error


def read_inputs(output: str, content: Mapping[str, Any]) -> Inputs:
    """The input of a plan with this content, or of an append; empty if it has none.

    Raises:
      UsageError: its file is damaged.
      OSError: its file cannot be read.
    """
    if "inputs" not in content:
        return {}
    path = storage.below(output, inputs_file(content["inputs"]))
    with storage.open_read(path) as file:
        return decode_inputs(file.read(_LIMIT), path)
