"""LeRobot datasets as an output: `convert --to=lerobot`, of v3.0 or with `--lerobot_version=2.1` of v2.1.

v3.0 has a Parquet file of frames for each range and a video of each camera; v2.1 has them for each episode. For v2.1,
`--modality=auto` adds `meta/modality.json`, which GR00T reads: the parts of each vector.

    {"state":      {"arm": {"start": 0, "end": 7}, "gripper": {"start": 7, "end": 8}},
     "action":     {"action": {"start": 0, "end": 7}},
     "video":      {"front": {"original_key": "observation.images.front"}},
     "annotation": {"human.task_description": {"original_key": "task_index"}}}
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from rlds_beam import storage
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.metadata import encode
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.format_options import LerobotOptions
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.lerobot.episodes import EpisodesLines, EpisodesTables
from rlds_beam.formats.lerobot.features import FeatureMap, LerobotFeature, image_sizes, map_features
from rlds_beam.formats.lerobot.frames import FrameFormat, write_data_file
from rlds_beam.formats.lerobot.ranges import (
    DIRECTORY,
    LerobotWriter,
    RangeFacts,
    RangeNumbers,
    check_size,
    numbered_frames,
    split_episodes,
)
from rlds_beam.formats.lerobot.statistics import FRAMES_OF_A_SAMPLE, MAX_SAMPLES, MIN_FRAMES, samples_of_few
from rlds_beam.formats.lerobot.totals import (
    EarlierDataset,
    Totals,
    card,
    dataset_statistics,
    features_info,
)
from rlds_beam.formats.lerobot.videos import PIXELS, Encoding, VideoFile, VideoPack, split_pack
from rlds_beam.images.video_frames import Depth
from rlds_beam.options import options_given
from rlds_beam.output.base import Description, GlobalIndices, RowRule, RowsOutput, RowsWriter, select_rows
from rlds_beam.output.shards import ShardWriter, WrittenFile
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.text import count, did_you_mean, join_texts, printable, some

if TYPE_CHECKING:
    from rlds_beam.output.commits import EarlierOutput, RangeCommit


@dataclasses.dataclass(frozen=True)
class LerobotOutput(GlobalIndices, RowsOutput):
    """A LeRobot dataset: a Parquet file of frames for each range, a video of each camera, and `meta/`.

    Attributes:
      directory: where the files go.
      name: the name of the dataset.
      frames: how the frames are stored.
      robot_type: the robot's name in info.json.
      modality: the content of modality.json (v2.1); None if there is none.
      rule: see `RowsOutput`.
      first: the number of each split's first file.
      earlier: the dataset that is appended to; None if there is none.
      version: the version of LeRobot's format.
      video_class: writes the videos of a range and camera.
      episodes_class: writes the metadata of episodes and tasks.
    """

    directory: str
    name: str
    frames: FrameFormat
    robot_type: str | None = None
    modality: Mapping[str, Any] | None = None
    rule: RowRule = dataclasses.field(default_factory=RowRule)
    first: tuple[tuple[str, int], ...] = ()
    earlier: EarlierDataset | None = None

    options_class = LerobotOptions
    input_facts = ("lerobot.last_step.assumed",)
    version: ClassVar[str] = layout.V3
    video_class: ClassVar[type[VideoFile | VideoPack]] = VideoFile
    episodes_class: ClassVar[type[EpisodesTables | EpisodesLines]] = EpisodesTables

    @classmethod
    def create(
        cls, source: Source, connectors: ConnectorRunner, directory: str, options: LerobotOptions
    ) -> LerobotOutput:
        fps, schema = _whole_fps(options, source), connectors.schema
        features = map_features(
            schema,
            options.map,
            image_sizes(source, connectors, schema, options.map),
            languages=options.lerobot_version != "2.1",
            depth=_depth_scales(options, schema),
        )
        as_video = options.images == "video"
        for name in _encoder_options(options) if not as_video else ():
            raise UsageError(f"--{name} needs --images=video")
        copied = _copied_videos(features, source, options)
        encoding = Encoding.from_options(options) if as_video or copied else None
        least = samples_of_few(split.episodes for split in source.splits)
        frames = FrameFormat(features, fps, options.image_samples, least, encoding, copied, only_copied=not as_video)
        for feature in frames.videos:
            if feature.depth is None and (feature.shape[0] % 2 or feature.shape[1] % 2):
                raise UsageError(
                    f"--images=video: {feature.describe()} has an odd height or width, which {PIXELS} cannot hold: "
                    "resize it with a connector, or copy the images (--images=copy)"
                )
        modality = None
        if options.lerobot_version == "2.1":
            if images := [field for field in features.columns.values() if field.holds_image_files]:
                raise UsageError(
                    f"--lerobot_version=2.1: {images[0]} is an image per episode, which episodes.jsonl cannot hold: "
                    f"leave it out: --map=-{images[0].path}"
                )
            modality = auto_modality(features, frames.videos) if options.modality is not None else None
        elif options.modality is not None:
            raise UsageError(
                "--modality: modality.json is for GR00T, which reads LeRobot 2.1: add --lerobot_version=2.1, or leave "
                "--modality out"
            )
        rule, robot = RowRule.choose(source, schema, options.last_step), source.robot
        kind = LerobotV21Output if options.lerobot_version == "2.1" else LerobotOutput
        return kind(directory, source.name, frames, robot, modality, rule=rule)

    @property
    def fields(self) -> list[Field]:
        return [field for feature in self.frames.features.features for field in feature.fields]

    def stored_names(self) -> Iterator[tuple[str, str]]:
        yield from ((feature.path, feature.name) for feature in self.frames.features.features)

    def with_ranges(self, ranges: Sequence[WorkRange]) -> Self:
        first: dict[str, int] = {}
        for number, work in enumerate(ranges):
            first.setdefault(work.split, number)
        return dataclasses.replace(self, first=tuple(first.items()))

    def append_to(self, earlier: EarlierOutput, ranges: Sequence[WorkRange], directory: str) -> Self | None:
        known = EarlierDataset.from_output(earlier, ranges)
        return dataclasses.replace(self, directory=directory, earlier=known)

    def plan(self) -> dict[str, Any]:
        frames = self.frames
        depth = {f.name: dataclasses.asdict(f.depth) for f in frames.features.features if f.depth is not None}
        return {
            "lerobot": {
                **({"depth": depth} if depth else {}),
                **self.rule.to_json(),
                "version": self.version,
                "fps": frames.fps,
                "image_samples": frames.image_samples
                or f"1 in {FRAMES_OF_A_SAMPLE}, at most {MAX_SAMPLES}; all of up to {MIN_FRAMES}",
                "robot_type": self.robot_type,
                **frames.features.to_json(),
                "video": None if frames.encoding is None else dataclasses.asdict(frames.encoding),
                **({"copied": sorted(frames.copied)} if frames.copied else {}),
            }
        }

    def describe(self) -> Description:
        features, encoding, lines = self.frames.features, self.frames.encoding, self.frames.features.describe()
        if encoding is not None:
            stored = {
                feature.name: "copied video"
                if feature.path in self.frames.copied
                else f"{self.frames.video_encoding(feature).codec} video"
                for feature in self.frames.videos
            }
            lines = [f"{line} as {stored[name]}" if (name := line.split(":")[0]) in stored else line for line in lines]
        return Description(lines, features.left_out, "frame")

    def predict(self, batches: Iterable[Batch]) -> int:
        return sum(len(self.rule.rows(episode)) for batch in batches for episode in batch.episodes)

    def check_batch(self, batch: Batch) -> None:
        for episode in select_rows(batch, self.rule).episodes:
            for feature in self.frames.features.images:
                check_size(feature, episode.steps[feature.path])

    def _file_number(self, split: str, index: int) -> int:
        """The number of a range's file: that of the range across all splits."""
        return dict(self.first)[split] + index

    def file(self, work: WorkRange) -> str:
        return f"{DIRECTORY}/{work}.arrow"

    def files(self, work: WorkRange) -> tuple[str, ...]:
        return (self.file(work), f"{DIRECTORY}/{work}.facts", *self.range_videos(work))

    def range_videos(self, work: WorkRange) -> list[str]:
        """The names of the videos that a range writes."""
        place = layout.place(self._file_number(work.split, work.index))
        return [layout.VIDEO_PATH.format(video_key=feature.name, **place) for feature in self.frames.videos]

    def open_range(self, work: WorkRange) -> LerobotWriter | RowsWriter:
        writer = LerobotWriter(self.directory, self.frames, self.files(work), self.video_class)
        return RowsWriter(writer, self.rule) if self.rule.left_out else writer

    def facts(self, commit: RangeCommit) -> RangeFacts:
        """The facts that a finished range kept."""
        return RangeFacts.read(storage.join(self.directory, f"{DIRECTORY}/{commit.range}.facts"))

    def global_indices(self, commits: Sequence[RangeCommit]) -> list[Any]:
        before = Totals() if self.earlier is None else self.earlier.totals()
        tasks, frame, episode = dict(before.tasks), before.frames, before.episodes
        indices: list[Any] = []
        for facts in map(self.facts, commits):
            own = [tasks.setdefault(text, len(tasks)) for text in facts.tasks]
            indices.append(RangeNumbers(frame, episode, own)._asdict())
            frame, episode = frame + facts.frames, episode + len(facts.lengths)
        return indices

    def finish_range(self, commit: RangeCommit, indices: Any) -> RangeCommit:
        facts = self.facts(commit)
        if not facts.frames:
            return commit
        frames, *others = commit.files
        name = layout.DATA_PATH.format(**layout.place(self._file_number(commit.split, commit.index)))
        tables = numbered_frames(self._path(frames.file), self.frames.stored, facts, RangeNumbers(**indices))
        episodes = zip(facts.keys, facts.lengths.tolist(), strict=True)
        shard = write_data_file(self._path(name), self.frames.stored, tables, episodes)
        return msgspec.structs.replace(commit, files=(WrittenFile(name, shard, facts.frames), *others))

    def _path(self, name: str) -> str:
        return storage.below(self.directory, name)

    def paths(self, episodes: int) -> dict[str, Any]:
        """The entries of info.json about files."""
        del episodes
        return {
            "chunks_size": layout.CHUNK,
            "data_files_size_in_mb": layout.DATA_MB,
            "video_files_size_in_mb": layout.VIDEO_MB,
            "data_path": layout.DATA_PATH,
            "video_path": layout.VIDEO_PATH if self.frames.videos else None,
        }

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        """Writes all of `meta/`, with info.json last.

        Files of ranges without frames are removed: LeRobot has no empty files.
        """
        totals, episodes, first = Totals(), self.episodes_class(self.directory, self.frames, self.earlier), 0
        if self.earlier is not None:
            totals, first, known = self.earlier.totals(), self.earlier.files, self.earlier.ranges
            old = [commit for commit in commits if commit.index < known.get(commit.split, 0)]
            files = [file.file for commit in old for file in commit.kept if file.role == "items" and file.shard.records]
            totals.add_numbers([storage.below(self.earlier.directory, file) for file in files], self.frames.features)
            commits = [commit for commit in commits if commit not in old]
        for place, commit in enumerate(commits, first * layout.RANGES_IN_EPISODES):
            facts = self.facts(commit)
            numbers = RangeNumbers(**commit.numbers)
            episodes.add(place, self._file_number(commit.split, commit.index), facts, numbers)
            totals.add(commit.split, facts, numbers)
            if facts.frames:
                files = [self._path(file.file) for file in commit.files if file.role == "items"]
                totals.add_numbers(files, self.frames.features)
            else:
                storage.remove_files(self.directory, [file.file for file in commit.kept])
        episodes.finish(list(totals.tasks))
        info = self._info(totals)
        stats = dataset_statistics(self.frames.features, totals) if totals.frames else {}
        if self.version == layout.V21:  # without counts: GR00T slices the vector of every statistic that it finds
            stats = {name: {k: v for k, v in entry.items() if k != "count"} for name, entry in stats.items()}
        if self.modality is not None:
            self._write(layout.MODALITY, json.dumps(self.modality, indent=4) + "\n")
        self._write(layout.STATS, json.dumps(stats, indent=4) + "\n")
        void = {"last_action": "void"} if self.rule.kept_void else {}
        self._write(layout.FIELDS, encode({**self.frames.features.to_json(), **void}))
        self._write(layout.CARD, card(self.name, info))
        self._write(layout.INFO, json.dumps(info, indent=4, ensure_ascii=False) + "\n")
        samples = totals.samples
        pixels = {n: {"samples": samples[n], "histogram": h.tolist()} for n, h in totals.histograms.items()}
        encoded = {name: found._asdict() for name, found in totals.encoded.items()}
        details = {"encoded": encoded, "pixels": pixels}
        counts = {"version": self.version, "episodes": totals.episodes, "tasks": len(totals.tasks)}
        return {"lerobot": {**counts, **{name: content for name, content in details.items() if content}}}

    def notes(self, manifest: Mapping[str, Any]) -> list[str]:
        entry = manifest.get("lerobot", {})
        features = self.frames.features.features
        inputs = [feature for feature in features if feature.name.startswith(("action", "observation"))]
        flags = [printable(f.name, 100) for f in inputs if any(field.dtype == "bool" for field in f.fields)]
        how = (
            "LeRobot's policies cannot normalize flags; the connector CastFields makes numbers of them (dtype: float32)"
        )
        return [
            *super().notes(manifest),
            *([f"bool      {some(flags)}; {how}"] if flags else []),
            *(
                f"note      {name}: {found['episodes']:,} of {count(entry['episodes'], 'episode')} encoded again, not "
                f"copied: {found['why']}"
                for name, found in entry.get("encoded", {}).items()
            ),
        ]

    def _info(self, totals: Totals) -> dict[str, Any]:
        return {
            "codebase_version": self.version,
            "robot_type": self.robot_type,
            "total_episodes": totals.episodes,
            "total_frames": totals.frames,
            "total_tasks": len(totals.tasks),
            **self.paths(totals.episodes),
            "fps": self.frames.fps,
            "splits": {split: f"{first}:{stop}" for split, (first, stop) in totals.splits.items()},
            "features": features_info(self.frames),
        }

    def _write(self, name: str, text: str) -> None:
        storage.write_text(self._path(name), text)


