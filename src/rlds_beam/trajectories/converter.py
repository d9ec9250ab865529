"""One record in, its training items out, as the bytes that a sink takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

from rlds_beam.checking.duplicates import marked
from rlds_beam.checking.options import CheckOptions
from rlds_beam.checking.verdicts import Verdict, validate_episode
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.images import EncodedImages
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.episodes.schema import Field
from rlds_beam.episodes.violations import BadEpisode
from rlds_beam.trajectories.frames import Frames, to_frames
from rlds_beam.trajectories.image_leaves import jpegs_of, pixels_of
from rlds_beam.trajectories.items import ItemMaker, Items, item_count
from rlds_beam.trajectories.options import FrameOptions, Images, ItemOptions
from rlds_beam.trajectories.record_encoding import Encoded, TrajectoryEncoder
from rlds_beam.trajectories.record_layout import is_jpeg, record_fields
from rlds_beam.trajectories.spec import TrajectorySpec

JPEG_QUALITY = 95
"""Of images that are not JPEGs yet; what TF-Agents writes."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Conversion:
    """How records become items: the options, and what follows from them for one dataset. Pickles."""

    check: CheckOptions
    frames: FrameOptions
    items: ItemOptions
    spec: TrajectorySpec
    images: Images = "raw"

    @property
    def fields(self) -> tuple[Field, ...]:
        """What a record of the output holds; raises UsageError where the format cannot hold a leaf."""
        return record_fields(self.spec, self.images)


def record_encoder(conversion: Conversion) -> Callable[[Items], Encoded]:
    """Items as the records of a trajectory TFRecord."""
    return TrajectoryEncoder(conversion.spec, conversion.images, jpeg_quality=JPEG_QUALITY).encode


class Converter(Generic[T]):
    """Converts the records of one ordered stretch of a dataset to what a sink takes.

    With `across_episodes` the items run over the ends of episodes, so the records have to come in
    order, and `finish` gives the last ones. In every other mode each record is on its own.

    Args:
      conversion: how records become items.
      encode: makes of items what the sink takes (`record_encoder`, `reverb.writing.ItemRequests`); raises
        BadEpisode where an episode cannot be written after all.

    Attributes:
      predicted: items that the closed form gives for the episodes so far.
    """

    def __init__(self, conversion: Conversion, encode: Callable[[Items], T]):
        self._conversion, self._encode = conversion, encode
        self._maker = ItemMaker(conversion.items)
        self._frames = 0
        self.predicted = 0

    def convert(self, episode: Episode, duplicates: Mapping[EpisodeKey, EpisodeKey]) -> tuple[Verdict, list[T]]:
        """Checks one record and encodes its items; all of them, or (where it is rejected) none.

        Args:
          episode: as read, with its faults.
          duplicates: what `FindDuplicateEpisodes` found.

        Raises:
          FailedRuleError: it breaks a rule whose policy is `fail`.
        """
        episode = marked(episode, duplicates)
        verdict = validate_episode(episode, self._conversion.check)
        try:
            return verdict, self.encode(verdict.episodes)
        except BadEpisode as bad:
            # Some faults show only now: a damaged image body, an episode too long for one item.
            faults = (*episode.faults, *bad.violations)
            return validate_episode(episode.replace(faults=faults), self._conversion.check), []

    def encode(self, episodes: Sequence[Episode]) -> list[T]:
        """Encodes the items of valid episodes: of all of them, or of none.

        Raises:
          BadEpisode: an image cannot be decoded, or an episode is too long for an item.
        """
        parts = [self._frames_of(episode) for episode in episodes]
        encoded = [self._encode(self._maker.push(frames)) for frames in parts]
        # Counted only here, behind all that can fail.
        for frames in parts:
            self._frames += len(frames)
            if not self._conversion.items.across_episodes:
                self.predicted += item_count(len(frames), self._conversion.items)
        return encoded

    def finish(self) -> list[T]:
        """The items that only the end of the stretch completes."""
        if self._conversion.items.across_episodes:
            self.predicted += item_count(self._frames, self._conversion.items)
        last = self._maker.finish()
        return [] if last is None else [self._encode(last)]

    def _frames_of(self, episode: Episode) -> Frames:
        frames = to_frames(episode, self._conversion.frames)
        if not self._conversion.items.across_episodes:
            return frames
        # A stream keeps frames of this episode for items of the next: its images have to be sound before they get in.
        return dataclasses.replace(
            frames, columns={path: self._settled(path, column) for path, column in frames.columns.items()}
        )

    def _settled(self, path: str, column: Column) -> Column:
        """The column as it will be written, if it holds images."""
        if not isinstance(column, EncodedImages):
            return column
        leaf = self._conversion.spec[path]
        if not is_jpeg(leaf, self._conversion.images):
            return pixels_of(column, leaf)
        data = np.empty(len(column), object)
        data[:] = jpegs_of(column, leaf, JPEG_QUALITY)
        return dataclasses.replace(column, data=data)
