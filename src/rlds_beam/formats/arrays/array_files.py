"""Find the files of a dataset without metadata: one file, several, or a directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rlds_beam import naming, storage
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError, Violation
from rlds_beam.formats.arrays.array_episodes import ArrayFormat
from rlds_beam.output.directory import is_output
from rlds_beam.output.manifest import read_manifest
from rlds_beam.reading.base import Decoder, Shard, Source, Split
from rlds_beam.reading.plan import selected_splits, slice_split


@dataclasses.dataclass(frozen=True)
class FoundFiles:
    """The files of a dataset.

    Attributes:
      name: the name of the dataset.
      splits: the paths of each split.
      where: the input as given, for messages.
    """

    name: str
    splits: Mapping[str, tuple[str, ...]]
    where: str


@dataclasses.dataclass(frozen=True)
class SourceOfFiles(Source):
    """Files that are read record by record, and have no TFDS metadata. Attributes: see `Source`."""

    dataset: str
    schema: Schema
    decoder: Decoder
    splits: tuple[Split, ...]
    files: RecordFormat
    violations: tuple[Violation, ...] = ()
    fps: float | None = None
    robot: str | None = None


def find_files(input: str | Sequence[str], endings: tuple[str, ...], source: str) -> FoundFiles:
    """The files of an input: paths, globs, or a directory; the files of a finished rlds-beam output by split.

    Raises:
      UsageError: no files were found.
    """
    where = input if isinstance(input, str) else ",".join(input)
    if isinstance(input, str) and storage.isdir(input):
        if is_output(input):
            manifest = read_manifest(input)
            splits: dict[str, tuple[str, ...]] = {}
            for shard in manifest["shards"]:
                if shard["file"].endswith(endings):
                    path = storage.join(input, shard["file"])
                    splits[shard["split"]] = (*splits.get(shard["split"], ()), path)
            if splits:
                return FoundFiles(manifest["name"], splits, where)
        paths = [storage.join(input, name) for name in storage.listdir(input) if name.endswith(endings)]
        name = storage.split(input.rstrip("/"))[1]
    else:
        paths = [path for pattern in storage.paths_in(input) for path in _glob(pattern)]
        name = storage.split(paths[0])[1].rpartition(".")[0] if paths else ""
    if not paths:
        raise UsageError(f"{where} has no {' or '.join(endings)} file, which --from={source} reads")
    return FoundFiles(naming.to_name(name), {"train": tuple(paths)}, where)


def _glob(pattern: str) -> list[str]:
    paths = storage.glob(pattern)
    if not paths:
        raise UsageError(f"{pattern}: no such file or directory")
    return paths


def make_shards(files: ArrayFormat, paths: Sequence[str]) -> tuple[Shard, ...]:
    """The files as shards, with their episode counts (unknown if a file cannot be read)."""
    return tuple(make_shard(files, i, path, storage.size(path)) for i, path in enumerate(paths))


def make_shard(files: ArrayFormat, index: int, path: str, size: int) -> Shard:
    """A file of this size as a shard, with its episode count (unknown if it cannot be read)."""
    try:
        return Shard(index, path, size, files.count(path))
    except OSError:
        return Shard(index, path, size, None)


def splits_of_files(files: ArrayFormat, input_files: FoundFiles, split: str | None) -> tuple[Split, ...]:
    """The selected splits of the files."""
    shards = {name: make_shards(files, paths) for name, paths in input_files.splits.items()}
    return select_splits(shards, split, input_files.name)


def select_splits(splits: Mapping[str, tuple[Shard, ...]], split: str | None, dataset: str) -> tuple[Split, ...]:
    """The splits (or slices of them) that `--split` selects."""
    chosen = selected_splits(split, splits, dataset)
    return tuple(slice_split(Split(name, splits[name]), start, stop) for name, start, stop in chosen)


def no_features(source: str, features: str | None) -> None:
    """Raises UsageError if `--features` is given."""
    if features is not None:
        raise UsageError(f"--features={features}: --from={source} takes no features.json; the files have it all")
