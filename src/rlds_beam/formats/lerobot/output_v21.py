"""LeRobot v2.1 datasets as an output: `convert --to=lerobot --lerobot_version=2.1`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from rlds_beam.encoding.example.layout import IMAGES
from rlds_beam.errors import UsageError
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.lerobot.dataset_output import LerobotDatasetOutput, numbers_of
from rlds_beam.formats.lerobot.episode_files import EpisodeFiles, file_names, unpack
from rlds_beam.formats.lerobot.episodes_lines import EpisodesLines
from rlds_beam.formats.lerobot.modality import modality_text
from rlds_beam.formats.lerobot.range_facts import DIRECTORY, facts_file
from rlds_beam.reading.plan import WorkRange

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
            if field.encoding in IMAGES:
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
        return (*lines, *self.metadata_of_all, *([layout.MODALITY] if self.modality is not None else []))

    def plan(self) -> dict[str, Any]:
        return {"lerobot": {**super().plan()["lerobot"], "modality": self.modality}}

    def files(self, work: WorkRange) -> tuple[str, ...]:
        videos = [f"{DIRECTORY}/{work}.{feature.name}.videos" for feature in self.frames.videos]
        return (f"{DIRECTORY}/{work}.data", facts_file(work), *videos)

    def replacing_files(self, indices: Any) -> list[str]:
        first = indices["first_episode"]
        return [name for i in range(first, first + indices["episodes"]) for name in file_names(self.frames.videos, i)]

    def finish_range(self, commit: RangeCommit, indices: Any) -> RangeCommit:
        facts = self.facts(commit)
        if not facts.frames:
            return commit
        packs = [one.file for one in commit.kept]
        kept = [one for one in commit.files if one.role == "temporary"]
        files = unpack(
            self.directory, self.frames.videos, packs, facts, indices["first_episode"], numbers_of(facts, indices)
        )
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
