"""What there is to read: a dataset's splits and shards, found and held against its own metadata."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from rlds_beam import storage
from rlds_beam.episodes.schema import Schema
from rlds_beam.episodes.violations import Violation
from rlds_beam.errors import UsageError
from rlds_beam.formats.dataset_info import DatasetInfo, SplitInfo, read_dataset_info
from rlds_beam.formats.features import parse_features

_SPLIT = re.compile(r"(?P<name>[\w-]+)(\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")


@dataclasses.dataclass(frozen=True)
class Shard:
    """One input file.

    Attributes:
      index: position within the split, the `shard` of an episode's key.
      path: where it is.
      size: bytes on disk.
      records: how many records dataset_info.json says it holds; None where nothing says so.
    """

    index: int
    path: str
    size: int
    records: int | None


@dataclasses.dataclass(frozen=True)
class Split:
    """One split, whole or a slice of its episodes.

    Attributes:
      name: `train`.
      shards: the shards that are there, in order.
      start, stop: the slice, in episodes from the start of the split; None means to the end.
    """

    name: str
    shards: tuple[Shard, ...]
    start: int = 0
    stop: int | None = None

    @property
    def sliced(self) -> bool:
        return self.start != 0 or self.stop is not None

    @property
    def episodes(self) -> int | None:
        """How many records dataset_info.json promises (of the slice); None where nothing does."""
        if any(shard.records is None for shard in self.shards):
            return None
        total = sum(shard.records or 0 for shard in self.shards)
        return max(0, min(total, total if self.stop is None else self.stop) - self.start)

    @property
    def size(self) -> int:
        """Bytes on disk of all shards."""
        return sum(shard.size for shard in self.shards)


@dataclasses.dataclass(frozen=True)
class Source:
    """A dataset as it lies on disk.

    Attributes:
      dataset: `name/version`, the `dataset` of an episode's key.
      features: the text of features.json (for TFDS's decoder where ours does not do).
      schema: what an episode holds.
      file_format: `tfrecord` or `array_record`.
      splits: the selected ones.
      violations: what is wrong with the dataset as a whole (missing and extra shards).
    """

    dataset: str
    features: str
    schema: Schema
    file_format: str
    splits: tuple[Split, ...]
    violations: tuple[Violation, ...] = ()

    @property
    def name(self) -> str:
        return self.dataset.split("/")[0]

    @property
    def size(self) -> int:
        return sum(split.size for split in self.splits)

    @property
    def episodes(self) -> int | None:
        counts = [split.episodes for split in self.splits]
        return None if None in counts else sum(c for c in counts if c is not None)

    def split(self, name: str) -> Split:
        return next(split for split in self.splits if split.name == name)


def open_source(input: str | Sequence[str], split: str | None = None, features: str | None = None) -> Source:
    """Finds what there is to read under `input`; reads metadata only, never a record.

    Args:
      input: a TFDS directory (`…/name/version`), a directory of EnvLogger's TFDS backend, or shard
        files: a list of paths, or one text of comma-separated paths and globs.
      split: TFDS's notation, `train`, `train[:10%]`, `train[5:20]`, `train+test`; slices count
        episodes. None takes every split there is.
      features: path of a features.json. Needed for shard files, whose own directory is looked at
        otherwise.

    Raises:
      UsageError: nothing is there, the metadata is unreadable or unsafe, or the split is unknown.
    """
    if isinstance(input, str) and storage.isdir(input):
        return _open_directory(_dataset_directory(input), split, features)
    return _open_files(_expand(input), split, features)


def _dataset_directory(path: str) -> str:
    """`path` itself, or its only version directory, as TFDS users write `~/data/name`."""
    if storage.exists(storage.join(path, "features.json")):
        return path
    inner = [d for d in storage.listdir(path) if storage.exists(storage.join(path, d, "features.json"))]
    if len(inner) == 1:
        return storage.join(path, inner[0])
    if inner:
        raise UsageError(f"{path} holds {len(inner)} datasets: name one of {', '.join(sorted(inner))}")
    raise UsageError(
        f"{path} has no features.json, so it is not a TFDS dataset. Give the directory that holds features.json and "
        "dataset_info.json (…/name/version), or the shard files themselves with --features=features.json"
    )


def _open_directory(directory: str, split: str | None, features: str | None) -> Source:
    info_path = storage.join(directory, "dataset_info.json")
    if not storage.exists(info_path):
        raise UsageError(
            f"{info_path} is missing, so nothing says which shards belong to the dataset. Restore it, or name the "
            f"shard files: '{storage.join(directory, '*.tfrecord*')}'"
        )
    info = read_dataset_info(storage.read_text(info_path), info_path)
    text, schema = _features(features or storage.join(directory, "features.json"))
    there = storage.sizes(directory)
    splits, violations = [], []
    for name, start, stop in _selection(split, info):
        found, wrong = _shards(directory, there, info, info.splits[name])
        splits.append(_slice(Split(name, found), start, stop))
        violations += wrong
    return Source(
        "/".join(p for p in (info.name, info.config_name, info.version) if p),
        text, schema, info.file_format, tuple(splits), tuple(violations),
    )  # fmt: skip


def _features(path: str) -> tuple[str, Schema]:
    if not storage.exists(path):
        raise UsageError(f"{path} is missing: it says what the records hold. Name it with --features=PATH")
    text = storage.read_text(path)
    return text, parse_features(text, path)


def _shards(
    directory: str, there: Mapping[str, int], info: DatasetInfo, split: SplitInfo
) -> tuple[tuple[Shard, ...], list[Violation]]:
    """The shards of `split` that are there, and a violation for each that is missing or too many."""
    shards, violations = [], []
    expected = [split.filename(info.name, info.file_format, i) for i in range(len(split.shard_lengths))]
    for index, (name, records) in enumerate(zip(expected, split.shard_lengths, strict=True)):
        path = storage.join(directory, name)
        if name in there:
            shards.append(Shard(index, path, there[name], records))
        elif records:
            violations.append(Violation("missing_shard", f"{path} is not there; {records} episodes were to be in it"))
    named, prefix = set(expected), f"{info.name}-{split.name}.{info.file_format}"
    for name in sorted(n for n in there if n.startswith(prefix) and not n.endswith(".spec")):
        if name not in named:
            detail = f"{storage.join(directory, name)} is not one of the shards that dataset_info.json names"
            violations.append(Violation("extra_shard", detail))
    return tuple(shards), violations


def _selection(split: str | None, info: DatasetInfo) -> list[tuple[str, str | None, str | None]]:
    """(split name, start, stop) of each part of TFDS's notation."""
    if split is None:
        return [(name, None, None) for name in info.splits]
    parts: list[tuple[str, str | None, str | None]] = []
    for text in split.replace(" ", "").split("+"):
        match = _SPLIT.fullmatch(text)
        if match is None:
            raise UsageError(f"--split={text}: expected a name or a slice of one, as train, train[:10%] or train[5:20]")
        if match["name"] not in info.splits:
            near = difflib.get_close_matches(match["name"], info.splits, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"--split={text}: {info.name} has the splits {', '.join(info.splits)}{hint}")
        if any(match["name"] == name for name, _, _ in parts):
            raise UsageError(f"--split={split} names {match['name']} twice; convert the slices one by one")
        parts.append((match["name"], match["start"], match["stop"]))
    return parts


def _slice(split: Split, start: str | None, stop: str | None) -> Split:
    if start is None and stop is None:
        return split
    total = split.episodes
    if total is None:
        raise UsageError(f"{split.name} cannot be sliced: nothing says how many episodes its shards hold")
    first, last = (_boundary(text, total, default) for text, default in ((start, 0), (stop, total)))
    return dataclasses.replace(split, start=min(first, total), stop=max(first, min(last, total)))


def _boundary(text: str | None, total: int, default: int) -> int:
    """An episode index from `10%`, `-5` or `7`; percentages round to the closest, as in TFDS."""
    if text is None:
        return default
    value = round(int(text[:-1]) * total / 100) if text.endswith("%") else int(text)
    return max(0, total + value) if value < 0 else value


def _expand(input: str | Sequence[str]) -> list[str]:
    patterns: Iterable[str] = input.split(",") if isinstance(input, str) else input
    paths: list[str] = []
    for pattern in patterns:
        found = storage.glob(pattern)
        if not found:
            raise UsageError(f"{pattern}: no such file or directory")
        paths += [path for path in found if not path.endswith((".json", ".spec"))]
    return paths


def _open_files(paths: list[str], split: str | None, features: str | None) -> Source:
    """Shard files by name: their order is the order given, and nothing says how many records each holds."""
    if not paths:
        raise UsageError("no shard files among what was given")
    directory, first = storage.split(paths[0])
    text, schema = _features(features or storage.join(directory, "features.json"))
    if split is not None and not re.fullmatch(r"[\w-]+", split):
        raise UsageError(f"--split={split}: shard files given by name cannot be sliced; give the dataset's directory")
    sizes = storage.at_once(storage.size, paths, paths[0])
    shards = tuple(Shard(i, path, size, None) for i, (path, size) in enumerate(zip(paths, sizes, strict=True)))
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", first.split("-")[0].split(".")[0]) or "files"
    file_format = "array_record" if ".array_record" in first else "tfrecord"
    return Source(name, text, schema, file_format, (Split(split or "train", shards),))
