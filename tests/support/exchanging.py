"""Exports and imports without a runner: runs the ranges of a conversion in order, and reads a source's episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rlds_beam.episodes.columns import is_text
from rlds_beam.episodes.episode import Episode
from rlds_beam.formats.inputs import open_source
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.jobs.convert import ConvertJob, prepare
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.processing.job import run_stages
from rlds_beam.processing.report import Report
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import make_episode, write_dataset


def export(data: Path | str | list[Path], output: Path | str, to: str, **options: Any) -> Report:
    """Converts and returns the report."""
    job = open_job(data, output, to, **options)
    for work in job.open():
        job.converter.convert_range(work, {})
    return commit(job)


def commit(job: ConvertJob) -> Report:
    """Completes a dataset whose ranges are converted."""
    if (finisher := job.committer.finisher) is not None:
        run_stages((finisher,))
    return job.committer.commit()


def open_job(data: Path | str | list[Path], output: Path | str, to: str, **options: Any) -> ConvertJob:
    paths = [str(path) for path in data] if isinstance(data, list) else str(data)
    return prepare(ConvertOptions.create(paths, str(output), to=to, **options))


def read_back(path: Path | str, from_: str, split: str | None = None, ranges: int | None = None) -> list[Episode]:
    """Reads the episodes of a source in order, range by range."""
    source = open_source(str(path), split=split, from_=from_)
    reader = EpisodeReader(source)
    works = plan_ranges(source, ranges)
    return [episode for work in works for s in work.segments for episode in reader.read(work.split, s)]


def rich_episode(steps: int, seed: int, *, terminal: bool) -> Episode:
    """An episode with a dict of observations (image, text), a discrete action, metadata and extra step fields."""
    rng = np.random.default_rng(seed)
    pixels = np.repeat(rng.integers(0, 255, (steps, 5, 5, 3), np.uint8), 8, 1).repeat(8, 2)  # 40 x 40
    images = EncodedImages(np.fromiter(encode_jpeg(pixels), object, steps), (40, 40, 3))
    columns = {
        "observation/image": images,
        "observation/mission": [f"go to {seed}, step {i} é" for i in range(steps)],
        "observation/count": rng.integers(-3, 9, steps, np.int64),
        "observation/on": rng.integers(0, 2, (steps, 2)).astype(bool),
        "action": rng.integers(0, 4, steps, np.int64),
        "language": [f"text {i}" * (i % 3) for i in range(steps)],
        "propensity": rng.random(steps, np.float32),
    }
    metadata = {"episode_id": f"id-{seed}", "seed": np.int64(seed), "pose": rng.random(3, np.float32)}
    made = make_episode(steps, seed=seed, observation={"state": 3}, terminal=terminal, columns=columns)
    return made.replace(metadata=metadata)


def rich_dataset(directory: Path, episodes: int = 7, shards: int = 2) -> tuple[Path, list[Episode]]:
    """Writes a dataset of `rich_episode`s of 2 to 8 steps, every third one truncated."""
    made = [rich_episode(2 + i % 7, i, terminal=i % 3 != 2) for i in range(episodes)]
    return write_dataset(directory, made, shards=shards, name="rich"), made


def plain(column: Any) -> Any:
    """Converts a column to something that `==` compares."""
    if isinstance(column, EncodedImages) or is_text(column):
        return [bytes(value) for value in column]
    return column.tolist()


def assert_equal(
    found: Episode, expected: Episode, *, void: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> None:
    """Asserts equal dtypes and values of the step columns; ignores the last step of `void` columns."""
    assert found.faults == ()
    assert sorted(found.steps) == sorted({*expected.steps} - {*without})
    for path, column in found.steps.items():
        other = expected.steps[path]
        if not isinstance(column, EncodedImages) and not isinstance(other, EncodedImages):
            assert column.dtype == other.dtype, path
        stop = len(expected) - 1 if path in void else len(expected)
        assert plain(column[:stop]) == plain(other[:stop]), path
        assert len(column) == len(other)
