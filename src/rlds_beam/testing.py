"""Small datasets for tests, whole or broken on purpose; numpy only.

    episodes = [make_episode(10, seed=i) for i in range(20)] + [make_episode("F M M", seed=20)]
    directory = write_dataset(tmp_path, episodes, shards=2)
    flip_byte(shard_paths(directory)[0], record=3)

`write_dataset` writes what TFDS writes: `tfds.builder_from_directory` reads it.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.episodes.nesting import nest
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.formats.example import Feature, parse_example
from rlds_beam.formats.rlds_records import as_column, encode_example, schema_of
from rlds_beam.formats.tfrecord_framing import record_header
from rlds_beam.formats.tfrecord_writing import frame_all

__all__ = [
    "cut",
    "features_json",
    "flip_byte",
    "insert_bytes",
    "make_episode",
    "read_items",
    "read_payloads",
    "read_rejected",
    "record_offsets",
    "set_length",
    "shard_paths",
    "write_dataset",
]

Shape = tuple[int, ...]

BREAKABLE = (
    "empty_episode",
    "first_not_first",
    "first_inside",
    "last_not_last",
    "last_inside",
    "terminal_not_last",
    "non_finite",
    "discount_out_of_range",
)
"""The rules that `make_episode(breaks=...)` knows how to break (the inner ones need three steps)."""


def make_episode(
    steps: int | str,
    *,
    key: EpisodeKey | None = None,
    seed: int = 0,
    observation: int | Shape | Mapping[str, int | Shape] = 3,
    action: int | Shape | Mapping[str, int | Shape] = 2,
    terminal: bool = True,
    breaks: Collection[str] = (),
    columns: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Episode:
    """A columnar episode of random float32 values, valid unless asked otherwise.

    Args:
      steps: the number of steps T, or the flags of each step in letters: `"F M LT"` is first, mid,
        last and terminal; `"F M | F L"` (the bar is only for the eye) is two episodes in one record.
      key: by default `testing/1.0.0:train:00000@<seed>`.
      seed: of the random values; other values for another seed.
      observation, action: the shape of one step (an int n is (n,), () is a scalar), or a mapping
        from name to shape for a nested one (`{"state": 7}` gives `observation/state`).
      terminal: the last step is `is_terminal` (not used where `steps` spells the flags). The
        discount is 1, and 0 on the step that leads into the terminal state, as EnvLogger records it.
      breaks: ids of rules (of `BREAKABLE`) that the episode shall break.
      columns: more columns, or others in the place of the generated ones, by path.
      metadata: episode-level fields.
    """
    first, last, ends = _flags(steps, terminal)
    length = 0 if "empty_episode" in breaks else len(first)
    rng = np.random.default_rng(seed)
    made: dict[str, Any] = {}
    for name, shapes in (("observation", observation), ("action", action)):
        named = {f"{name}/{k}": v for k, v in shapes.items()} if isinstance(shapes, Mapping) else {name: shapes}
        for path, shape in named.items():
            tail = (shape,) if isinstance(shape, int) else tuple(shape)
            made[path] = rng.standard_normal((length, *tail), dtype=np.float32)
    made["reward"] = rng.standard_normal(length, dtype=np.float32)
    made["discount"] = np.where(np.append(ends[1:], False), 0, 1).astype(np.float32)[:length]
    made |= {"is_first": first[:length], "is_last": last[:length], "is_terminal": ends[:length]}
    if length:
        _break(made, breaks, length // 2)
    made |= {path: as_column(values) for path, values in (columns or {}).items()}
    key = key or EpisodeKey("testing/1.0.0", "train", 0, seed)
    return Episode(key, made, dict(metadata or {}))


def _flags(steps: int | str, terminal: bool) -> tuple[np.ndarray[Any, Any], ...]:
    """is_first, is_last, is_terminal, each bool [T]."""
    if isinstance(steps, str):
        letters = steps.replace("|", " ").split()
        if set("".join(letters)) - set("FMLT"):
            raise ValueError(f"{steps!r}: a step is written with the letters F, M, L, T, like in 'F M LT'")
        return tuple(np.array([letter in step for step in letters], bool) for letter in "FLT")
    first, last, ends = np.zeros((3, steps), bool)
    first[:1], last[-1:], ends[-1:] = True, True, terminal
    return first, last, ends


def _break(columns: dict[str, Any], breaks: Collection[str], middle: int) -> None:
    """Breaks the rules, in columns that nobody else holds yet."""
    unknown = set(breaks) - set(BREAKABLE)
    if unknown:
        raise ValueError(f"breaks={unknown.pop()!r}: make_episode can break {', '.join(BREAKABLE)}")
    if "first_not_first" in breaks:
        columns["is_first"][0] = False
    if "first_inside" in breaks:
        columns["is_first"][middle] = True
    if "last_not_last" in breaks:
        columns["is_last"][-1] = columns["is_terminal"][-1] = False
    if "last_inside" in breaks:
        columns["is_last"][middle] = True
    if "terminal_not_last" in breaks:
        columns["is_terminal"][max(middle - 1, 0)] = True
    if "non_finite" in breaks:
        columns["reward"][middle] = np.nan
    if "discount_out_of_range" in breaks:
        columns["discount"][middle] = 7


# What TFDS writes: schema, features.json, tf.Example, TFRecord, dataset_info.json


def features_json(schema: Schema) -> dict[str, Any]:
    """The content of the `features.json` that TFDS writes for the schema."""
    steps = {"feature": _feature(nest(dict(sorted(schema.steps.items())))), "length": "-1"}
    features = {"steps": {"pythonClassName": f"{_FEATURES}.dataset_feature.Dataset", "sequence": steps}}
    if schema.metadata:
        features["episode_metadata"] = _feature(nest(dict(sorted(schema.metadata.items()))))
    return _dict_feature(features)


_FEATURES = "tensorflow_datasets.core.features"


def _dict_feature(features: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{_FEATURES}.features_dict.FeaturesDict", "featuresDict": {"features": features}}


def _feature(field: Field | dict[str, Any]) -> dict[str, Any]:
    """The feature of a leaf, or the FeaturesDict of nested ones."""
    if isinstance(field, dict):
        return _dict_feature({name: _feature(child) for name, child in field.items()})
    if field.encoding == "text":
        return {"pythonClassName": f"{_FEATURES}.text_feature.Text", "text": {}}
    dimensions = {"dimensions": [str(-1 if d is None else d) for d in field.shape]} if field.shape else {}
    content = {"shape": dimensions, "dtype": field.dtype}
    if field.encoding in ("png", "jpeg"):
        image = {**content, "encodingFormat": field.encoding}
        return {"pythonClassName": f"{_FEATURES}.image_feature.Image", "image": image}
    name = "tensor_feature.Tensor" if field.shape else "scalar.Scalar"
    return {"pythonClassName": f"{_FEATURES}.{name}", "tensor": {**content, "encoding": field.encoding}}


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
    """Writes one split of a TFDS dataset to `directory/name/version`, and returns that path.

    Another call with another `split` adds it.

    Args:
      directory: the data_dir of TFDS.
      records: in order; an Episode is encoded, `bytes` are a payload to be stored as they are.
      name, version, split: as TFDS spells them (`name` may be `name/config`).
      shards: number of TFRecord files; the records are spread evenly and in order.
      schema: what features.json says; by default the schema of the first Episode.
      numbered: shard names end in `-00000-of-00002`; otherwise in `-00000` as EnvLogger's backend has it.
    """
    records = list(records)
    target = Path(directory) / name / version
    target.mkdir(parents=True, exist_ok=True)
    if schema is None:
        schema = next((schema_of(r) for r in records if isinstance(r, Episode)), None)
    if schema is not None:
        (target / "features.json").write_text(json.dumps(features_json(schema), indent=1))
    elif not (target / "features.json").exists():
        raise ValueError("write_dataset needs an Episode among the records, or schema=...")
    payloads = [r if isinstance(r, bytes) else encode_example(r, schema) for r in records]
    bounds = [len(payloads) * i // shards for i in range(shards + 1)]
    for i, (start, stop) in enumerate(itertools.pairwise(bounds)):
        number = f"{i:05d}-of-{shards:05d}" if numbered else f"{i:05d}"
        file = target / f"{name.partition('/')[0]}-{split}.tfrecord-{number}"
        file.write_bytes(frame_all(payloads[start:stop]))
    lengths = [stop - start for start, stop in itertools.pairwise(bounds)]
    _add_split(target, name, version, split, lengths, sum(map(len, payloads)), numbered)
    return target


def _add_split(
    target: Path, name: str, version: str, split: str, lengths: Sequence[int], size: int, numbered: bool
) -> None:
    """Names the split in dataset_info.json."""
    shard = "{SHARD_X_OF_Y}" if numbered else "{SHARD_INDEX}"
    path = target / "dataset_info.json"
    dataset, _, config = name.partition("/")
    info: dict[str, Any] = {"name": dataset, "version": version, "fileFormat": "tfrecord", "splits": []}
    if config:
        info["configName"] = config
    if path.exists():
        info = json.loads(path.read_text())
    info["splits"] = [s for s in info["splits"] if s["name"] != split] + [
        {
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-" + shard,
            "name": split,
            "numBytes": str(size),
            "shardLengths": list(map(str, lengths)),
        }
    ]
    path.write_text(json.dumps(info, indent=1))


# Faults in files


def shard_paths(directory: Path | str, split: str = "train") -> list[Path]:
    """The shards of a split in a dataset's directory, in order."""
    return sorted(Path(directory).glob(f"*-{split}.tfrecord-*"))


