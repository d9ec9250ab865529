"""TFDS `dataset_info.json`: which shards a dataset has, and how many records are in each.

The file is untrusted: names and templates become file names, so they may hold nothing that
leaves the dataset's directory.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlds_beam import naming
from rlds_beam.encoding.checked_json import parse_json
from rlds_beam.errors import UsageError
from rlds_beam.text import shortened

FEATURES, DATASET_INFO = "features.json", "dataset_info.json"
"""The metadata files of a dataset in TFDS's layout."""

DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
"""Shard names as TFDS writes them: `bridge_dataset-train.tfrecord-00000-of-00001`."""

PLACEHOLDERS = ("DATASET", "SPLIT", "FILEFORMAT", "SHARD_INDEX", "NUM_SHARDS", "SHARD_X_OF_Y")
FILE_FORMATS = ("tfrecord", "array_record")

_TEMPLATE = re.compile(rf"(?:[A-Za-z0-9_.-]|\{{(?:{'|'.join(PLACEHOLDERS)})\}})+")


@dataclasses.dataclass(frozen=True)
class SplitInfo:
    """One split.

    Attributes:
      name: `train`.
      shard_lengths: records in each shard, in the order of the shards.
      num_bytes: bytes of all shards together, as the writer counted them.
      filepath_template: how a shard's file is called, with `PLACEHOLDERS` in braces.
    """

    name: str
    shard_lengths: tuple[int, ...]
    num_bytes: int = 0
    filepath_template: str = DEFAULT_TEMPLATE

    def filename(self, dataset: str, file_format: str, shard: int) -> str:
        """The file name of a shard; EnvLogger's template leaves the number of shards out."""
        index, count = f"{shard:05d}", f"{len(self.shard_lengths):05d}"
        return self.filepath_template.format(
            DATASET=dataset,
            SPLIT=self.name,
            FILEFORMAT=file_format,
            SHARD_INDEX=index,
            NUM_SHARDS=count,
            SHARD_X_OF_Y=naming.numbered(shard, len(self.shard_lengths)),
        )


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """What a `dataset_info.json` says; `splits` by name, in the file's order."""

    name: str
    version: str
    config_name: str | None = None
    file_format: str = "tfrecord"
    splits: Mapping[str, SplitInfo] = dataclasses.field(default_factory=dict)


def read_dataset_info(text: str | bytes, where: str) -> DatasetInfo:
    """Reads a `dataset_info.json`.

    Args:
      text: the file's text.
      where: its name, for messages.

    Raises:
      UsageError: not a dataset_info.json, a field missing or of the wrong kind, a name or a
        template that could leave the dataset's directory, or a file format that is not read.
    """
    info = parse_json(text, where)
    if not isinstance(info, dict):
        raise UsageError(f"{where}: this is not a dataset_info.json: it holds a {type(info).__name__}, not an object")
    file_format = info.get("fileFormat") or "tfrecord"
    if not isinstance(file_format, str) or file_format not in FILE_FORMATS:
        raise UsageError(
            f"{where}: fileFormat is {shortened(repr(file_format))}; rlds-beam reads {' and '.join(FILE_FORMATS)}"
        )
    splits = info.get("splits", [])
    if not isinstance(splits, list):
        raise UsageError(f"{where}: `splits` is {type(splits).__name__}, not a list")
    read = [_split(split, where) for split in splits]
    names = [split.name for split in read]
    if len(set(names)) < len(names):
        raise UsageError(f"{where}: a split is named twice: {shortened(names)}")
    config = info.get("configName")
    return DatasetInfo(
        name=_name(info, "name", where),
        version=_name(info, "version", where),
        config_name=_name(info, "configName", where) if config else None,
        file_format=file_format,
        splits={split.name: split for split in read},
    )


def _split(split: Any, where: str) -> SplitInfo:
    if not isinstance(split, dict):
        raise UsageError(f"{where}: a split is {shortened(repr(split))}, not an object")
    name = _name(split, "name", where)
    template = split.get("filepathTemplate") or DEFAULT_TEMPLATE
    if not isinstance(template, str) or not _TEMPLATE.fullmatch(template) or template in (".", ".."):
        raise UsageError(
            f"{where}: filepathTemplate of {name} is {shortened(repr(template))}; it may hold letters, digits, `_`, "
            f"`.`, `-` and {', '.join('{' + p + '}' for p in PLACEHOLDERS)}, and no directories"
        )
    lengths = split.get("shardLengths")
    if lengths is None:
        raise UsageError(f"{where}: split {name} has no shardLengths, so its shards cannot be checked")
    if not isinstance(lengths, list):
        raise UsageError(f"{where}: shardLengths of {name} is {shortened(repr(lengths))}, not a list")
    return SplitInfo(
        name=name,
        shard_lengths=tuple(_count(n, f"shardLengths of {name}", where) for n in lengths),
        num_bytes=_count(split.get("numBytes", 0), f"numBytes of {name}", where),
        filepath_template=template,
    )


def _name(holder: Mapping[str, Any], key: str, where: str) -> str:
    name = holder.get(key)
    if not isinstance(name, str) or not name:
        raise UsageError(f"{where}: there is no `{key}`")
    return naming.check_name(name, f"{where}: {key}")


def _count(value: Any, what: str, where: str) -> int:
    try:
        count = int(value)
    except (OverflowError, TypeError, ValueError):
        count = -1
    if not 0 <= count < 1 << 63:
        raise UsageError(f"{where}: {what} holds {shortened(repr(value))}, which is not a count")
    return count


def dataset_info_json(
    name: str,
    version: str,
    splits: Iterable[SplitInfo],
    *,
    config_name: str | None = None,
    file_format: str = "tfrecord",
    alternatives: Sequence[str] = (),
    description: str = "",
) -> dict[str, Any]:
    """The content of a `dataset_info.json` that `tfds.builder_from_directory` opens.

    Args:
      name: dataset name (a Python identifier in lower case, for TFDS).
      version: `1.0.0`.
      splits: the splits.
      config_name: where the dataset has configurations.
      file_format: `tfrecord` or `array_record`.
      alternatives: other formats in which the same records lie beside it.
      description: free text.
    """
    info: dict[str, Any] = {
        "name": name,
        "version": version,
        "description": description,
        "fileFormat": file_format,
        "splits": [
            {
                "name": split.name,
                "filepathTemplate": split.filepath_template,
                "numBytes": str(split.num_bytes),
                "shardLengths": [str(n) for n in split.shard_lengths],
            }
            for split in splits
        ],
    }
    if alternatives:
        info["alternativeFileFormats"] = list(alternatives)
    return info | ({"configName": config_name} if config_name else {})