@dataclasses.dataclass(frozen=True)
class LerobotV21Output(LerobotOutput):
    """A LeRobot v2.1 dataset: a Parquet file and a video per camera for each episode; `meta/` holds JSON lines."""

    version: ClassVar[str] = layout.V21
    video_class = VideoPack
    episodes_class = EpisodesLines

    def plan(self) -> dict[str, Any]:
        return {"lerobot": {**super().plan()["lerobot"], "modality": self.modality}}

    def range_videos(self, work: WorkRange) -> list[str]:
        return [f"{DIRECTORY}/{work}.{feature.name}.videos" for feature in self.frames.videos]

    def finish_range(self, commit: RangeCommit, indices: Any) -> RangeCommit:
        facts, numbers = self.facts(commit), RangeNumbers(**indices)
        if not facts.frames:
            return commit
        (frames, *packs), lengths = commit.kept, facts.lengths.tolist()
        numbered = numbered_frames(self._path(frames.file), self.frames.stored, facts, numbers)
        tables = split_episodes(numbered, lengths)
        videos = [split_pack(self._path(p.file), ends) for p, ends in zip(packs, facts.ends.tolist(), strict=True)]
        files = [file for file in commit.files if file.role == "temporary"]
        for episode, (key, length) in enumerate(zip(facts.keys, lengths, strict=True), numbers.first_episode):
            place = layout.place_of_episode(episode)
            name = layout.EPISODE_DATA_PATH.format(**place)
            shard = write_data_file(self._path(name), self.frames.stored, [next(tables)], [(key, length)])
            files.append(WrittenFile(name, shard, length))
            for feature, video in zip(self.frames.videos, videos, strict=True):
                name = layout.EPISODE_VIDEO_PATH.format(video_key=feature.name, **place)
                with ShardWriter(self._path(name)) as writer:
                    writer.write([next(video)], length, key)
                    files.append(WrittenFile(name, writer.commit(), length, role="part"))
        return msgspec.structs.replace(commit, files=tuple(files))

    def paths(self, episodes: int) -> dict[str, Any]:
        return {
            "total_videos": episodes * len(self.frames.videos),
            "total_chunks": -(-episodes // layout.CHUNK),
            "chunks_size": layout.CHUNK,
            "data_path": layout.EPISODE_DATA_PATH,
            "video_path": layout.EPISODE_VIDEO_PATH if self.frames.videos else None,
        }


def _whole_fps(options: LerobotOptions, source: Source) -> int:
    """The frames per second. Raises UsageError if it is unknown, contradicts the data, or is not a whole number."""
    rates = source.meaning.rates
    if len(rates) > 1:
        raise UsageError(
            f"--to=lerobot: the data is {join_texts([f'{rate:g}' for rate in rates])} Hz, but LeRobot has one rate for "
            f'all episodes: convert each with --connectors="Resample({min(rates):g})", and merge the results'
        )
    fps = options.fps if options.fps is not None else source.fps
    if fps is None:
        raise UsageError("--to=lerobot: the data does not say its frames per second; pass --fps, for example --fps=10")
    if not 0 < fps < 1e6:
        raise UsageError(f"--fps={fps:g}: expected a number above 0")
    if (recorded := next(iter(rates), source.fps or fps)) != fps:
        raise UsageError(
            f'--fps={fps:g}: the data is {recorded:g} Hz; --fps={recorded:g}, or --connectors="Resample({fps:g})": '
            f"every frame is kept, so it would play at {fps / recorded:.3g} times its speed. If the data says a wrong "
            "rate, correct it there"
        )
    if float(fps).is_integer():
        return int(fps)
    if not options.round_fps or round(fps) < 1:
        raise UsageError(
            f"{fps:g} Hz: LeRobot's videos and tools need a whole number of frames per second; pass "
            "--round_fps to use the nearest (timestamps then follow the rounded rate)"
        )
    return round(float(fps))


_ENCODER_OPTIONS = ("vcodec", "crf", "gop")  # of color videos


def _encoder_options(options: LerobotOptions) -> list[str]:
    """The encoder's options that are given."""
    return [name for name in options_given(options, LerobotOptions) if name in _ENCODER_OPTIONS]


def _copied_videos(features: FeatureMap, source: Source, options: LerobotOptions) -> dict[str, Mapping[str, Any]]:
    """The source's facts about the videos to copy, by path; none if encoding or images are asked for."""
    if options.images == "copy" or _encoder_options(options):
        return {}
    cameras = [f for f in features.images if f.is_video and f.depth is None and not (f.shape[0] % 2 or f.shape[1] % 2)]
    known = source.details.videos
    return {feature.path: known[feature.path] for feature in cameras if feature.path in known}


def _depth_scales(options: LerobotOptions, schema: Schema) -> dict[str, Depth]:
    """The scale of each field of `--depth`. Raises UsageError if it cannot be used."""
    if options.depth and options.lerobot_version == "2.1":
        raise UsageError("--depth: LeRobot 2.1 has no depth videos; leave --depth out to copy 16-bit images")
    for path in options.depth:
        if path not in schema.steps:
            raise UsageError(f"--depth={path}: there is no field {path}{did_you_mean(path, schema.steps)}")
    return dict.fromkeys(options.depth, Depth(options.depth_min, options.depth_max))


_VECTORS = {"state": "observation.state", "action": "action"}
_TASK = "human.task_description"


def auto_modality(features: FeatureMap, videos: Sequence[LerobotFeature]) -> dict[str, Any]:
    """The modalities by field name. The fields of a vector joined by `--map` are its parts."""
    named = {feature.name: feature for feature in features.numbers}
    for part, name in _VECTORS.items():
        if name not in named or len(named[name].shape) > 1:
            raise UsageError(
                f"--modality=auto: GR00T reads its {part} from one vector, {name}, which the dataset lacks: join "
                f"its fields, --map={name}=PATH+PATH"
            )
    pictures = [feature for feature in features.images if feature.is_video and feature not in videos]
    if pictures:
        raise UsageError(
            f"--modality=auto: GR00T reads cameras from videos, but {pictures[0].name} is copied: add "
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
