"""Records episodes in this process and reads them back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlds_beam import open_dataset
from rlds_beam.jobs.convert import ConvertJob, prepare
from rlds_beam.recording.record_options import RecordOptions

Q = "recorded_environments:q_function"
WALK = "recorded_environments:walk"
GREEDY = f"EpsilonGreedyHead({Q}, epsilon=0.3, name=greedy)"


def recorded(output: Path, *policies: Any, **options: Any) -> ConvertJob:
    """Records episodes (of `Walk` by default) without Beam."""
    options = {"env": WALK, "policy": policies or (GREEDY,), "logger": "own", **options}
    if "steps" not in options:
        options.setdefault("episodes", 20)
    job = prepare(RecordOptions.create(output, **options))
    job.convert_here()
    return job


def episodes_of(output: Path, split: str | None = None) -> list[dict[str, Any]]:
    """Reads the episodes of a recording with our reader."""
    rows = open_dataset(output, split)
    return [{path.removeprefix("episode_metadata/"): value for path, value in row.items()} for row in rows]
