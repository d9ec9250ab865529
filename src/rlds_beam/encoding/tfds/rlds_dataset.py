"""Writes RLDS datasets in TFDS's layout: features.json, dataset_info.json, and TFRecord shards."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlds_beam.encoding.tfds.dataset_info import DATASET_INFO, DEFAULT_TEMPLATE, FEATURES, SplitInfo, dataset_info_json
from rlds_beam.encoding.tfds.features import features_dict
from rlds_beam.encoding.tfds.features import features_json as flat_features_json
from rlds_beam.encoding.tfds.rlds_records import encode_example, schema_of
from rlds_beam.encoding.tfrecord.writing import frame_all
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema

_FEATURES = "tensorflow_datasets.core.features"


def features_json(schema: Schema) -> dict[str, Any]:
    """The `features.json` that TFDS would write for the schema."""
    steps = {"feature": flat_features_json(schema.steps, scalars=True), "length": "-1"}
    features = {"steps": {"pythonClassName": f"{_FEATURES}.dataset_feature.Dataset", "sequence": steps}}
    if schema.metadata:
        features["episode_metadata"] = flat_features_json(schema.metadata, scalars=True)
    return features_dict(features)


def write_dataset(
    directory: Path | str,
    records: Iterable[Episode | bytes],
    *,
    name: str = "testing",
    version: str = "1.0.0",
    split: str = "train",
    shards: int = 1,
    schema: Schema | None = None,
    numbered: bool = True,
) -> Path:
    """Writes one split of a TFDS dataset to `directory/name/version`; returns this path.

    Calls with other splits add them.

    Args:
      directory: the data_dir of TFDS.
      records: the records in order; episodes are encoded, and `bytes` are stored unchanged.
      name, version, split: the names as in TFDS (`name` may be `name/config`).
      shards: the number of TFRecord files; records are distributed evenly and in order.
      schema: the schema for features.json; that of the first episode by default.
      numbered: end shard names in `-00000-of-00002`; otherwise in `-00000`, like EnvLogger's backend.
    """
    records = list(records)
    target = Path(directory) / name / version
    target.mkdir(parents=True, exist_ok=True)
    if schema is None:
        schema = next((schema_of(r) for r in records if isinstance(r, Episode)), None)
    if schema is not None:
        (target / FEATURES).write_text(json.dumps(features_json(schema), indent=1))
    elif not (target / FEATURES).exists():
        raise ValueError("write_dataset needs an Episode among the records, or schema=...")
    payloads = [r if isinstance(r, bytes) else encode_example(r, schema) for r in records]
    bounds = [len(payloads) * i // shards for i in range(shards + 1)]
    lengths = tuple(stop - start for start, stop in itertools.pairwise(bounds))
    template = DEFAULT_TEMPLATE if numbered else DEFAULT_TEMPLATE.replace("SHARD_X_OF_Y", "SHARD_INDEX")
    info = SplitInfo(split, lengths, sum(map(len, payloads)), template)
    for i, (start, stop) in enumerate(itertools.pairwise(bounds)):
        file = target / info.filename(name.partition("/")[0], "tfrecord", i)
        file.write_bytes(frame_all(payloads[start:stop]))
    _add_split(target, name, version, info)
    return target


def _add_split(target: Path, name: str, version: str, split: SplitInfo) -> None:
    """Adds the split to dataset_info.json."""
    path = target / DATASET_INFO
    dataset, _, config = name.partition("/")
    info: dict[str, Any] = {"name": dataset, "version": version, "fileFormat": "tfrecord", "splits": []}
    if config:
        info["configName"] = config
    if path.exists():
        info = json.loads(path.read_text())
    info["splits"] = [one for one in info["splits"] if one["name"] != split.name]
    info["splits"] += dataset_info_json(dataset, version, [split])["splits"]
    path.write_text(json.dumps(info, indent=1))
