"""TFDS `dataset_info.json`: the shards of a dataset, and their numbers of records.

The file is untrusted: names and templates become file names, so they must not lead out of the dataset's directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from rlds_beam import naming
from rlds_beam.encoding.metadata import Count, decode_json
from rlds_beam.errors import UsageError
from rlds_beam.text import shorten

FEATURES, DATASET_INFO = "features.json", "dataset_info.json"
"""The metadata files of a TFDS dataset."""

DEFAULT_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
"""TFDS's shard names: `bridge_dataset-train.tfrecord-00000-of-00001`."""

PLACEHOLDERS = ("DATASET", "SPLIT", "FILEFORMAT", "SHARD_INDEX", "NUM_SHARDS", "SHARD_X_OF_Y")

_TEMPLATE = re.compile(rf"(?:[A-Za-z0-9_.-]|\{{(?:{'|'.join(PLACEHOLDERS)})\}})+")


class SplitInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A split.

    Attributes:
      name: the name of the split, for example `train`.
      shard_lengths: the number of records in each shard.
      num_bytes: the total bytes of all shards, as counted by the writer.
      filepath_template: the template of shard file names, with `PLACEHOLDERS` in braces.
    """

    name: str
    shard_lengths: tuple[Count, ...]
    num_bytes: Count = 0
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


class DatasetInfo(msgspec.Struct, frozen=True, rename="camel"):
    """The content of a `dataset_info.json`."""

    name: str
    version: str
    config_name: str = ""
    file_format: Literal["tfrecord", "array_record"] = "tfrecord"
    splits: tuple[SplitInfo, ...] = ()


def read_dataset_info(text: str | bytes, where: str) -> DatasetInfo:
    """Parses a `dataset_info.json`.

    Args:
      text: the file's text.
      where: the file's name, for messages.

    Raises:
      UsageError: not a dataset_info.json, a field is missing or wrong, a name or template could lead out of the
        dataset's directory, or the file format is not supported.
    """
    info = decode_json(text, DatasetInfo, where, foreign=True)
    names = [split.name for split in info.splits]
    if len(set(names)) < len(names):
        raise UsageError(f"{where}: duplicate split names: {shorten(names)}")
    about = {"name": info.name, "version": info.version, "configName": info.config_name or "none"}
    for what, name in (*about.items(), *(("the name of a split", name) for name in names)):
        naming.check_name(name, f"{where}: {what}")
    for split in info.splits:
        template = split.filepath_template
        if not _TEMPLATE.fullmatch(template) or template in (".", ".."):
            raise UsageError(
                f"{where}: filepathTemplate of {split.name} is {shorten(repr(template))}; it may contain letters, "
                f"digits, `_`, `.`, `-` and {', '.join('{' + p + '}' for p in PLACEHOLDERS)}, but no directories"
            )
    return info


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


class TfdsMetadata(NamedTuple):
    """TFDS's metadata of a dataset.

    Attributes:
      features: the text of features.json.
      info: the content of dataset_info.json without its splits, which have a number for each shard.
      files: the bytes of other files that belong to the data, by file name: class names, licenses, rlds-beam's
        provenance. They are only copied, so they may be in any encoding.
      outside: the names of such files that are links to files outside of the dataset; these are never copied.
    """

    features: str
    info: Mapping[str, Any] = {}
    files: Mapping[str, bytes] = {}
    outside: tuple[str, ...] = ()
