"""TFDS `dataset_info.json`: the shards of a dataset, and their numbers of records.

The file is untrusted: names and templates become file names, so they must not lead out of the dataset's directory.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rlds_beam import naming
from rlds_beam.encoding.metadata import parse_json
from rlds_beam.errors import UsageError
from rlds_beam.text import shorten

FEATURES, DATASET_INFO = "features.json", "dataset_info.json"
"""The metadata files of a TFDS dataset."""

DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
"""TFDS's shard names: `bridge_dataset-train.tfrecord-00000-of-00001`."""

PLACEHOLDERS = ("DATASET", "SPLIT", "FILEFORMAT", "SHARD_INDEX", "NUM_SHARDS", "SHARD_X_OF_Y")
FILE_FORMATS = ("tfrecord", "array_record")

_TEMPLATE = re.compile(rf"(?:[A-Za-z0-9_.-]|\{{(?:{'|'.join(PLACEHOLDERS)})\}})+")


@dataclasses.dataclass(frozen=True)
class SplitInfo:
    """A split.

    Attributes:
      name: the name of the split, for example `train`.
      shard_lengths: the number of records in each shard.
      num_bytes: the total bytes of all shards, as counted by the writer.
      filepath_template: the template of shard file names, with `PLACEHOLDERS` in braces.
    """

    name: str
    shard_lengths: tuple[int, ...]
    num_bytes: int = 0
    filepath_template: str = DEFAULT_TEMPLATE

    def filenames(self, dataset: str, file_format: str) -> Iterator[str]:
        """The file name of each shard; EnvLogger's template omits the number of shards."""
        count = len(self.shard_lengths)
        same = {"DATASET": dataset, "SPLIT": self.name, "FILEFORMAT": file_format, "NUM_SHARDS": f"{count:05d}"}
        template = self.filepath_template
        for name, value in same.items():
            template = template.replace(f"{{{name}}}", value)
        for shard in range(count):
            numbered = template.replace("{SHARD_INDEX}", f"{shard:05d}")
            yield numbered.replace("{SHARD_X_OF_Y}", naming.format_shard_number(shard, count))


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """The content of a `dataset_info.json`; `splits` by name, in the file's order."""

    name: str
    version: str
    config_name: str | None = None
    file_format: str = "tfrecord"
    splits: Mapping[str, SplitInfo] = dataclasses.field(default_factory=dict)


def read_dataset_info(text: str | bytes, where: str) -> DatasetInfo:
    """Parses a `dataset_info.json`.

    Args:
      text: the file's text.
      where: the file's name, for messages.

    Raises:
      UsageError: not a dataset_info.json, a field is missing or wrong, a name or template could lead out of the
        dataset's directory, or the file format is not supported.
    """
    info = parse_json(text, where)
    if not isinstance(info, dict):
        raise UsageError(f"{where}: not a dataset_info.json: it holds a {type(info).__name__}, not an object")
    file_format = info.get("fileFormat") or "tfrecord"
    if not isinstance(file_format, str) or file_format not in FILE_FORMATS:
        raise UsageError(
            f"{where}: fileFormat is {shorten(repr(file_format))}; rlds-beam supports {' and '.join(FILE_FORMATS)}"
        )
    splits = info.get("splits", [])
    if not isinstance(splits, list):
        raise UsageError(f"{where}: `splits` is {type(splits).__name__}, not a list")
    read = [_split(split, where) for split in splits]
    names = [split.name for split in read]
    if len(set(names)) < len(names):
        raise UsageError(f"{where}: duplicate split names: {shorten(names)}")
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
        raise UsageError(f"{where}: a split is {shorten(repr(split))}, not an object")
    name = _name(split, "name", where)
    template = split.get("filepathTemplate") or DEFAULT_TEMPLATE
    if not isinstance(template, str) or not _TEMPLATE.fullmatch(template) or template in (".", ".."):
        raise UsageError(
            f"{where}: filepathTemplate of {name} is {shorten(repr(template))}; it may contain letters, digits, `_`, "
            f"`.`, `-` and {', '.join('{' + p + '}' for p in PLACEHOLDERS)}, but no directories"
        )
    lengths = split.get("shardLengths")
    if lengths is None:
        raise UsageError(f"{where}: split {name} has no shardLengths, so its shards cannot be checked")
    if not isinstance(lengths, list):
        raise UsageError(f"{where}: shardLengths of {name} is {shorten(repr(lengths))}, not a list")
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
        raise UsageError(f"{where}: {what} has {shorten(repr(value))}, which is not a count")
    return count


def dataset_info_json(
    name: str,
    version: str,
    splits: Iterable[SplitInfo],
    *,
    config_name: str | None = None,
    file_format: str = "tfrecord",
    description: str = "",
) -> dict[str, Any]:
    """The content of a `dataset_info.json`, for `tfds.builder_from_directory`.

    Args:
      name: the name of the dataset; TFDS requires a lowercase Python identifier.
      version: the version, for example `1.0.0`.
      splits: the splits.
      config_name: the name of the configuration, if the dataset has any.
      file_format: `tfrecord` or `array_record`.
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
    return info | ({"configName": config_name} if config_name else {})
