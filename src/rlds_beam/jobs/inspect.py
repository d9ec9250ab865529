"""Surveys a dataset: what it is, its schema and episodes, what a conversion would write, and the next command."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from rlds_beam import storage
from rlds_beam.checking.duplicates import mark_duplicate
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.cleaning.language import TASK_FIELDS
from rlds_beam.connectors.cleaning.presets import find_preset, suggest_presets
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import Field, schema_tree
from rlds_beam.errors import UsageError
from rlds_beam.formats.options import InputOptions
from rlds_beam.formats.outputs import configuration_for, create_output
from rlds_beam.formats.registry import LEROBOT, TRAJECTORIES
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.headers import UndecodableImageError, read_image_header
from rlds_beam.images.resizing import EditedImages
from rlds_beam.images.video_frames import VideoFrames
from rlds_beam.output.base import Output
from rlds_beam.processing.job import run_stages
from rlds_beam.processing.ranges import check_and_connect, find_duplicates
from rlds_beam.processing.report import Report
from rlds_beam.reading.base import Source
from rlds_beam.reading.last_steps import LastSteps, find_last_steps, is_action
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.terminal.options import format_flags
from rlds_beam.terminal.tables import record_lines, table_lines
from rlds_beam.text import count, duration, format_size, join_texts, shorten
from rlds_beam.trajectories.options import ItemOptions

_SAMPLED_RANGES = 16  # the most ranges that the sample of a large dataset is from
_REMOTE_BYTES = 4 << 20  # the most bytes that the sample of a large dataset in a remote store has
_LISTED_TASKS = 5
_FILES = {"hdf5": "HDF5", "tfrecord": "TFRecord", "array_record": "ArrayRecord", "parquet": "Parquet"}
_CODINGS = {b"\xff\xd8": "jpeg", b"\x89P": "png"}  # by the first bytes of an image


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """A description of a dataset, and of what a conversion writes.

    Attributes:
      source: the dataset.
      output: the output that a conversion would write; None if the dataset cannot be converted.
      error: why it cannot be converted.
      sampled: the report on the records read.
      complete: whether all records were read. Only then are duplicates found.
      ranges: the number of ranges that the dataset is cut into.
      items: the number of items: exact if `complete`, else an estimate.
      steps: the number of steps of the accepted episodes: exact if `complete`, else an estimate.
      card: the main facts, as JSON: episodes, steps, rate, tasks, cameras, and what learners lack.
      config: the options that the dataset is read with, and those of the conversion.
      last_steps: what last steps are; None if there are no actions, or if a remote dataset does not say it.
    """

    source: Source
    output: Output | None
    error: str | None
    sampled: Report
    complete: bool
    ranges: int
    items: int
    steps: int
    card: Mapping[str, Any]
    config: Any
    last_steps: LastSteps | None

    @property
    def format(self) -> str:
        """The format of the dataset, with what tells it: `minari (data/metadata.json)`."""
        return str(self.config.recognition)

    def __repr__(self) -> str:
        return "\n".join(_lines(self))

    def to_json(self) -> dict[str, Any]:
        """The survey as JSON."""
        source = self.source
        return {
            "dataset": source.dataset,
            "format": self.format,
            "name": source.name,
            "robot": source.robot,
            "last_action": source.last_action,
            "card": dict(self.card),
            "next": _next_command(self),
            "file_format": source.files.name,
            "schema": {path: field.to_json() for path, field in sorted(source.schema.steps.items())},
            "metadata": {path: field.to_json() for path, field in sorted(source.schema.metadata.items())},
            "splits": {
                split.name: {"episodes": split.episodes, "bytes": split.size, "shards": len(split.shards)}
                for split in source.splits
            },
            "last_steps": None if self.last_steps is None else dataclasses.asdict(self.last_steps),
            "ranges": self.ranges,
            "problems": [str(violation) for violation in source.details.violations],
            "notes": list(source.details.notes),
            "sampled": msgspec.to_builtins(self.sampled),
            "complete": self.complete,
            "steps": self.steps,
            "items": self.items,
            "error": self.error,
            "presets": suggest_presets(source.dataset, source.schema),
        }


def survey(source: Source, config: Any) -> Survey:
    """Reads about `config.sample_bytes` of the records and counts the items of a conversion.

    If all records are read, duplicates are found as well, and the count is exact. Otherwise the sample is spread over
    the dataset, so that an estimate does not depend on the first shard alone.

    Args:
      source: the dataset.
      config: the job's config (`InspectConfig`).
    """
    connecting, output, error = _open_output(source, config)
    small = source.size <= config.sample_bytes
    remote = any(storage.scheme(shard.path) for split in source.splits for shard in split.shards)
    # For a large dataset even the framing is not read completely: an estimate may start anywhere.
    ranges = plan_ranges(source, whole_shards=output is not None and output.whole_shards, exact=small)
    output = None if output is None else output.with_ranges(ranges)
    sampled = ranges[:: 1 if small else -(-len(ranges) // _SAMPLED_RANGES)]
    limit, duplicates = config.sample_bytes, dict[EpisodeKey, EpisodeKey]()
    if not small:
        limit = min(limit, _REMOTE_BYTES) if remote else limit
        limit = max(1, limit // max(1, len(sampled)))
    elif config.policy("duplicate_episode") != "accept":
        duplicates = run_stages(find_duplicates(source))["duplicates"]
    ignored = connecting.ignored_values(None if output is None else output.ignored_values)
    connecting = connecting.as_probed()
    reader, facts, report = EpisodeReader(source), _Facts(source), Report()
    complete, items, accepted = len(sampled) == len(ranges), 0, list[Batch]()

    def keep(batch: Batch) -> None:
        if output is not None:
            output.check_batch(batch)
        accepted.append(batch)

    for work in sampled:
        size, accepted = 0, []
        for episode in (e for segment in work.segments for e in reader.read(work.split, segment)):
            size += len(episode.payload)
            if size > limit and accepted:
                complete = False
                break
            episode = mark_duplicate(episode, duplicates)
            facts.add(episode)
            report.add(check_and_connect(episode, config, connecting, ignored, keep))
        items += 0 if output is None else output.predict(accepted)
    report = msgspec.structs.replace(report, notes=connecting.notes)
    read, total = (report.bytes, source.size) if source.episodes is None else (report.records, source.episodes)
    scale = 1.0 if complete else total / max(1, read)
    last_steps = None  # not if it would take a look at more of a remote dataset
    if any(map(is_action, source.schema.steps)) and not (remote and source.last_action == "unknown"):
        last_steps = find_last_steps(source)
    return Survey(
        source=source,
        output=output,
        error=error,
        sampled=report,
        complete=complete,
        ranges=len(ranges),
        items=round(items * scale),
        steps=round(report.steps * scale),
        card=facts.card(report, complete, scale, config.task or config.task_file),
        config=config,
        last_steps=last_steps,
    )


def _open_output(source: Source, options: Any) -> tuple[ConnectorRunner, Output | None, str | None]:
    """The connectors, the output, and why there is none; raises UsageError if connectors are given and do not fit."""
    try:
        connecting = ConnectorRunner.for_source(configuration_for(options, source.schema), source)
        return connecting, create_output(source, connecting, "", options), None
    except UsageError as error:
        if options.connectors is not None:
            raise
        return ConnectorRunner.for_reading(source), None, str(error)


class _Facts:
    """Gathers what the episodes that are read say of a dataset."""

    def __init__(self, source: Source):
        self._source, self._fields = source, source.schema.steps
        self._task = next((p for p in TASK_FIELDS if p in self._fields or p in source.schema.metadata), None)
        self._tasks: Counter[str] = Counter()
        self._images: dict[str, EncodedImages] = {}
        self._steps = 0

    def add(self, episode: Episode) -> None:
        """Adds an episode as read; one with faults may have no steps."""
        if not episode.steps:
            return
        self._steps += len(episode)
        if self._task is not None:
            text = episode.metadata.get(self._task)
            if text is None and self._task in episode.steps and len(episode):
                text = np.asarray(episode.steps[self._task]).reshape(-1)[0]
            if isinstance(text, (bytes, str)):
                self._tasks[shorten(text, 500)] += 1
        for path, column in episode.steps.items():
            if isinstance(column, EncodedImages) and not isinstance(column, (EditedImages, VideoFrames)):
                self._images.setdefault(path, column)

    def card(self, report: Report, complete: bool, scale: float, task: str | None) -> dict[str, Any]:
        """The main facts as JSON.

        Args:
          report: counts the episodes read.
          complete: whether all episodes were read.
          scale: the ratio of the dataset to the episodes read.
          task: the task or the file of tasks that the user gives.
        """
        source, steps = self._source, round(self._steps * scale)
        vectors = [path for path, field in self._fields.items() if is_vector(field)]
        files = {file for split in source.splits for shard in split.shards for file in source.companions(shard)}
        cameras = [self._camera(field) for _, field in sorted(self._fields.items()) if field.holds_images]
        return {
            "episodes": source.episodes if source.episodes is not None else report.records if complete else None,
            "steps": steps,
            "seconds": steps / source.fps if source.fps else None,
            "fps": source.fps,
            "complete": complete,
            "tasks": dict(self._tasks.most_common()),
            "cameras": cameras,
            "bytes": source.size,
            "other_files": len(files),
            "missing": _list_missing(vectors, source.fps, bool(task) or any(self._tasks)) if cameras else [],
        }

    def _camera(self, field: Field) -> dict[str, Any]:
        """A camera's field, height, and width, each None if unknown, and how it is stored."""
        height, width = field.shape[:2]
        images = self._images.get(field.path)
        coding = field.encoding.replace("none", "pixels")
        if images is not None and len(images):
            coding = _CODINGS.get(images.image(0)[:2], "other")
            if None in (height, width):
                with contextlib.suppress(UndecodableImageError):
                    header = read_image_header(images.image(0))
                    height, width = header.height, header.width
        if (video := self._source.details.videos.get(field.path)) is not None:
            codec = shorten(video.get("video.codec", ""), 40)
            coding = f"{codec} video".lstrip()
        return {"path": field.path, "height": height, "width": width, "coding": coding}


