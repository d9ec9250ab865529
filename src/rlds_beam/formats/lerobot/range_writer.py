"""Writes the episodes of a range as frames of a LeRobot dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.base import Batch
from rlds_beam.formats.lerobot import statistics
from rlds_beam.formats.lerobot.episode_files import EpisodeFiles
from rlds_beam.formats.lerobot.frame_format import FrameFormat
from rlds_beam.formats.lerobot.frames import LerobotFrames
from rlds_beam.formats.lerobot.gathered_statistics import GatheredStatistics
from rlds_beam.formats.lerobot.prepared import PreparedEpisode, metadata_column
from rlds_beam.formats.lerobot.range_facts import RangeFacts
from rlds_beam.formats.lerobot.range_files import RangeFiles
from rlds_beam.output.preview import part_of
from rlds_beam.output.shards import WrittenFile

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, Any]


class LerobotWriter:
    """The `output.base.FileRangeWriter` of a LeRobot dataset.

    Args:
      directory: the directory of the dataset.
      frame_format: how frames are stored.
      files: writes the files of the range.
      facts: the name of the facts file.
      previewed: whether the preview may show its first episode.

    Attributes:
      predicted: the number of frames so far.
    """

    def __init__(
        self,
        directory: str,
        frame_format: FrameFormat,
        files: RangeFiles | EpisodeFiles,
        facts: str,
        previewed: bool = True,
    ):
        self._directory, self._format, self._files, self._facts = directory, frame_format, files, facts
        self._previewed = previewed
        self._map = frame_format.features
        self._tasks: dict[str, int] = {}
        self._frame_tasks: list[Array] = []
        self._episodes: list[PreparedEpisode] = []
        self._statistics = GatheredStatistics(
            {feature.name: feature.levels for feature in self._map.images if feature.depth}
        )
        self._histograms = {f.name: np.zeros((f.shape[-1], len(f.levels)), np.int64) for f in self._map.images}
        self._preview = b""
        self._not_decoded = statistics.FRAMES_OF_A_SAMPLE
        self.predicted = 0

    def write(self, batch: Batch) -> None:
        prepared, not_decoded = [], self._not_decoded
        for episode in (one for one in batch.episodes if len(one)):
            decoded = statistics.sample_count(len(episode), not_decoded, self._format.image_samples)
            prepared.append(PreparedEpisode(self._format, episode, decoded))
            not_decoded = 0 if decoded else not_decoded + len(episode)
        self._not_decoded = not_decoded
        if prepared and self._previewed and not self._episodes:
            first = next(episode for episode in batch.episodes if len(episode))
            self._preview = part_of(
                [first.steps[f.path] for f in self._map.images if f.fields[0].dtype in ("uint8", "uint16")]
            )
        for one in prepared:  # nothing can fail after preparing
            self._files.add(self._numbered(one), one.pixels, one.key)
            self._statistics.add(one.numbers, one.histograms)
            for name, histogram in one.histograms.items():
                self._histograms[name] += histogram
            one.release()
            self._episodes.append(one)
            self.predicted += one.length

    def _numbered(self, one: PreparedEpisode) -> LerobotFrames:
        """The frames, numbered as the next ones of the range. Adds new tasks."""
        tasks = [self._tasks.setdefault(text, len(self._tasks)) for text in one.texts]
        self._frame_tasks.append(np.repeat(np.array(tasks, np.int32), one.length // len(tasks)))
        numbers = {
            "index": self.predicted + np.arange(one.length),
            "episode_index": np.full(one.length, len(self._episodes)),
            "task_index": self._frame_tasks[-1].astype(np.int64),
        }
        return LerobotFrames({**one.columns, **numbers}, one.length)

    def finish(self) -> tuple[WrittenFile, ...]:
        data, *videos = self._files.commit()
        episodes = self._episodes
        facts = RangeFacts(
            keys=[str(one.key) for one in episodes],
            lengths=np.array([one.length for one in episodes], np.int64),
            tasks=list(self._tasks),
            frame_tasks=np.concatenate([np.empty(0, np.int32), *self._frame_tasks]),
            statistics=self._statistics.finish(),
            histograms=self._histograms,
            samples={name: np.array([one.samples[name] for one in episodes], np.int64) for name in self._histograms},
            columns=self._columns(episodes),
            ends=self._files.ends,
            preview=self._preview,
            encoded=self._files.encoded,
        )
        kept = facts.write(storage.below(self._directory, self._facts), data.shard.first_key)
        return (data, WrittenFile(self._facts, kept, len(episodes), role="temporary"), *videos)

    def abort(self) -> None:
        self._files.abort()

    def _columns(self, episodes: list[PreparedEpisode]) -> pa.Table:
        import pyarrow as pa

        columns = {}
        for name, field in self._map.columns.items():
            parts = [one.metadata[name] for one in episodes]
            columns[name] = pa.concat_arrays(parts) if parts else metadata_column(field, [])
        return pa.table(columns) if columns else pa.table({"episode_key": [str(one.key) for one in episodes]})