def record_offsets(shard: Path | str) -> list[int]:
    """The byte offset of every record of an undamaged TFRecord file, followed by the file's size."""
    data, offsets = Path(shard).read_bytes(), [0]
    while offsets[-1] < len(data):
        offsets.append(offsets[-1] + 16 + struct.unpack_from("<Q", data, offsets[-1])[0])
    return offsets


def read_payloads(shard: Path | str) -> list[bytes]:
    """The payloads of a sound TFRecord file (no checksum is looked at)."""
    data, offsets = Path(shard).read_bytes(), record_offsets(shard)
    return [data[start + 12 : stop - 4] for start, stop in itertools.pairwise(offsets)]


_PARTS = {"length": 0, "length_crc": 8, "payload": 12, "payload_crc": -4}


def flip_byte(shard: Path | str, record: int, part: str = "payload", at: int = 0) -> None:
    """Inverts byte `at` of a record's `length`, `length_crc`, `payload` or `payload_crc`."""
    data, offsets = bytearray(Path(shard).read_bytes()), record_offsets(shard)
    start = offsets[record] if part != "payload_crc" else offsets[record + 1]
    data[start + _PARTS[part] + at] ^= 0xFF
    Path(shard).write_bytes(data)


def set_length(shard: Path | str, record: int, length: int) -> None:
    """Makes a record claim another length, with a checksum that agrees."""
    data, start = bytearray(Path(shard).read_bytes()), record_offsets(shard)[record]
    data[start : start + 12] = record_header(length)
    Path(shard).write_bytes(data)


