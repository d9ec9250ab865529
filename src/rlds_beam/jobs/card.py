"""The card of a dataset as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rlds_beam.episodes.columns import STORE_FLOAT32, double_fields
from rlds_beam.episodes.schema import shown_dimensions
from rlds_beam.jobs.overview import Camera, Overview, Values
from rlds_beam.reading.meaning import is_action
from rlds_beam.terminal.tables import table_lines
from rlds_beam.text import count, duration, format_size, join_texts, printable, some

if TYPE_CHECKING:
    from rlds_beam.reading.base import Source
    from rlds_beam.reading.meaning import LastSteps

_TASKS = 5
"""Tasks that are listed."""
_MAX_VALUES = 64
"""Values of a vector with a range each; a longer one is an embedding."""
_FILES = {"hdf5": "HDF5", "tfrecord": "TFRecord", "array_record": "ArrayRecord", "parquet": "Parquet"}


def card_lines(
    source: Source, overview: Overview, format: str, last_steps: LastSteps | None, next_command: str
) -> list[str]:
    """The card: the kind of dataset, what it lacks for learners, and the next command.

    Args:
      source, overview, format: see `Survey`; empty for an unknown format.
      last_steps: what last steps are, None if unknown.
      next_command: empty if unknown.
    """
    title = source.dataset if source.tfds is not None else source.name  # the versions of others are ours
    facts = [
        ("format", [format] if format else []),
        ("robot", [printable(source.robot, 100)] if source.robot else []),
        ("rate", [_rate(source), *_other_rates(overview)]),
        ("episodes", [_episodes(overview)]),
        ("size", [_size(source, overview)]),
        ("tasks", list(_tasks(overview))),
        ("cameras", [_camera(camera) for camera in overview.cameras] or ["none"]),
        ("values", _values(overview)),
        ("last step", [str(last_steps or "unknown")] if any(map(is_action, source.schema.steps)) else []),
        ("float64", [_doubles(overview)] if overview.cameras else []),
        ("learners", list(_learners(overview))),
        ("next", [next_command] if next_command else []),
    ]
    lines = [title]
    for name, texts in facts:
        texts = [text for text in texts if text]
        lines += [f"{name if i == 0 else '':10}{text}".rstrip() for i, text in enumerate(texts)]
    return lines


def _episodes(overview: Overview) -> str:
    """`2 episodes, 40 steps, 0.8 s: episode_0.hdf5, episode_1.hdf5`."""
    about = "" if overview.complete else "about "
    number = "unknown" if overview.episodes is None else f"{overview.episodes:,}"
    text = f"{number}, {about}{count(overview.steps, 'step')}"
    if overview.seconds is not None:
        minutes = f"{overview.seconds / 60:,.1f} min" if overview.seconds >= 60 else duration(overview.seconds)
        text += f", {about}{minutes}"
    if overview.names:
        more = ", ..." if overview.episodes is None or overview.episodes > len(overview.names) else ""
        text += f": {', '.join(overview.names)}{more}"
    return text


def _rate(source: Source) -> str:
    if source.fps is None and len(source.rates) > 1:
        return join_texts([f"{rate:g}" for rate in source.rates]) + " Hz"
    return f"{source.fps:g} Hz" if source.fps else "unknown"


def _other_rates(overview: Overview) -> Iterator[str]:
    for path, rate in overview.other_rates.items():
        yield f"but {printable(path, 100)} has times of {rate:.3g} Hz: correct the rate, or resample"


def _size(source: Source, overview: Overview) -> str:
    """`3.2 GB: 12.0 MB in 2 Parquet files, 3.2 GB in 4 other files (videos)`."""
    shards = len({shard.path for split in source.splits for shard in split.shards})
    kind = _FILES.get(source.files.name, printable(source.files.name, 40))
    others, size = overview.videos
    if not others:
        return f"{format_size(overview.bytes)} in {count(shards, f'{kind} file')}"
    own = f"{format_size(source.size)} in {count(shards, f'{kind} file')}"
    what = "video" if source.videos else "other file"
    if size is None:
        return f"{own}, and {count(others, what)}"
    return f"{format_size(overview.bytes)}: {own}, {format_size(size)} in {count(others, what)}"


def _tasks(overview: Overview) -> Iterator[str]:
    """The most frequent tasks, each with its number of episodes."""
    tasks = {text: number for text, number in overview.tasks.items() if text}
    if not tasks:
        yield "none"
        return
    sample = "" if overview.complete else " in the episodes read"
    empty = f"; {count(overview.tasks[''], 'episode')} without a text" if "" in overview.tasks else ""
    yield f"{count(len(tasks), 'task')}{sample}{empty}"
    for text, number in list(tasks.items())[:_TASKS]:
        yield f'  "{printable(text, 80)}" ({count(number, "episode")})'
    if len(tasks) > _TASKS:
        yield f"  and {len(tasks) - _TASKS:,} more"


def _camera(camera: Camera) -> str:
    size = " x ".join("?" if side is None else str(side) for side in (camera.width, camera.height))
    return f"{printable(camera.path, 100)}: {size}, {camera.coding}"


def _values(overview: Overview) -> list[str]:
    """Tables of the ranges for the fields whose values have the same names, or the same number of unnamed values."""
    if not overview.values:
        return ["none"]
    read = count(overview.steps_read, "step")
    lines: list[str] = []
    for stated in (True, False):
        tables: dict[tuple[str, ...] | int, list[Values]] = {}
        for values in [*overview.actions, *overview.states]:
            if values.stated == stated:
                tables.setdefault(values.field.names or len(values.low), []).append(values)
        said = f"ranges of all {read}" if overview.complete else f"ranges of a sample of {read}"
        said = "ranges by the dataset's own statistics" if stated else said
        lines += [said] if tables else []
        for key, fields in tables.items():
            lines += _table(key, fields)
    return lines


def _table(key: tuple[str, ...] | int, fields: Sequence[Values]) -> list[str]:
    size = len(fields[0].low)
    if not size or size > _MAX_VALUES:
        return [f"{values.field}{_whole_range(values)}" for values in fields]
    labels = [printable(name, 40) for name in key] if isinstance(key, tuple) else [str(i) for i in range(size)]
    rows = [(label, *(_range(f.low[i], f.high[i]) for f in fields)) for i, label in enumerate(labels)]
    shown = rows[: shown_dimensions(len(rows))]
    lines = table_lines(("", *(values.field.path for values in fields)), shown)
    return lines + ([f"... {len(rows) - len(shown)} more"] if len(rows) > len(shown) else [])


def _whole_range(values: Values) -> str:
    low = [value for value in values.low if not math.isnan(value)]
    high = [value for value in values.high if not math.isnan(value)]
    return f": {_range(min(low), max(high))}" if low and high else ""


def _range(low: float, high: float) -> str:
    return f"always {low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _doubles(overview: Overview) -> str:
    """Which values are float64; empty if none is."""
    paths = double_fields(values.field for values in [*overview.actions, *overview.states])
    return f"{some(paths)}; {STORE_FLOAT32}" if paths else ""


def _learners(overview: Overview) -> Iterator[str]:
    """`ACT, diffusion policy: ready`; learners that lack the same are together."""
    together: dict[tuple[str, ...], list[str]] = {}
    for learner, lacks in overview.missing().items():
        together.setdefault(tuple(lacks), []).append(learner)
    for missing, learners in together.items():
        yield f"{', '.join(learners)}: {'; '.join(missing) or 'ready'}"
