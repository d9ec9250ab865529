"""A LeRobot dataset stored as Lance: `convert --to=lerobot --storage=lance`.

Each range writes its frames to a Parquet file in `_ranges/`, and its videos to their final files, the blobs of
`videos.lance`. When all ranges are finished, each writes its data files, now with the final numbers, and removes the
Parquet file. In the end one manifest for each table lists these files in the order of the ranges. So data files and
blobs have equal bytes on every run; a manifest holds the time at which it was written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam import storage
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.lerobot import lance_tables as tables
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.lerobot.dataset_output import LerobotDatasetOutput
from rlds_beam.formats.lerobot.features import LerobotFeature
from rlds_beam.formats.lerobot.frames import FrameFormat, frames_schema
from rlds_beam.formats.lerobot.lance_tables import BLOB, FRAMES, META, PLACE, VIDEOS
from rlds_beam.formats.lerobot.range_facts import DIRECTORY, RangeNumbers, facts_file, report_damage
from rlds_beam.images.mp4_boxes import find_box
from rlds_beam.images.videos import Video
from rlds_beam.output.scratch import ScratchDirectory
from rlds_beam.output.shards import LocalFile, ShardInfo, WrittenFile
from rlds_beam.reading.plan import WorkRange
from rlds_beam.text import shorten
from rlds_beam.typing import Array

if TYPE_CHECKING:
    import pyarrow as pa

    from rlds_beam.output.commits import RangeCommit

_FILE_VERSION = "2.2"
"""The version of the data files: the first whose blobs are files."""

_ERRNO = re.compile(r"\(os error (\d{1,9})\)")
"""How Lance names the number of an OSError."""


@dataclasses.dataclass(frozen=True)
class LerobotLanceOutput(LerobotDatasetOutput):
    """A LeRobot v3.0 dataset whose frames and videos are Lance tables."""

    def check(self) -> None:
        """Raises UsageError if Lance, or LeRobot's reader of it, cannot hold the features."""
        tables.import_lance()
        stored = self.frames.stored
        if images := [feature for feature in stored if feature.kind == "image"]:
            how = "add --images=video" if images[0].is_video else "--depth makes videos of depth"
            raise UsageError(
                f"--storage=lance: LeRobot reads videos from Lance, but no images such as {images[0].name}: {how}, or "
                f"leave it out: --map=-{images[0].path}"
            )
        if shared := tables.shared_columns([feature.name for feature in stored]):
            raise UsageError(
                f"--storage=lance: {shared[0]} and {shared[1]} would be the same column: rename one with --map"
            )
        if empty := [feature.name for feature in stored if not feature.size]:
            raise UsageError(f"--storage=lance: {empty[0]} has no values, which Lance cannot hold: leave it out")

    @property
    def _tables(self) -> tuple[str, ...]:
        return (FRAMES, *([VIDEOS] if self.frames.videos else []), META)

    @property
    def _version(self) -> int:
        """The version of the tables: an append adds one."""
        return 1 if self.earlier is None else 2 + self.earlier.appends

    @property
    def metadata(self) -> tuple[str, ...]:
        written = [tables.manifest_file(table, self._version) for table in self._tables]
        return (*super().metadata, tables.data_file(META, self._version - 1), *written)

    def plan(self) -> dict[str, Any]:
        return {"lerobot": {**super().plan()["lerobot"], "storage": tables.LANCE}}

    def files(self, work: WorkRange) -> tuple[str, ...]:
        data = tables.data_file(VIDEOS, self._file_number(work.split, work.index))
        blobs = [tables.blob_file(data, number) for number in range(1, len(self.frames.videos) + 1)]
        return (f"{DIRECTORY}/{work}.parquet", facts_file(work), *blobs)

    def _data_files(self, split: str, index: int) -> list[str]:
        """The files that a range writes when all are finished."""
        number = self._file_number(split, index)
        return [tables.data_file(table, number) for table in self._tables if table != META]

    def all_files(self, ranges: Iterable[WorkRange]) -> list[str]:
        ranges = list(ranges)
        data = [name for work in ranges for name in self._data_files(work.split, work.index)]
        return [*super().all_files(ranges), *data]

    def finish_range(self, commit: RangeCommit, indices: Any) -> RangeCommit:
        facts = self.facts(commit)
        if not facts.frames:
            return commit
        data, kept, *blobs = commit.files
        numbers = facts.frame_numbers(RangeNumbers(**indices))
        schema, source = frame_columns(self.frames), storage.below(self.directory, data.file)
        frames_file, *videos_file = self._data_files(commit.split, commit.index)
        info = self._write_rows(frames_file, schema, frame_rows(source, schema, self.frames, numbers), data.shard)
        written = [dataclasses.replace(data, file=frames_file, shard=info)]
        if blobs:
            number = self._file_number(commit.split, commit.index)
            paths = [storage.below(self.directory, blob.file) for blob in blobs]
            rows = video_rows(self.frames, number, paths)
            info = self._write_rows(videos_file[0], rows.schema, rows.to_batches(), data.shard, len(blobs))
            written.append(WrittenFile(videos_file[0], info, len(blobs), role="part"))
        return dataclasses.replace(commit, files=(*written, kept, *blobs))

    def _write_rows(
        self, name: str, schema: pa.Schema, rows: Iterable[Any], source: ShardInfo, count: int | None = None
    ) -> ShardInfo:
        """Writes a data file for the episodes of a range's file; it has as many rows, or `count`."""
        with LocalFile(storage.below(self.directory, name)) as local:
            write_data_file(local.name, schema, rows)
            return local.commit(source.records if count is None else count, source.first_key, source.last_key)

    def paths(self, episodes: int) -> dict[str, Any]:
        return {**super().paths(episodes), "storage_format": tables.LANCE}

    def finish_storage(self, commits: Sequence[RangeCommit], info: str) -> None:
        written = [(file.file, file.shard) for commit in commits for file in commit.files]
        written.append(self._write_metadata(info))
        schemas = {FRAMES: frame_columns(self.frames), VIDEOS: video_columns(), META: meta_columns()}
        for table in self._tables:
            files = [(name, shard) for name, shard in written if name.startswith(table) and name.endswith(".lance")]
            content = manifest(schemas[table], [(storage.split(n)[1], shard) for n, shard in files], self._version)
            storage.write_bytes(storage.below(self.directory, tables.manifest_file(table, self._version)), content)

    def _write_metadata(self, info: str) -> tuple[str, ShardInfo]:
        """Writes the files of meta/ into a table, with `info` as its info.json."""
        before = [layout.EPISODES_PATH.format(**layout.place(i)) for i in range(self._files_before)]
        names = [name for name in (*before, *self.metadata) if name.startswith("meta/")]
        paths = {name: storage.below(self.directory, name) for name in names}
        if self.earlier is not None:
            paths |= {name: storage.join(self.earlier.directory, name) for name in before}
        there = sorted(name for name in names if name == layout.INFO or storage.exists(paths[name]))

        def read(name: str) -> bytes:
            if name == layout.INFO:
                return info.encode()
            with storage.open_read(paths[name]) as file:
                return file.read()

        file, schema = tables.data_file(META, self._version - 1), meta_columns()
        rows = (_batch(schema, [[name.removeprefix("meta/")], [read(name)]]) for name in there)
        return file, self._write_rows(file, schema, rows, ShardInfo(len(there), 0, ""))