def is_vector(field: Field) -> bool:
    """Whether a field is numbers of the observation or the action."""
    if field.path.split("/")[0] not in ("observation", "action"):
        return False
    return field.dtype not in ("string", "bool") and len(field.shape) <= 1 and not field.holds_images


def _list_missing(vectors: Sequence[str], fps: float | None, has_task: bool) -> list[str]:
    """What most of LeRobot's policies need, and a dataset with cameras lacks."""
    lacks = [] if any(is_action(path) for path in vectors) else ["no action"]
    lacks += [] if fps else ["no rate, give --fps"]
    states = [path for path in vectors if path.startswith("observation/")]
    if "observation/state" not in states:
        known = shorten("+".join(states), 100)
        lacks.append(f"no observation/state, give --map=observation.state={known}" if states else "no state")
    return lacks if has_task else [*lacks, "no task text, give --task"]


def _lines(survey: Survey) -> Iterator[str]:
    """The text of `inspect`: the card, the schema, what was read, and the items that a conversion would write."""
    source = survey.source
    yield from [*_card_lines(survey), ""]
    yield from schema_tree(source.schema).splitlines()
    yield ""
    rows = []
    for split in source.splits:
        episodes = "unknown" if split.episodes is None else f"{split.episodes:,}"
        rows.append((split.name, f"{len(split.shards):,}", episodes, format_size(split.size)))
    yield from table_lines(("split", "shards", "episodes", "size"), rows)
    yield from (f"problem: {violation}" for violation in source.details.violations)
    yield from (f"note: {note}" for note in source.details.notes)
    yield from [f"ranges    {survey.ranges:,}", ""]
    yield "all episodes were read" if survey.complete else "a sample was read; duplicates were not checked"
    yield from [*survey.sampled.summary(survey.config.repair).split("\n"), ""]
    about = "" if survey.complete else "about "
    config = survey.config
    prediction = f"--to={config.to}"
    if isinstance(config.to_options, ItemOptions):
        prediction = " ".join(format_flags(config.to_options, ItemOptions)) or f"--items={config.to_options.items}"
    yield f"{prediction} gives {about}{survey.items:,} items of {about}{survey.steps:,} steps"
    if survey.output is not None:
        yield from record_lines(*survey.output.describe())
    else:
        yield from f"cannot be converted: {survey.error}".split("\n")
    for name in suggest_presets(source.dataset, source.schema):
        yield f"--preset={name} fixes it: {find_preset(name).fault}"


