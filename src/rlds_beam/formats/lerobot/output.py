"""A LeRobot dataset as an output: `convert --to=lerobot`."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.lerobot.episodes_table import EpisodesTables
from rlds_beam.formats.lerobot.features import Feature, FeatureMap
from rlds_beam.formats.lerobot.image_sizes import image_sizes
from rlds_beam.formats.lerobot.mapping import map_features
from rlds_beam.formats.lerobot.metadata import EpisodesFiles, write_metadata
from rlds_beam.formats.lerobot.options import LerobotOptions, whole_fps
from rlds_beam.formats.lerobot.pages import check_pages
from rlds_beam.formats.lerobot.parquet_file import renumber
from rlds_beam.formats.lerobot.range_facts import RangeFacts, facts_file
from rlds_beam.formats.lerobot.range_files import RangeFiles
from rlds_beam.formats.lerobot.range_writer import LerobotWriter
from rlds_beam.formats.lerobot.videos import PIXELS, Encoding
from rlds_beam.options import options_given
from rlds_beam.output.base import CostHint, FileOutput
from rlds_beam.output.options import images_option
from rlds_beam.reading.base import Source
from rlds_beam.reading.plan import WorkRange

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11 on

    from rlds_beam.output.commits import RangeCommit

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class LerobotOutput(FileOutput):
    """A dataset that LeRobot opens, of v3.0: a Parquet file of frames for each range, and `meta/`.

    Attributes:
      directory, name: as of `FileOutput`.
      features: what each field becomes.
      fps: frames a second.
      image_samples: frames of each camera and episode that are decoded for the statistics
        (`statistics.sample_places`).
      robot_type: for info.json.
      encoding: of videos; None where images are copied.
      modality: the text of modality.json (v2.1); None where there is none.
      first: by split, the number of its first file.
      ranges: how many there are in all.
      version: of LeRobot's format.
      files_class: what writes the files of a range.
    """

    directory: str
    name: str
    features: FeatureMap
    fps: int
    image_samples: int | None = None
    robot_type: str | None = None
    encoding: Encoding | None = None
    modality: str | None = None
    first: tuple[tuple[str, int], ...] = ()
    ranges: int = 0

    numbers_ranges = True
    version: ClassVar[str] = layout.V3
    files_class: ClassVar[Any] = RangeFiles

    @classmethod
    def create(cls, source: Source, directory: str, options: Any) -> LerobotOutput:
        return cls._create(source, ConnectorRunner.of(Configuration(), source.schema), directory, options)

    @classmethod
    def create_connected(
        cls, source: Source, connecting: ConnectorRunner, directory: str, options: Any
    ) -> LerobotOutput:
        connecting.refuse_columns("--to=columns")
        return cls._create(source, connecting, directory, options)

    @classmethod
    def _create(cls, source: Source, connecting: ConnectorRunner, directory: str, options: Any) -> LerobotOutput:
        from rlds_beam.formats.lerobot.output_v21 import LerobotV21Output

        check_pages()
        chosen = LerobotOptions.of(options)
        if chosen.image_samples is not None and chosen.image_samples < 1:
            raise UsageError(f"--image_samples={chosen.image_samples}: expected 1 or more")
        fps = whole_fps(chosen, source.fps)
        schema = connecting.probed.schema if connecting.connectors else source.schema
        features = map_features(schema, chosen.map, image_sizes(source, connecting, schema, chosen.map))
        as_video = images_option(options, "lerobot", ("copy", "video")) == "video"
        for name in options_given(options, LerobotOptions) if not as_video else ():
            if name in ("vcodec", "crf", "gop", "encoder_preset"):
                raise UsageError(f"--{name} is for --images=video")
        encoding = Encoding.of(chosen) if as_video else None
        kind = LerobotV21Output if chosen.lerobot_version == "2.1" else LerobotOutput
        output = kind(directory, source.name, features, fps, chosen.image_samples, chosen.robot_type, encoding)
        for feature in output.videos:
            if feature.shape[0] % 2 or feature.shape[1] % 2:
                raise UsageError(
                    f"--images=video: {feature.describe()} has an odd number of pixels, which {PIXELS} cannot hold: "
                    "resize it with a connector, or copy the images (--images=copy)"
                )
        return output.with_modality(chosen.modality)

    def with_modality(self, modality: str | None) -> LerobotOutput:
        """The output, with what `--modality` says; raises UsageError where it cannot be used."""
        if modality is not None:
            raise UsageError(
                "--modality: modality.json is for GR00T, which reads LeRobot 2.1: add --lerobot_version=2.1, or leave "
                "--modality out"
            )
        return self

    def stored_names(self) -> Iterator[tuple[str, str]]:
        yield from ((feature.path, feature.name) for feature in self.features.features)

    def placed(self, ranges: Sequence[WorkRange]) -> Self:
        first: dict[str, int] = {}
        for number, work in enumerate(ranges):
            first.setdefault(work.split, number)
        return dataclasses.replace(self, first=tuple(first.items()), ranges=len(ranges))

    @property
    def metadata(self) -> tuple[str, ...]:
        episodes = [layout.EPISODES_PATH.format(**layout.place(i)) for i in range(self.episodes_files)]
        return (*episodes, layout.TASKS, *self.metadata_of_all)

    @property
    def metadata_of_all(self) -> tuple[str, ...]:
        """Files that every version has."""
        return (layout.STATS, layout.FIELDS, layout.CARD, layout.INFO)

    @property
    def videos(self) -> tuple[Feature, ...]:
        """The features that become videos; other images (depth, gray) are copied into the data files."""
        return tuple(f for f in self.features.images if f.is_video) if self.encoding is not None else ()

    @property
    def stored(self) -> tuple[Feature, ...]:
        """The features in the data files."""
        return tuple(feature for feature in self.features.features if feature not in self.videos)

    @property
    def episodes_files(self) -> int:
        """How many files of meta/episodes there are."""
        return max(1, -(-self.ranges // layout.RANGES_IN_EPISODES))

    @property
    def effort(self) -> CostHint:
        return CostHint(decodes_images=self.encoding is not None, encodes_videos=bool(self.videos))

    def plan(self) -> dict[str, Any]:
        return {
            "lerobot": {
                "version": self.version, "fps": self.fps, "image_samples": self.image_samples,
                "robot_type": self.robot_type, **self.features.to_json(),
                "video": None if self.encoding is None else dataclasses.asdict(self.encoding),
            }
        }  # fmt: skip

    def describe(self) -> tuple[list[str], dict[str, str]]:
        lines = self.features.describe()
        names = {feature.name for feature in self.videos}
        lines = [f"{line} as {self.video_codec}" if line.split(":")[0] in names else line for line in lines]
        return lines, dict(self.features.left_out)

    @property
    def video_codec(self) -> str:
        return "" if self.encoding is None else f"{self.encoding.codec} video"

    def predict(self, steps: Iterable[int]) -> int:
        return sum(steps)

    def count(self, batch: Batch) -> int:
        return sum(map(len, batch.episodes))

    def measure(self, batches: Sequence[Batch]) -> int | None:
        if self.videos:
            return None  # a sample would have to be encoded
        with tempfile.TemporaryDirectory() as directory:
            work = WorkRange("sample", 0, 1, ())
            output = dataclasses.replace(self, directory=directory).placed([work])
            for file in output.files(work):
                storage.makedirs(storage.split(storage.below(directory, file))[0])
            writer, size = output.open_range(work), 0
            try:
                for batch in batches:
                    try:
                        writer.write(batch)
                    except BadEpisode:  # it is going to be rejected, and kept as it was read
                        size += sum(len(episode.payload) for episode in batch.episodes)
                return size + sum(one.shard.bytes for one in writer.finish())
            finally:
                writer.abort()

    def number_of(self, work: WorkRange) -> int:
        """The number of a range among those of all splits, and of its file."""
        return dict(self.first)[work.split] + work.index

    def file(self, work: WorkRange) -> str:
        return layout.DATA_PATH.format(**layout.place(self.number_of(work)))

    def files(self, work: WorkRange) -> tuple[str, ...]:
        place = layout.place(self.number_of(work))
        videos = [layout.VIDEO_PATH.format(video_key=feature.name, **place) for feature in self.videos]
        return (self.file(work), facts_file(work), *videos)

    def open_range(self, work: WorkRange) -> LerobotWriter:
        return LerobotWriter(self, work)

    def facts(self, commit: RangeCommit) -> RangeFacts:
        """What a range kept until all were finished."""
        return RangeFacts.read(storage.join(self.directory, facts_file(commit.range)))

    def number(self, commits: Sequence[RangeCommit]) -> list[Any]:
        tasks: dict[str, int] = {}
        numbers, frame, episode = [], 0, 0
        for commit in commits:
            facts = self.facts(commit)
            own = [tasks.setdefault(text, len(tasks)) for text in facts.tasks]
            count = len(facts.lengths)
            numbers.append({"first_frame": frame, "first_episode": episode, "episodes": count, "tasks": own})
            frame, episode = frame + facts.frames, episode + count
        return numbers

    def finish_range(self, commit: RangeCommit, numbers: Any) -> RangeCommit:
        facts = self.facts(commit)
        if not facts.frames:
            return commit
        data, *others = commit.files
        checksum = renumber(storage.below(self.directory, data.file), facts.places, numbers_of(facts, numbers))
        data = dataclasses.replace(data, shard=dataclasses.replace(data.shard, checksum=checksum))
        return dataclasses.replace(commit, files=(data, *others))

    def episodes_files_writer(self) -> EpisodesFiles:
        """What writes the metadata of the episodes, and the tasks."""
        return EpisodesTables(self)

    def info(self, episodes: int) -> dict[str, Any]:
        """What info.json says of the files."""
        del episodes
        return {
            "chunks_size": layout.CHUNK,
            "data_files_size_in_mb": layout.DATA_MB,
            "video_files_size_in_mb": layout.VIDEO_MB,
            "data_path": layout.DATA_PATH,
            "video_path": layout.VIDEO_PATH if self.videos else None,
        }

    def stats(self, found: dict[str, Any]) -> dict[str, Any]:
        """The content of stats.json."""
        return found

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        return write_metadata(self, commits)


def numbers_of(facts: RangeFacts, numbers: Any) -> dict[str, Array]:
    """The true numbers of the frames of a range (`parquet_file.edits_of`)."""
    episodes = numbers["first_episode"] + np.arange(len(facts.lengths))
    return {
        "index": numbers["first_frame"] + np.arange(facts.frames),
        "episode_index": np.repeat(episodes, facts.lengths),
        "task_index": np.array(numbers["tasks"], np.int64)[facts.frame_tasks],
    }
