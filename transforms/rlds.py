"""Writes the episodes of your pipeline as an RLDS dataset."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import apache_beam as beam

from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError
from rlds_beam.processing.report import Report
from rlds_beam.transforms.keyed_sink import WriteKeyed
from rlds_beam.writing.arrays import ImageEncoding
from rlds_beam.writing.rlds import RldsSink, check_directory


class WriteToRlds(beam.PTransform):
    """Checks episodes of arrays and writes them as an RLDS dataset: a PCollection of one `Report`.

        keyed = root | beam.Create(paths) | beam.Map(lambda path: (path, load(path)))
        keyed | WriteToRlds("data/my_robot/1.0.0", like=load(paths[0]))

    The input is a PCollection of (key, episode), or a dict of them, by split. Keys are texts or integers; episodes are
    dicts as `rlds_beam.write_rlds` takes them. The shards hold the episodes in the order of their keys, so any number
    of workers writes the same bytes, which are those of `write_rlds`; but it does not search for episodes with equal
    bytes (`rlds-beam check` finds them). Workers write parts in the directory, which they must share, and then copy the
    records into shards: the disk needs room for the dataset twice. The dataset exists only when all of it is written; a
    pipeline that was killed starts over.

    Args:
      directory: the dataset's directory, best `NAME/1.0.0`: its name and version.
      like: an episode whose fields, dtypes, and shapes all others have.
      split: the name of the split, if the input is not a dict.
      strict: end the pipeline at a bad episode. Otherwise it is kept in `directory/rejected`, with its key.
      images, schema, overwrite: as in `write_rlds`.
      options: `description`, `fps`, `robot_type`, `names`, `check`, `format`, `shard_bytes`: as in
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
        images: ImageEncoding | Mapping[str, ImageEncoding] = "png",
        schema: Schema | None = None,
        overwrite: bool = False,
        **options: Any,
    ):
        super().__init__()
        path = os.fspath(directory)
        sink = RldsSink.create(path, images=images, schema=schema, strict=strict, **options)
        check_directory(path, overwrite=overwrite)
        self._sink, self._split = sink.like(like, split, "like"), split

    def display_data(self) -> dict[str, Any]:
        return {"output": self._sink.directory, "dataset": self._sink.dataset}

    def expand(self, episodes: Any) -> Any:
        by_split = (
            {str(name): own for name, own in episodes.items()}
            if isinstance(episodes, dict)
            else {self._split: episodes}
        )
        if not by_split:
            raise UsageError("WriteToRlds needs a PCollection of episodes for at least one split")
        sink = dataclasses.replace(self._sink, splits=tuple(by_split))
        named = [own | f"Split {split}" >> beam.Map(_with_split, split) for split, own in by_split.items()]
        written = named | beam.Flatten() | "Write" >> WriteKeyed(sink, "WriteToRlds", Report)
        return written.result


def _with_split(element: tuple[Any, Any], split: str) -> tuple[str, Any, Any]:
    if not isinstance(element, tuple) or len(element) != 2:
        raise UsageError(f"WriteToRlds: an element is a {type(element).__name__}: expected (key, episode)")
    return split, *element
