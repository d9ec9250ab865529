"""TFDS's metadata of an output: features.json and dataset_info.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rlds_beam import storage
from rlds_beam.encoding.tfds.dataset_info import DATASET_INFO, FEATURES, SplitInfo, dataset_info_json
from rlds_beam.encoding.tfds.features import features_json
from rlds_beam.output.files import to_json
from rlds_beam.output.manifest import VERSION

if TYPE_CHECKING:
    from rlds_beam.episodes.schema import Field
    from rlds_beam.output.shards import WrittenFile


def split_infos(directory: str, files: Iterable[tuple[str, WrittenFile]]) -> list[SplitInfo]:
    """The splits of the files, which are given as (split, file).

    Leaves out a split without records and removes its empty files, because TFDS cannot read it.
    """
    by_split: dict[str, list[WrittenFile]] = {}
    for split, file in files:
        by_split.setdefault(split, []).append(file)
    splits = []
    for split, own in by_split.items():
        if any(one.shard.records for one in own):
            lengths = tuple(one.shard.records for one in own)
            splits.append(SplitInfo(split, lengths, sum(one.shard.bytes for one in own)))
        else:
            storage.remove_files(directory, [name for one in own for name in (one.file, *one.beside)])
    return splits


def write_tfds_metadata(
    directory: str,
    name: str,
    splits: Iterable[SplitInfo],
    fields: Mapping[str, Field],
    *,
    file_format: str = "tfrecord",
    description: str = "",
) -> None:
    """Writes features.json and dataset_info.json, unless there are no splits."""
    info = dataset_info_json(name, VERSION, splits, file_format=file_format, description=description)
    if info["splits"]:
        storage.write_text(storage.below(directory, FEATURES), to_json(features_json(fields)))
        storage.write_text(storage.below(directory, DATASET_INFO), to_json(info))