def _card_lines(survey: Survey) -> list[str]:
    """The card: the kind of dataset, what it lacks for learners, and the next command."""
    source, card = survey.source, survey.card
    rate = f"{source.fps:g} Hz" if source.fps else "unknown"
    if len(source.meaning.rates) > 1:
        rate = join_texts([f"{rate:g}" for rate in source.meaning.rates]) + " Hz"
    shards = len({shard.path for split in source.splits for shard in split.shards})
    kind = _FILES.get(source.files.name, shorten(source.files.name, 40))
    size = f"{format_size(source.size)} in {count(shards, f'{kind} file')}"
    if others := card["other_files"]:
        size += f", and {count(others, 'video' if source.details.videos else 'other file')}"
    cameras = [
        f"{shorten(camera['path'], 100)}: {camera['width'] or '?'} x {camera['height'] or '?'}, {camera['coding']}"
        for camera in card["cameras"]
    ]
    facts = {
        "format": [survey.format],
        "robot": [shorten(source.robot, 100)] if source.robot else [],
        "rate": [rate],
        "episodes": [_episodes(card)],
        "size": [size],
        "tasks": _tasks(card),
        "cameras": cameras or ["none"],
        "last step": [str(survey.last_steps or "unknown")] if any(map(is_action, source.schema.steps)) else [],
        "lacks": ["; ".join(card["missing"])] if card["missing"] else [],
        "next": [_next_command(survey)],
    }
    lines = [source.dataset if source.details.tfds is not None else source.name]  # the versions of others are ours
    for name, texts in facts.items():
        lines += [f"{name if i == 0 else '':10}{text}".rstrip() for i, text in enumerate(texts)]
    return lines


