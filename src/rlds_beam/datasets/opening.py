"""Opens `convert`'s output or an RLDS dataset for random access."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rlds_beam import storage
from rlds_beam.datasets.base import Rows
from rlds_beam.datasets.dataset import Dataset, Images
from rlds_beam.datasets.episodes import EpisodeRows, StepRows
from rlds_beam.datasets.example_rows import ExampleRows, stacks_of
from rlds_beam.datasets.parquet_rows import ParquetRowReader
from rlds_beam.datasets.record_files import IndexedRecordFile, RecordFiles
from rlds_beam.encoding.arrayrecord import ArrayRecordFormat
from rlds_beam.encoding.base import RecordFormat
from rlds_beam.encoding.example.layout import row_field
from rlds_beam.encoding.tfrecord.file import TFRecordFormat
from rlds_beam.errors import UsageError
from rlds_beam.formats.columns.reading import ColumnsManifest
from rlds_beam.formats.registry import COLUMNS, TRAJECTORIES
from rlds_beam.formats.rlds.source import RldsSource
from rlds_beam.formats.sources import naming_outputs
from rlds_beam.formats.trajectories.output import read_fields, read_kept_fields
from rlds_beam.output.directory import is_output, is_rlds
from rlds_beam.output.manifest import load_manifest, read_manifest
from rlds_beam.reading.base import Source, Split
from rlds_beam.text import did_you_mean

Unit = Literal["episodes", "steps"]


def open_dataset(
    path: str | os.PathLike[str],
    split: str | None = None,
    module: str | None = None,
    *,
    unit: Unit = "episodes",
    images: Images = "pixels",
) -> Dataset:
    """Opens a dataset for random access; needs neither TensorFlow nor torch.

        dataset = open_dataset("columns")
        dataset[7]["obs"]

    Args:
      path: the output of `rlds-beam convert`, or an RLDS dataset (`.../name/version`).
      split: `train`, `train+test`; for RLDS also a slice of its episodes, `train[:10%]`. None selects all splits.
      module: the module, if the columns have several.
      unit: the unit of an RLDS row: an episode, whose steps are columns `steps/...` [T, ...], or one step.
      images: `pixels`, or `encoded` for the stored JPEG or PNG `bytes`.

    Raises:
      UsageError: the dataset, split, or module does not exist; the dataset is not finished; or a file has changed.
      MissingExtraError: ArrayRecord files need the extra `arrayrecord`.
    """
    where = os.fspath(path)
    for name, value, known in (("unit", unit, ("episodes", "steps")), ("images", images, ("pixels", "encoded"))):
        if value not in known:
            raise UsageError(f"{name}={value}: expected {' or '.join(known)}{did_you_mean(str(value), known)}")
    if not is_output(where) and module is None and _is_module(where):
        where, module = storage.split(where.rstrip("/"))
    if is_output(where) and not is_rlds(where):
        if unit != "episodes":
            raise UsageError(f"unit={unit} is for RLDS datasets; the rows of {where}, which is converted, are items")
        with naming_outputs(where, TRAJECTORIES, COLUMNS):
            rows, named = _open_converted(where, split, module)
    else:
        if module is not None:
            raise UsageError(f"module={module} is for the output of `rlds-beam convert --to=columns`, not for {where}")
        rows, named = _open_rlds(where, split, unit), where
    return Dataset(rows, named, images)


def _is_module(path: str) -> bool:
    """Whether a directory holds one module of a columns output."""
    directory, name = storage.split(path.rstrip("/"))
    manifest = load_manifest(directory) if directory and is_output(directory) else None
    return manifest is not None and name in manifest.get("modules", ())


def _open_converted(path: str, split: str | None, module: str | None) -> tuple[Rows, str]:
    manifest = read_manifest(path)
    if "modules" not in manifest:
        if module is not None:
            raise UsageError(f"module={module}: {path} has no columns; it was converted with another --to")
        stored = (*read_fields(manifest, path), *read_kept_fields(manifest, path))
        files = _files(path, manifest["shards"], split)
        return ExampleRows(RecordFiles(files, TFRecordFormat()), stored, stacks_of(stored)), path
    columns = ColumnsManifest.of(manifest, path)
    chosen = columns.choose(module, path)
    fields = columns.modules[chosen]
    own = [shard for shard in manifest["shards"] if shard["file"].startswith(f"{chosen}/")]
    files = _files(path, own, split)
    name = storage.join(path, chosen)
    if columns.format == "parquet":
        return ParquetRowReader(files, fields), name
    kinds: dict[str, RecordFormat] = {"tfrecord": TFRecordFormat(), "array_record": ArrayRecordFormat()}
    return ExampleRows(RecordFiles(files, kinds[columns.format]), tuple(map(row_field, fields))), name


def _files(path: str, shards: Sequence[Mapping[str, Any]], split: str | None) -> tuple[IndexedRecordFile, ...]:
    """The files with rows of some splits, after checking their sizes against the manifest."""
    splits = sorted({shard["split"] for shard in shards})
    wanted = splits if split is None else split.split("+")
    for name in wanted:
        if name not in splits:
            slices = "; rows are sliced when they are read: dataset[:100]" if "[" in name else ""
            raise UsageError(f"{path} has no split {name}; it has {', '.join(splits) or 'none'}{slices}")
    own = [shard for name in wanted for shard in shards if shard["split"] == name and shard["records"]]
    for shard in own:
        file, again = storage.join(path, shard["file"]), "fetch it again, or convert the dataset again"
        if not storage.exists(file):
            raise UsageError(f"{file} is missing, but the manifest names it: {again}")
        if storage.size(file) != shard["bytes"]:
            raise UsageError(f"{file} has {storage.size(file)} bytes, but {shard['bytes']} were written: {again}")
    return tuple(IndexedRecordFile(storage.join(path, shard["file"]), shard["records"]) for shard in own)


def _open_rlds(path: str, split: str | None, unit: Unit) -> Rows:
    source = RldsSource.open(path, split=split)
    parts = [_episodes(source, one) for one in source.splits]
    if len(parts) != 1 and any(one.sliced for one in source.splits):
        raise UsageError(f"split={split}: open slices of several splits one by one")
    if len(parts) == 1:
        episodes = parts[0]
    else:
        files = [IndexedRecordFile(shard.path, shard.records) for one in source.splits for shard in one.shards]
        episodes = EpisodeRows(RecordFiles(files, source.files), source.schema, source.decoder)
    if unit == "steps":
        return StepRows(episodes)
    return episodes


def _episodes(source: Source, split: Split) -> EpisodeRows:
    files = [IndexedRecordFile(shard.path, shard.records) for shard in split.shards]
    count = None if split.stop is None else split.stop - split.start
    return EpisodeRows(RecordFiles(files, source.files), source.schema, source.decoder, split.start, count)
