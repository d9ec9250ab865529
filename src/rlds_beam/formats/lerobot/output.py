"""LeRobot datasets as an output: `convert --to=lerobot`, of v3.0 or with `--lerobot_version=2.1` of v2.1.

For v2.1, `--modality` adds `meta/modality.json`, which GR00T reads: the parts of each vector.

    {"state":      {"arm": {"start": 0, "end": 7}, "gripper": {"start": 7, "end": 8}},
     "action":     {"action": {"start": 0, "end": 7}},
     "video":      {"front": {"original_key": "observation.images.front"}},
     "annotation": {"human.task_description": {"original_key": "task_index"}}}
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rlds_beam import storage
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.encoding.checked_json import parse_json
from rlds_beam.errors import UsageError
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.lerobot.dataset_output import LerobotDatasetOutput
from rlds_beam.formats.lerobot.episodes import EpisodesLines
from rlds_beam.formats.lerobot.features import INDEX_FEATURES, FeatureMap, LerobotFeature
from rlds_beam.formats.lerobot.options import LerobotOptions
from rlds_beam.formats.lerobot.range_facts import DIRECTORY, RangeNumbers, facts_file
from rlds_beam.formats.lerobot.range_files import EpisodeFiles, file_names, unpack
from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import WorkRange
from rlds_beam.text import did_you_mean

if TYPE_CHECKING:
    from rlds_beam.output.commits import RangeCommit


@dataclasses.dataclass(frozen=True)
class LerobotV21Output(LerobotDatasetOutput):
    """A LeRobot v2.1 dataset: a Parquet file and a video per camera for each episode; `meta/` holds JSON lines."""

    version: ClassVar[str] = layout.V21
    files_class = EpisodeFiles
    episodes_class = EpisodesLines

    def with_modality(self, modality: str | None) -> LerobotDatasetOutput:
        for field in self.frames.features.columns.values():
            if field.holds_image_files:
                raise UsageError(
                    f"--lerobot_version=2.1: {field} is an image per episode, which episodes.jsonl cannot hold: "
                    f"leave it out: --map=-{field.path}"
                )
        if modality is None:
            return self
        return dataclasses.replace(self, modality=modality_text(modality, self.frames.features, self.frames.videos))

    @property
    def metadata(self) -> tuple[str, ...]:
        lines = (layout.EPISODES_JSONL, layout.EPISODES_STATS_JSONL, layout.TASKS_JSONL)
        return (*lines, layout.TOTALS, *self.metadata_of_all, *([layout.MODALITY] if self.modality is not None else []))

    def plan(self) -> dict[str, Any]:
        return {"lerobot": {**super().plan()["lerobot"], "modality": self.modality}}

    def files(self, work: WorkRange) -> tuple[str, ...]:
        videos = [f"{DIRECTORY}/{work}.{feature.name}.videos" for feature in self.frames.videos]
        return (f"{DIRECTORY}/{work}.data", facts_file(work), *videos)

    def replacing_files(self, indices: Any) -> list[str]:
        numbers = RangeNumbers(**indices)
        episodes = range(numbers.first_episode, numbers.first_episode + numbers.episodes)
        return [name for episode in episodes for name in file_names(self.frames.videos, episode)]

    def finish_range(self, commit: RangeCommit, indices: Any) -> RangeCommit:
        facts = self.facts(commit)
        if not facts.frames:
            return commit
        packs = [file.file for file in commit.kept]
        kept = [file for file in commit.files if file.role == "temporary"]
        files = unpack(self.directory, self.frames.videos, packs, facts, RangeNumbers(**indices))
        return dataclasses.replace(commit, files=(*files, *kept))

    def stats(self, statistics: dict[str, Any]) -> dict[str, Any]:
        """The statistics without counts: GR00T slices the vector of every statistic that it finds."""
        return {
            name: {statistic: value for statistic, value in of_feature.items() if statistic != "count"}
            for name, of_feature in statistics.items()
        }

    def paths(self, episodes: int) -> dict[str, Any]:
        return {
            "total_videos": episodes * len(self.frames.videos),
            "total_chunks": -(-episodes // layout.CHUNK),
            "chunks_size": layout.CHUNK,
            "data_path": layout.EPISODE_DATA_PATH,
            "video_path": layout.EPISODE_VIDEO_PATH if self.frames.videos else None,
        }


@dataclasses.dataclass(frozen=True)
class LerobotOutput(LerobotDatasetOutput):
    """A LeRobot v3.0 dataset, or with `--lerobot_version=2.1` a `LerobotV21Output`."""

    @classmethod
    def create(
        cls, source: Source, connectors: ConnectorRunner, directory: str, options: LerobotOptions
    ) -> LerobotDatasetOutput:
        if options.lerobot_version == "2.1":
            return LerobotV21Output.create(source, connectors, directory, options)
        return super().create(source, connectors, directory, options)


AUTO = "auto"
_VECTORS = {"state": "observation.state", "action": "action"}
"""The feature of a part, unless `original_key` names another."""
_TASK = "human.task_description"


def modality_text(modality: str, features: FeatureMap, videos: Sequence[LerobotFeature]) -> str:
    """The text of `modality.json`.

    Args:
      modality: `auto`, or the path of a file.
      features: the features of the dataset.
      videos: the features that are videos.

    Raises:
      UsageError: it cannot be derived from the features, or the file does not match them.
    """
    if modality == AUTO:
        return json.dumps(auto_modality(features, videos), indent=4) + "\n"
    try:
        text = storage.read_text(modality)
        content = parse_json(text, modality)
    except (OSError, UsageError) as error:
        raise UsageError(f"--modality={modality}: not valid JSON: {error} ({AUTO} generates one)") from None
    problem = _problem(content, features, videos)
    if problem is not None:
        raise UsageError(f"--modality={modality}: {problem}")
    return text


def auto_modality(features: FeatureMap, videos: Sequence[LerobotFeature]) -> dict[str, Any]:
    """The modalities by field name. The fields of a vector joined by `--map` are its parts."""
    named = {feature.name: feature for feature in features.numbers}
    for part, name in _VECTORS.items():
        if name not in named or len(named[name].shape) > 1:
            raise UsageError(
                f"--modality={AUTO}: GR00T reads its {part} from one vector, {name}, which the dataset lacks: join "
                f"its fields, --map={name}=PATH+PATH"
            )
    pictures = [feature for feature in features.images if feature.is_video and feature not in videos]
    if pictures:
        raise UsageError(
            f"--modality={AUTO}: GR00T reads cameras from videos, but {pictures[0].name} is copied: add "
            f"--images=video, or leave it out (--map={shlex.quote(f'-{pictures[0].path}')})"
        )
    modality: dict[str, Any] = {part: _parts(named[name]) for part, name in _VECTORS.items()}
    cameras = {feature.name.removeprefix("observation.images."): {"original_key": feature.name} for feature in videos}
    modality["video"] = cameras
    if features.task is not None:
        modality["annotation"] = {_TASK: {"original_key": "task_index"}}
    return modality


def _parts(feature: LerobotFeature) -> dict[str, Any]:
    """The range of each field in a vector."""
    leaves = [field.path.rpartition("/")[2] for field in feature.fields]
    names = leaves if len(set(leaves)) == len(leaves) else [field.path.replace("/", ".") for field in feature.fields]
    parts, start = {}, 0
    for name, field in zip(names, feature.fields, strict=True):
        parts[name] = {"start": start, "end": start + field.known_size}
        start += field.known_size
    return parts


def _problem(content: Any, features: FeatureMap, videos: Sequence[LerobotFeature]) -> str | None:
    """The contradiction between a modality file and the features; None if there is none."""
    sections = (*_VECTORS, "video", "annotation")
    if not isinstance(content, dict) or not all(isinstance(part, dict) for part in content.values()):
        return f"expected an object with {', '.join(sections)}, each an object"
    for name in content:
        if name not in sections:
            hint = did_you_mean(name, sections, otherwise=f"there are {', '.join(sections)}")
            return f"there is no modality {name}{hint}"
    for section in _VECTORS:
        if section not in content:
            return f"it has no {section}"
    for section, entries in content.items():
        for name, entry in entries.items():
            problem = "expected an object" if not isinstance(entry, dict) else None
            problem = problem or _wrong_entry(section, name, entry, features, videos)
            if problem is not None:
                return f"{section}.{name}: {problem}"
    return None


def _wrong_entry(
    section: str, name: str, entry: Mapping[str, Any], features: FeatureMap, videos: Sequence[LerobotFeature]
) -> str | None:
    numbers = {feature.name: feature for feature in features.numbers}
    if section == "video":
        key, known = entry.get("original_key", name), [feature.name for feature in videos]
        hint = did_you_mean(str(key), known, otherwise=f"there are {', '.join(known) or 'none'}")
        return None if key in known else f"there is no video {key}{hint}"
    if section == "annotation":
        key = entry.get("original_key", f"annotation.{name}")
        known = [*INDEX_FEATURES, *(n for n, feature in numbers.items() if "int" in feature.dtype)]
        return None if key in known else f"there is no integer feature {key}; {_TASK} uses task_index"
    key = entry.get("original_key", _VECTORS[section])
    if key not in numbers:
        hint = did_you_mean(str(key), numbers, otherwise=f"there are {', '.join(numbers) or 'none'}")
        return f"there is no feature {key}{hint}"
    size, start, end = numbers[key].size, entry.get("start"), entry.get("end")
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= size:
        return f"start {start} and end {end} are outside {key}, which has {size} numbers"
    return None