def cut(shard: Path | str, record: int, extra: int = 0) -> None:
    """Ends the file before `record`, or `extra` bytes into it (negative: before its end)."""
    offsets = record_offsets(shard)
    size = offsets[record] + extra if extra >= 0 else offsets[record + 1] + extra
    Path(shard).write_bytes(Path(shard).read_bytes()[:size])


def insert_bytes(shard: Path | str, record: int, data: bytes) -> None:
    """Puts bytes that belong to no record before `record`."""
    whole, start = Path(shard).read_bytes(), record_offsets(shard)[record]
    Path(shard).write_bytes(whole[:start] + data + whole[start:])


# What a conversion wrote


def read_items(output: Path | str) -> list[dict[str, Any]]:
    """The items of a finished output directory, in order, by the paths of their leaves; a JPEG is its bytes."""
    manifest = json.loads((Path(output) / "manifest.json").read_text())
    files = [Path(output) / shard["file"] for shard in manifest["shards"] if shard["records"]]
    examples = (parse_example(payload) for file in files for payload in read_payloads(file))
    return [
        {field["path"]: _leaf(example[field["path"]], field) for field in manifest["fields"]} for example in examples
    ]


def _leaf(feature: Feature, field: Mapping[str, Any]) -> Any:
    if field["encoding"] == "jpeg":
        return feature.strings()[0] if None not in field["shape"] else feature.strings()
    shape = [-1 if d is None else d for d in field["shape"]]
    if field["encoding"] == "bytes":
        return np.frombuffer(feature.strings()[0], field["dtype"]).reshape(shape)
    return (feature.floats() if field["dtype"] == "float32" else feature.ints()).reshape(shape)


def read_rejected(output: Path | str) -> list[tuple[dict[str, Any], bytes]]:
    """The rejected records of an output directory, in order: the line about each, and its bytes."""
    found: list[tuple[dict[str, Any], bytes]] = []
    for lines in sorted((Path(output) / "rejected").glob("*.jsonl")):
        about = [json.loads(line) for line in lines.read_text().splitlines()]
        found += zip(about, read_payloads(lines.with_suffix(".tfrecord")), strict=True)
    return found
