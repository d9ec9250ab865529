"""plan.json: the input and options of an output directory, which is rlds-beam's with all of its content.

The input, its shards and ranges, has its own file (`inputs-<digest>.bin`): there may be a million. The file has the
name and the four columns of a `SplitInput` for each split, each after its length in bytes (int64), compressed by zlib:
about 40 bytes a shard.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.metadata import decode_json
from rlds_beam.encoding.tfds.dataset_info import DATASET_INFO, FEATURES
from rlds_beam.errors import UsageError
from rlds_beam.output.files import (
    APPEND,
    CHECKSUMS,
    COMMITS,
    FITTED,
    LOCK,
    MANIFEST,
    PARTS,
    PLAN,
    REJECTED,
    REPORT,
    inputs_file,
)
from rlds_beam.reading.shard_list import ShardList, list_segments
from rlds_beam.text import format_size, shorten
from rlds_beam.typing import Array

if TYPE_CHECKING:
    from rlds_beam.reading.base import Source, Split, WorkRange
    from rlds_beam.reading.changes import Snapshot

OUTPUT_FORMAT = 1
"""Output format version; bump when the bytes change."""
RESERVED = (
    *(PLAN, MANIFEST, LOCK, FEATURES, DATASET_INFO, REPORT, FITTED, CHECKSUMS),
    *(COMMITS, REJECTED, PARTS, APPEND),
)
"""Names that no file or directory of an output's ranges may have."""
_MAX_NAME_BYTES = 255 - len("..01234567.tmp")
"""The longest file name in bytes; its temporary name must also fit."""


class OutputPlan(msgspec.Struct, frozen=True, dict=True, omit_defaults=True, tag_field="kind", tag="rlds-beam plan"):
    """A plan.

    Attributes:
      content: everything that the output's bytes depend on, as JSON: the number of shards and ranges of each split,
        the digest of the input (`encode_inputs`), the options, the version. Equal plans give equal bytes.
      appended: the content of the plan of each append (`output.append`), in order.
      inputs: the content of the input's file (`encode_inputs`), in a plan that is not written yet. It is not in
        plan.json.
    """

    content: dict[str, Any] = msgspec.field(default_factory=dict, name="plan")
    appended: tuple[dict[str, Any], ...] = ()
    inputs: bytes = b""

    @classmethod
    def from_content(cls, content: Mapping[str, Any], inputs: bytes = b"") -> OutputPlan:
        """Makes a plan as it would be read back from its file, with lists for tuples."""
        return cls(content=json.loads(json.dumps(content)), inputs=inputs)

    @functools.cached_property
    def ranges(self) -> tuple[str, ...]:
        """The names of the ranges, `train-00000-of-00003`: those of an append continue those of their split."""
        contents = (self.content, *self.appended) if "inputs" in self.content else ()
        splits = ((split, *entry["ranges"]) for content in contents for split, entry in content["splits"].items())
        return tuple(
            f"{split}-{naming.format_shard_number(i, of)}"
            for split, first, number, of in splits
            for i in range(first, first + number)
        )

    @property
    def digest(self) -> str:
        """The SHA-256 of the content, in hex."""
        return self.digests[0]

    @functools.cached_property
    def digests(self) -> tuple[str, ...]:
        """The digest, and those of the appended plans."""
        contents = (self.content, *self.appended)
        return tuple(hashlib.sha256(msgspec.json.encode(content)).hexdigest() for content in contents)


def check_files(files: Iterable[str]) -> None:
    """Checks the names of ranges' files, which contain untrusted names of splits, fields, cameras, and modules.

    Raises:
      UsageError: a name is not allowed in an output directory.
    """
    for file in files:
        if file.partition("/")[0] in RESERVED or not naming.is_file_path(file):
            why = "that name is not allowed"
        elif max(len(name.encode()) for name in file.split("/")) > _MAX_NAME_BYTES:
            why = f"its name has more than {_MAX_NAME_BYTES} bytes"
        else:
            continue
        raise UsageError(
            f"the output would contain {shorten(file, 100)!r}, but {why}: rename the split, field, camera, or module "
            "that it is named after"
        )


def write_plan(output: str, plan: OutputPlan) -> None:
    """Writes plan.json, which marks the directory as rlds-beam's.

    Raises:
      UsageError: it would be too large to read again. A job writes it first, so no work is lost.
    """
    content = msgspec.json.encode(msgspec.structs.replace(plan, inputs=b"")) + b"\n"
    if len(content) > storage.SMALL:
        taken = format_size(len(content))
        raise UsageError(f"{output}: the plan takes {taken}: convert a part of the splits at a time")
    if plan.inputs:
        storage.write_bytes(storage.below(output, inputs_file(plan.content["inputs"])), plan.inputs)
    storage.write_bytes(storage.below(output, PLAN), content)


def read_plan(output: str) -> OutputPlan | None:
    """The plan of a directory; None if there is none or plan.json is not rlds-beam's.

    Raises:
      UsageError: it is rlds-beam's but malformed.
    """
    path = storage.join(output, PLAN)
    content = storage.read_small(path) if storage.exists(path) else b""
    try:
        kind = msgspec.json.decode(content, type=_Kind).kind
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return decode_json(content, OutputPlan, path) if kind == "rlds-beam plan" else None


class _Kind(msgspec.Struct):
    kind: str


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """The first few differences between the contents of two plans, in words."""
    if path.startswith("connectors") and isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = ({str(i): entry for i, entry in enumerate(part)} for part in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        places: list[str] = []
        for key in dict.fromkeys([*old, *new]):
            places += differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        return places[:5]
    if old == new:
        return []
    if path == "inputs":
        return ["the input has changed, or is cut into other ranges"]
    if path.startswith("functions.") and old is not None and new is not None:
        return [f"the code has changed: {path.removeprefix('functions.')}"]
    return [f"{path} was {shorten(json.dumps(old), 60)} and is now {shorten(json.dumps(new), 60)}"]


def remove_output(output: str, *, keep_rejected: bool = False) -> None:
    """Removes the content of a directory with a plan, the manifest first and the plan last.

    So a partly removed output can be recognized. The lock and the unfinished parts of rejected records stay.

    Args:
      keep_rejected: whether to leave `rejected/` as it is.
    """
    if read_plan(output) is None:
        return
    storage.remove_files(output, [MANIFEST])
    files = storage.sizes(output)
    for directory in {*storage.listdir(output)} - {*files, REJECTED}:
        storage.rmtree(storage.below(output, directory))
    if not keep_rejected:
        rejected = storage.listdir(storage.join(output, REJECTED))
        storage.remove_files(output, [f"{REJECTED}/{name}" for name in rejected if name != PARTS])
        storage.remove_empty(storage.below(output, REJECTED))
    storage.remove_files(output, [name for name in files if name not in (PLAN, LOCK)])
    storage.remove_files(output, [PLAN])


def remove_parts(output: str, files: Collection[str]) -> None:
    """Removes ranges' files that are no longer needed, and directories that become empty."""
    storage.remove_files(output, files)
    for directory in {file.rpartition("/")[0] for file in files} - {""}:
        storage.remove_empty(storage.below(output, directory))


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

    def shards(self) -> Iterator[InputFile]:
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
