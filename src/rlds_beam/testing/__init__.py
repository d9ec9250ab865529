"""Small datasets for tests, valid or broken on purpose, and conformance tests for your own formats.

    episodes = [make_episode(10, seed=i) for i in range(20)] + [make_episode("F M M", seed=20)]
    directory = write_dataset(tmp_path, episodes, shards=2)
    flip_byte(shard_paths(directory)[0], record=3)

`write_dataset` writes TFDS's layout, which `tfds.builder_from_directory` reads. Subclasses of `SourceTests`,
`OutputTests`, and `ConnectorTests` are test classes for pytest.
"""

from __future__ import annotations

import itertools
import json
import struct
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam import lazy
from rlds_beam.encoding.example.reader import Feature, parse_example
from rlds_beam.encoding.tfds.rlds_dataset import as_column, features_json, write_dataset
from rlds_beam.episodes.episode import Episode, EpisodeKey

if TYPE_CHECKING:
    from rlds_beam.testing.conformance import ConnectorTests, OutputTests, SourceTests

_TESTS = dict.fromkeys(("ConnectorTests", "OutputTests", "SourceTests"), "rlds_beam.testing.conformance")

__all__ = [
    "ConnectorTests",
    "OutputTests",
    "SourceTests",
    "cut",
    "features_json",
    "flip_byte",
    "make_episode",
    "read_items",
    "read_payloads",
    "read_rejected",
    "record_offsets",
    "shard_paths",
    "write_dataset",
]

__getattr__, *_ = lazy.exports(__name__, _TESTS)

if "pytest" in sys.modules:  # failed assertions show their values
    sys.modules["pytest"].register_assert_rewrite("rlds_beam.testing.conversions", "rlds_beam.testing.conformance")

Shape = tuple[int, ...]

