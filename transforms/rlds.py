"""Writes the episodes of your pipeline as an RLDS dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import apache_beam as beam
from apache_beam.pvalue import AsList

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.formats.format_options import RldsOptions
from rlds_beam.formats.rlds.parts import check_directory
from rlds_beam.processing.report import Report
from rlds_beam.transforms.elements import in_global_window, refuse_windows
from rlds_beam.writing.episodes import ArrayEpisodes
from rlds_beam.writing.keyed_parts import KeyedBundle, KeyedWriter, ShardPlan, Written
from rlds_beam.writing.source import SHARD_BYTES, WriteSettings
from rlds_beam.writing.step_columns import ImageEncoding, ImageStorage
from rlds_beam.writing.write_rlds import describe_refusal


class WriteToRlds(beam.PTransform):
    """Checks episodes of arrays and writes them as an RLDS dataset: a PCollection of one `Report`.

        keyed = root | beam.Create(paths) | beam.Map(lambda path: (path, load(path)))
        keyed | WriteToRlds("data/my_robot/1.0.0", like=load(paths[0]))

    The input is a PCollection of (key, episode), or a dict of them, by split. Keys are texts or integers; episodes are
    dicts as `rlds_beam.write_rlds` takes them. The shards hold the episodes in the order of their keys, so any number
    of workers writes the same bytes, which are those of `write_rlds`. Workers write parts in the directory, which they
    must share, and then copy the records into shards: the disk needs room for the dataset twice. The dataset exists
    only when all of it is written; a pipeline that was killed starts over.

    Args:
      directory: the dataset's directory, best `NAME/1.0.0`.
      like: an episode whose fields, dtypes, and shapes all others have.
      split: the name of the split, if the input is not a dict.
      strict: end the pipeline at a bad episode. Otherwise it is kept in `directory/rejected`, with its key.
      name, version, description, fps, robot_type, names, images, schema, check, format, shard_bytes, overwrite: as in
        `write_rlds`.

    Raises:
      UsageError: on construction, if the directory or an argument cannot be used; while running, if keys are equal.
      FailedRuleError: on construction, if `like` is no episode; while running, with `strict`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        like: Any,
        *,
        split: str = "train",
        strict: bool = False,
        name: str | None = None,
        version: str | None = None,
        description: str | None = None,
        fps: float | None = None,
        robot_type: str | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
        images: ImageEncoding | Mapping[str, ImageEncoding] = "png",
        schema: Schema | None = None,
        check: CheckOptions | None = None,
        format: Literal["tfrecord", "array_record"] = "tfrecord",
        shard_bytes: int = SHARD_BYTES,
        overwrite: bool = False,
    ):
        super().__init__()
        path, options = os.fspath(directory), RldsOptions(format=format)
        self._settings = WriteSettings.of(
            path, name, version, shard_bytes, options, description, check or CheckOptions(), fps, robot_type, names
        )
        check_directory(path, overwrite=overwrite)
        try:
            self._episodes = ArrayEpisodes.of_first(like, ImageStorage.of(images), schema)
        except BadEpisode as bad:
            key = EpisodeKey(self._settings.dataset, split, 0, 0)
            raise describe_refusal(Rejection(key, bad.violations[0].rule, bad.violations, b""), "like") from None
        self._split, self._strict = split, strict

    def expand(self, episodes: Any) -> Any:
        by_split = (
            {str(name): own for name, own in episodes.items()}
            if isinstance(episodes, dict)
            else {self._split: episodes}
        )
        if not by_split:
            raise UsageError("WriteToRlds needs a PCollection of episodes for at least one split")
        for own in by_split.values():
            refuse_windows(self, own)
        writer = KeyedWriter(self._settings, self._episodes, tuple(by_split), self._strict)
        root = next(iter(by_split.values())).pipeline
        # Building the graph, which may never run, writes nothing.
        opened = root | "Start" >> beam.Create([None]) | "Open" >> beam.Map(_open, writer)
        written = [
            own | f"Write {split}" >> beam.ParDo(_WritePartsFn(writer, split), AsList(opened))
            for split, own in by_split.items()
        ]
        return (
            written
            | "Splits" >> beam.Flatten()
            | "All" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | "Plan" >> beam.FlatMap(_plan_shards, writer)
            | "Spread" >> beam.Reshuffle()
            | "WriteShards" >> beam.Map(_write_shard, writer)
            | "AllShards" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
            | "Commit" >> beam.Map(_commit, writer).with_output_types(Report)
        )


class _WritePartsFn(beam.DoFn):
    def __init__(self, writer: KeyedWriter, split: str):
        self._writer, self._split = writer, split
        self._bundle: KeyedBundle | None = None

    def start_bundle(self) -> None:
        self.teardown()  # if the last bundle failed

    def process(self, element: tuple[Any, Any], opened: object) -> None:
        del opened  # only a signal that the directory is ready
        if not isinstance(element, tuple) or len(element) != 2:
            raise UsageError(f"WriteToRlds: an element is a {type(element).__name__}: expected (key, episode)")
        if self._bundle is None:
            self._bundle = self._writer.open_bundle()
        self._bundle.add(self._split, *element)

    def finish_bundle(self) -> Iterator[Any]:
        bundle, self._bundle = self._bundle, None
        if bundle is not None:
            yield from map(in_global_window, bundle.finish())

    def teardown(self) -> None:
        if self._bundle is not None:
            self._bundle.abort()
            self._bundle = None


def _open(start: None, writer: KeyedWriter) -> None:
    writer.open()


def _plan_shards(written: Iterable[Written], writer: KeyedWriter) -> list[ShardPlan]:
    return writer.plan_shards(written)


def _write_shard(shard: ShardPlan, writer: KeyedWriter) -> str:
    return writer.write_shard(shard).range


def _commit(ranges: Iterable[str], writer: KeyedWriter) -> Report:
    return writer.commit(ranges)