def _episodes(card: Mapping[str, Any]) -> str:
    """`2, 40 steps, 0.8 s`."""
    about, number = "" if card["complete"] else "about ", card["episodes"]
    text = f"{'unknown' if number is None else f'{number:,}'}, {about}{count(card['steps'], 'step')}"
    if (seconds := card["seconds"]) is not None:
        text += f", {about}{f'{seconds / 60:,.1f} min' if seconds >= 60 else duration(seconds)}"
    return text


def _tasks(card: Mapping[str, Any]) -> list[str]:
    """The most frequent tasks, each with its number of episodes."""
    tasks = {text: number for text, number in card["tasks"].items() if text}
    if not tasks:
        return ["none"]
    sample = "" if card["complete"] else " in the episodes read"
    empty = f"; {count(card['tasks'][''], 'episode')} without a text" if "" in card["tasks"] else ""
    lines = [f'  "{shorten(text, 80)}" ({count(number, "episode")})' for text, number in tasks.items()]
    more = [f"  and {len(tasks) - _LISTED_TASKS:,} more"] if len(tasks) > _LISTED_TASKS else []
    return [f"{count(len(tasks), 'task')}{sample}{empty}", *lines[:_LISTED_TASKS], *more]


def _next_command(survey: Survey) -> str:
    """The command that converts a dataset, with the options that it was read with."""
    config, source, to = survey.config, survey.source, survey.config.to
    words = ["rlds-beam", "convert", *([config.input] if isinstance(config.input, str) else config.input)]
    words.append(f"{source.name}_{to}")
    words += [*format_flags(config, InputOptions), *format_flags(config, ConnectorOptions)]
    words += [] if config.robot_type is None else [f"--robot_type={config.robot_type}"]
    words += format_flags(config.from_options, type(config.from_options)) if config.from_options is not None else []
    presets = [] if config.preset else suggest_presets(source.dataset, source.schema)
    words += [f"--preset={name}" for name in presets]
    if "missing_is_last" in survey.sampled.rules and not (presets or config.preset):
        words.append("--repair=missing_is_last")
    words += [] if to == TRAJECTORIES else [f"--to={to}"]
    output = format_flags(config.to_options, type(config.to_options))
    words += [flag for flag in output if source.fps is not None or not flag.startswith("--fps=")]
    return shlex.join(words) + (" --fps=RATE" if to == LEROBOT and source.fps is None else "")