def _batch(schema: pa.Schema, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# Rows


def frame_columns(frame_format: FrameFormat) -> pa.Schema:
    """The schema of `FRAMES`."""
    import pyarrow as pa

    parquet = frames_schema(frame_format.stored)
    kinds = {feature.name: tables.column_type(feature) for feature in frame_format.stored}
    return pa.schema([(tables.column_name(field.name), kinds.get(field.name, field.type)) for field in parquet])


def frame_rows(
    path: str, schema: pa.Schema, frame_format: FrameFormat, numbers: Mapping[str, Array]
) -> Iterator[pa.RecordBatch]:
    """The rows of a range's Parquet file with their final numbers, for each of `NUMBERED`."""
    import pyarrow as pa
    import pyarrow.parquet

    features, first = {feature.name: feature for feature in frame_format.stored}, 0
    with contextlib.ExitStack() as stack:
        with report_damage(path):
            opened = pyarrow.parquet.ParquetFile(stack.enter_context(storage.open_read(path)))
        for group in range(opened.num_row_groups):
            with report_damage(path):
                table = opened.read_row_group(group, use_threads=False)
            arrays = []
            for name in table.column_names:
                if name in numbers:
                    arrays.append(pa.array(numbers[name][first : first + table.num_rows]))
                else:
                    arrays.append(_column(table[name].combine_chunks(), features.get(name)))
            first += table.num_rows
            yield from pa.Table.from_arrays(arrays, schema=schema).to_batches()


def _column(values: Any, feature: LerobotFeature | None) -> Any:
    """A column of Parquet as Lance has it (`column_type`)."""
    import pyarrow as pa

    if feature is None or len(feature.shape) < 1 or feature.kind not in ("number", "text") or feature.size == 1:
        return values
    if feature.kind == "text":
        return values.cast(pa.list_(pa.string()))
    if len(feature.shape) == 1:
        return values
    for _ in feature.shape:
        values = values.flatten()
    return pa.FixedSizeListArray.from_arrays(values, math.prod(feature.shape))


def video_columns() -> pa.Schema:
    """The schema of `VIDEOS`. Every blob is a file."""
    import pyarrow as pa

    counts = [(name, pa.int64()) for name in (*PLACE[1:], "file_size", "moov_offset", "moov_size")]
    keys = [(name, pa.list_(pa.int64())) for name in ("kf_indices", "kf_positions")]
    blob = tables.import_lance().blob.blob_field(BLOB, dedicated_size_threshold=1)
    return pa.schema([(PLACE[0], pa.string()), *counts, *keys, blob])


def video_rows(frame_format: FrameFormat, number: int, paths: Sequence[str]) -> pa.Table:
    """The rows of a range's videos: where they are, and the number and place of each key frame."""
    import pyarrow as pa

    blobs, rows = tables.import_lance().blob.BlobDescriptorArrayBuilder(BLOB), []
    for blob, (feature, path) in enumerate(zip(frame_format.videos, paths, strict=True), 1):
        size, video = storage.size(path), Video.of(path)
        with report_damage(path), storage.open_read(path) as file:
            moov = find_box(file, size, b"moov")
        keys = video.packets[video.packets["key"] & video.packets["shown"]]
        numbers = np.round(keys["time"] * (video.base[0] / video.base[1] * frame_format.fps)).astype(np.int64)
        places = keys["offset"]
        rows.append([feature.name, *layout.place(number).values(), size, *moov, numbers, places])
        blobs.append_dedicated(blob, size)
    fields = list(video_columns())[:-1]
    columns = [pa.array(list(values), f.type) for values, f in zip(zip(*rows, strict=True), fields, strict=True)]
    return pa.Table.from_arrays([*columns, blobs.finish()], schema=pa.schema([*fields, blobs.field]))


def meta_columns() -> pa.Schema:
    """The schema of `META`."""
    import pyarrow as pa

    return pa.schema([("path", pa.string()), ("data", pa.large_binary())])


# Files


@contextlib.contextmanager
def _name_errors(path: str) -> Iterator[None]:
    """Raises OSError, with its number and the file, or RldsBeamError, for what Lance raises in the block."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, RldsBeamError) or getattr(error, "errno", None) is not None:
            raise
        if (match := _ERRNO.search(str(error))) is not None:
            raise OSError(int(match[1]), os.strerror(int(match[1])), path) from error
        raise RldsBeamError(f"cannot write {path}: {shorten(error)}") from error


def write_data_file(path: str, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> None:
    """Writes a local data file.

    Raises:
      OSError: the disk is full, for example.
      RldsBeamError: Lance cannot write it.
    """
    with _name_errors(path), tables.import_lance().file.LanceFileWriter(path, schema, version=_FILE_VERSION) as writer:
        for batch in rows:
            writer.write_batch(batch)


def manifest(schema: pa.Schema, files: Sequence[tuple[str, ShardInfo]], version: int) -> bytes:
    """The manifest of a version of a table.

    Args:
      schema: the schema of the table.
      files: its data files, in order: their names in `data/`, and their rows and bytes.
      version: the version, from 1.
    """
    import pyarrow as pa

    lance = tables.import_lance()
    with ScratchDirectory() as scratch, _name_errors(scratch):
        empty = [pa.nulls(1, field.type) for field in schema if field.name != BLOB]
        empty += [lance.blob.blob_array([None])] if BLOB in schema.names else []
        nulls = pa.Table.from_arrays(empty, schema=pa.schema([field.with_nullable(True) for field in schema]))
        written = lance.fragment.write_fragments(nulls, scratch, mode="create", data_storage_version=_FILE_VERSION)
        like, fragments = written[0].to_json(), []
        for number, (name, shard) in enumerate(files):
            file = {**like["files"][0], "path": name, "file_size_bytes": shard.bytes}
            part = {**like, "id": number, "files": [file], "physical_rows": shard.records}
            fragments.append(lance.FragmentMetadata.from_json(json.dumps(part)))
        operation = lance.LanceOperation.Overwrite(schema, fragments)
        for _ in range(version):  # each commit is the next version
            lance.LanceDataset.commit(scratch, operation, enable_v2_manifest_paths=True)
        with open(os.path.join(scratch, tables.manifest_file(".", version)), "rb") as opened:
            return opened.read()