BREAKABLE = (
    "empty_episode",
    "missing_is_first",
    "unexpected_is_first",
    "missing_is_last",
    "unexpected_is_last",
    "terminal_not_last",
    "non_finite",
    "discount_out_of_range",
)
"""The rules that `make_episode(breaks=...)` can break (the inner ones need three steps)."""


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
    """A columnar episode of random float32 values, valid by default.

    Args:
      steps: the number of steps T, or the flags of each step as letters: `"F M LT"` is first, mid, last and
        terminal; `"F M | F L"` (the bar is only for readability) is two episodes in one record.
      key: the episode's key; by default `testing/1.0.0:train:00000@<seed>`.
      seed: seeds the random values.
      observation, action: the shape of one step (an int n is (n,), () is a scalar), or for a nested one a mapping
        from name to shape (`{"state": 7}` gives `observation/state`).
      terminal: whether the last step is `is_terminal` (ignored if `steps` spells the flags). The discount is 1, and
        0 on the step that leads into the terminal state, as EnvLogger records it.
      breaks: the rules (from `BREAKABLE`) that the episode breaks.
      columns: more columns by path; they replace generated ones of the same path.
      metadata: episode-level fields.
    """
    first, last, ends = _flags(steps, terminal)
    length = 0 if "empty_episode" in breaks else len(first)
    rng = np.random.default_rng(seed)
    generated: dict[str, Any] = {}
    for name, shapes in (("observation", observation), ("action", action)):
        named = {f"{name}/{k}": v for k, v in shapes.items()} if isinstance(shapes, Mapping) else {name: shapes}
        for path, shape in named.items():
            tail = (shape,) if isinstance(shape, int) else tuple(shape)
            generated[path] = rng.standard_normal((length, *tail), dtype=np.float32)
    generated["reward"] = rng.standard_normal(length, dtype=np.float32)
    generated["discount"] = np.where(np.append(ends[1:], False), 0, 1).astype(np.float32)[:length]
    generated |= {"is_first": first[:length], "is_last": last[:length], "is_terminal": ends[:length]}
    if length:
        _break(generated, breaks, length // 2)
    generated |= {path: as_column(values) for path, values in (columns or {}).items()}
    key = key or EpisodeKey("testing/1.0.0", "train", 0, seed)
    return Episode(key, generated, dict(metadata or {}))


def _flags(steps: int | str, terminal: bool) -> tuple[np.ndarray[Any, Any], ...]:
    """is_first, is_last, is_terminal, each bool [T]."""
    if isinstance(steps, str):
        letters = steps.replace("|", " ").split()
        if set("".join(letters)) - set("FMLT"):
            raise ValueError(f"{steps!r}: write steps with the letters F, M, L, T, for example 'F M LT'")
        return tuple(np.array([letter in step for step in letters], bool) for letter in "FLT")
    first, last, ends = np.zeros((3, steps), bool)
    first[:1], last[-1:], ends[-1:] = True, True, terminal
    return first, last, ends


def _break(columns: dict[str, Any], breaks: Collection[str], middle: int) -> None:
    """Breaks the rules in place; nothing else refers to the columns yet."""
    unknown = set(breaks) - set(BREAKABLE)
    if unknown:
        raise ValueError(f"breaks={unknown.pop()!r}: make_episode can break {', '.join(BREAKABLE)}")
    if "missing_is_first" in breaks:
        columns["is_first"][0] = False
    if "unexpected_is_first" in breaks:
        columns["is_first"][middle] = True
    if "missing_is_last" in breaks:
        columns["is_last"][-1] = columns["is_terminal"][-1] = False
    if "unexpected_is_last" in breaks:
        columns["is_last"][middle] = True
    if "terminal_not_last" in breaks:
        columns["is_terminal"][max(middle - 1, 0)] = True
    if "non_finite" in breaks:
        columns["reward"][middle] = np.nan
    if "discount_out_of_range" in breaks:
        columns["discount"][middle] = 7


# Faults in files


def shard_paths(directory: Path | str, split: str = "train") -> list[Path]:
    """The shards of a split in a dataset directory, in order."""
    return sorted(Path(directory).glob(f"*-{split}.tfrecord-*"))


def record_offsets(shard: Path | str) -> list[int]:
    """The byte offset of each record in an undamaged TFRecord file, then the file's size."""
    data, offsets = Path(shard).read_bytes(), [0]
    while offsets[-1] < len(data):
        offsets.append(offsets[-1] + 16 + struct.unpack_from("<Q", data, offsets[-1])[0])
    return offsets


def read_payloads(shard: Path | str) -> list[bytes]:
    """The payloads of an undamaged TFRecord file (checksums are not verified)."""
    data, offsets = Path(shard).read_bytes(), record_offsets(shard)
    return [data[start + 12 : stop - 4] for start, stop in itertools.pairwise(offsets)]


_PARTS = {"length": 0, "length_crc": 8, "payload": 12, "payload_crc": -4}


def flip_byte(shard: Path | str, record: int, part: str = "payload", at: int = 0) -> None:
    """Inverts byte `at` of a record's `length`, `length_crc`, `payload` or `payload_crc`."""
    data, offsets = bytearray(Path(shard).read_bytes()), record_offsets(shard)
    start = offsets[record] if part != "payload_crc" else offsets[record + 1]
    data[start + _PARTS[part] + at] ^= 0xFF
    Path(shard).write_bytes(data)


def cut(shard: Path | str, record: int, extra: int = 0) -> None:
    """Cuts the file off before `record`, or `extra` bytes into it (negative: before its end)."""
    offsets = record_offsets(shard)
    size = offsets[record] + extra if extra >= 0 else offsets[record + 1] + extra
    Path(shard).write_bytes(Path(shard).read_bytes()[:size])


# Output of a conversion


def read_items(output: Path | str) -> list[dict[str, Any]]:
    """The items of a finished output directory, in order, as leaves by path; a JPEG is its bytes."""
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
    """The rejected records of an output directory, in order: the JSON line and the bytes of each."""
    rejected: list[tuple[dict[str, Any], bytes]] = []
    for lines in sorted((Path(output) / "rejected").glob("*.jsonl")):
        about = [json.loads(line) for line in lines.read_text().splitlines()]
        rejected += zip(about, read_payloads(lines.with_suffix(".tfrecord")), strict=True)
    return rejected
