"""What a dataset holds: its schema and shards, and how long its episodes are."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlds_beam.checking.options import CheckOptions
from rlds_beam.checking.report import Report
from rlds_beam.checking.verdicts import validate_episode
from rlds_beam.errors import UsageError
from rlds_beam.jobs.balance import Balance, balance_of
from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.trajectories.frames import frame_count
from rlds_beam.trajectories.items import predict_items
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.trajectories.spec import TrajectorySpec, trajectory_spec
from rlds_beam.wording import format_size


@dataclasses.dataclass(frozen=True)
class Survey:
    """What was found.

    Attributes:
      source: the dataset.
      spec: the trajectory that its steps would become; None where they cannot.
      spec_error: why they cannot.
      sampled: the report on the records that were read.
      complete: whether that was all of them.
      balance: of the ranges that a plan cuts the dataset into.
      items: items that a plan predicts for the dataset: exact if `complete`, else scaled up.
      steps: steps of the accepted episodes, likewise.
    """

    source: Source
    spec: TrajectorySpec | None
    spec_error: str | None
    sampled: Report
    complete: bool
    balance: Balance
    items: int
    steps: int

    def to_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        source = self.source
        return {
            "dataset": source.dataset,
            "file_format": source.files.name,
            "schema": {path: str(field) for path, field in sorted(source.schema.steps.items())},
            "metadata": {path: str(field) for path, field in sorted(source.schema.metadata.items())},
            "splits": {
                split.name: {
                    "episodes": split.episodes,
                    "bytes": split.size,
                    "shards": [{"path": s.path, "bytes": s.size, "episodes": s.records} for s in split.shards],
                }
                for split in source.splits
            },
            "ranges": self.balance.to_json(),
            "problems": [str(violation) for violation in source.violations],
            "sampled": self.sampled.to_json(),
            "complete": self.complete,
            "steps": self.steps,
            "items": self.items,
            "error": self.spec_error,
        }

    def text(self, plan: str) -> str:
        """All of it, for a terminal."""
        source = self.source
        about = "" if self.complete else "about "
        decoder = source.schema.slow_reason
        lines = [f"{source.dataset} ({source.files.name}, {format_size(source.size)})", "", "step"]
        lines += [f"  {field}" for _, field in sorted(source.schema.steps.items())]
        if decoder:
            lines.append(f"  ({decoder}, so TFDS decodes the dataset)")
        if source.schema.metadata:
            lines += ["episode", *(f"  {field}" for _, field in sorted(source.schema.metadata.items()))]
        lines.append("")
        for split in source.splits:
            count = "unknown number of" if split.episodes is None else f"{split.episodes:,}"
            lines.append(f"{split.name}: {len(split.shards):,} shards, {count} episodes, {format_size(split.size)}")
        lines += [f"problem: {violation}" for violation in source.violations]
        lines += [
            *self.balance.lines(),
            "",
            "all episodes were read" if self.complete else "a sample was read",
            self.sampled.summary(),
            "",
        ]
        lines.append(f"{plan} gives {about}{self.items:,} items of {about}{self.steps:,} steps")
        if self.spec is not None:
            lines += ["frame", *(f"  {leaf}" for leaf in self.spec.leaves)]
            lines += [f"  left out: {path} ({why})" for path, why in self.spec.left_out.items()]
        else:
            lines.append(f"cannot be converted: {self.spec_error}")
        return "\n".join(lines)


def survey(source: Source, check: CheckOptions, frames: FrameOptions, items: ItemOptions, sample_bytes: int) -> Survey:
    """Reads about `sample_bytes` of the records and predicts what a plan would give.

    The sample is spread over the ranges of the dataset, so that an estimate is not one of its first
    shard alone.
    """
    ranges = plan_ranges(source, whole_shards=items.across_episodes)
    reader, report, predicted = EpisodeReader(source), Report(), 0
    complete, each = True, max(1, sample_bytes // max(1, len(ranges)))
    for work in ranges:
        lengths: list[int] = []
        size = 0
        for episode in (e for segment in work.segments for e in reader.read(work.split, segment)):
            size += len(episode.payload)
            if size > each and lengths:
                complete = False
                break
            verdict = validate_episode(episode, check)
            report.add(verdict)
            lengths += [frame_count(len(part), frames) for part in verdict.episodes]
        predicted += predict_items(lengths, items)
    spec, error = _spec(source, frames, items)
    scale = _scale(source, report) if not complete else 1.0
    balance = balance_of(source, ranges, whole_shards=items.across_episodes)
    return Survey(source, spec, error, report, complete, balance, round(predicted * scale), round(report.steps * scale))


def _spec(source: Source, frames: FrameOptions, items: ItemOptions) -> tuple[TrajectorySpec | None, str | None]:
    try:
        return trajectory_spec(source.schema, frames, items), None
    except UsageError as error:
        return None, str(error)


def _scale(source: Source, sampled: Report) -> float:
    """The dataset's size in samples: by episodes where their number is known, else by bytes."""
    if source.episodes is not None:
        return source.episodes / max(1, sampled.records)
    return source.size / max(1, sampled.bytes)
