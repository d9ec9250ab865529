"""The input of a plan: its shards and ranges, in a file of their own (`inputs-<digest>.bin`): there may be a million.

The file is msgpack of a `SplitInput` for each split, compressed by zlib: about 40 bytes a shard.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from rlds_beam import storage
from rlds_beam.errors import UsageError
from rlds_beam.output.files import inputs_file
from rlds_beam.reading.shard_list import ShardList, list_segments
from rlds_beam.typing import Array

if TYPE_CHECKING:
    from rlds_beam.reading.base import Source, WorkRange
    from rlds_beam.reading.changes import Snapshot

_LIMIT = 1 << 30
"""The most bytes of an input that are read: about eight million shards."""


class InputFile(NamedTuple):
    """A shard of the input: its file name, size in bytes, and fingerprint (`Framing.content`) if it was read."""

    name: str
    size: int
    content: str | None


class SplitInput(msgspec.Struct, frozen=True):
    """The input of a split.

    Attributes:
      names: the file names of the shards, separated by NUL; names that are not UTF-8 have surrogates.
      contents: their fingerprints, each of `width` bytes with zeros behind.
      sizes: their sizes in bytes, int64.
      segments: what each range reads, int64 (N, 4): its number, the shard's index, start, and stop (-1: to the end).
    """

    names: bytes
    contents: bytes
    width: int
    sizes: bytes
    segments: bytes

    def files(self) -> Iterator[InputFile]:
        """The shards, in order."""
        if self.sizes:
            names, sizes = self.names.decode(errors="surrogatepass").split("\0"), np.frombuffer(self.sizes, "<i8")
            contents = np.frombuffer(self.contents, f"S{self.width}")
            for name, size, content in zip(names, sizes, contents, strict=True):
                yield InputFile(name, int(size), content.decode() or None)


Inputs = Mapping[str, SplitInput]
"""Split -> its input."""


def encode_inputs(source: Source, ranges: Sequence[WorkRange], snapshot: Snapshot) -> tuple[str, bytes]:
    """The input of a plan as the content of its file, and its digest."""
    inputs = {}
    for split in source.splits:
        shards = split.shards
        if isinstance(shards, ShardList):
            names, sizes = shards.join_names(), shards.sizes
        else:
            names = "\0".join(storage.split(shard.path)[1] for shard in shards).encode(errors="surrogatepass")
            sizes = np.array([shard.size for shard in shards], np.int64)
        segments, contents = list_segments(ranges, split.name), snapshot.contents(split)
        numbers = (_view(column.astype("<i8", copy=False)) for column in (sizes, segments))
        inputs[split.name] = SplitInput(names, _view(contents), contents.itemsize, *numbers)
    content = msgspec.msgpack.encode(inputs)
    return hashlib.sha256(content).hexdigest(), zlib.compress(content, 1)


def _view(array: Array) -> Any:
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
        return msgspec.msgpack.decode(inputs, type=dict[str, SplitInput])
    except (FileNotFoundError, zlib.error, ValueError, msgspec.DecodeError) as error:
        raise UsageError(
            f"{path} is missing or damaged ({error}): restore it, or replace the output with --overwrite"
        ) from error
