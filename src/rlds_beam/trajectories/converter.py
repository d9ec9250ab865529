"""Converts episodes to training items, as the bytes that a sink writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.trajectories.frames import Frames, Kept, frame_count, to_frames
from rlds_beam.trajectories.items import Coverage, ItemMaker, Items, UnusedSteps, item_count, predict_items
from rlds_beam.trajectories.options import FrameOptions, Images, ItemOptions
from rlds_beam.trajectories.record_layout import encode_jpegs, is_jpeg, record_fields
from rlds_beam.trajectories.spec import TrajectorySpec

JPEG_QUALITY = 95
"""The quality of images that are not JPEGs yet; TF-Agents uses the same."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class WindowItemConversion:
    """Converts the episodes of one dataset to windows of frames: the options and derived values. Picklable."""

    frames: FrameOptions
    items: ItemOptions
    spec: TrajectorySpec
    images: Images = "raw"
    keep: tuple[Kept, ...] = ()

    @classmethod
    def from_spec(cls, spec: TrajectorySpec, images: Images = "raw") -> WindowItemConversion:
        """The conversion whose result a spec describes.

        Raises:
          UsageError: the spec does not say how episodes become items.
        """
        if spec.frames is None or spec.items is None:
            raise UsageError(
                "the spec does not say which frames make an item: use ConvertToTrajectories(...).spec or "
                "trajectory_spec(...)"
            )
        return cls(spec.frames, spec.items, spec, images, spec.keep)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of an output record; raises UsageError if the format cannot hold a leaf."""
        return record_fields(self.spec, self.images)

    @property
    def kept_fields(self) -> tuple[Field, ...]:
        """The fields of a record besides the trajectory."""
        return tuple(entry.record_field(self.spec.item_shape) for entry in self.keep)

    def salt(self) -> dict[str, Any]:
        """The inputs of the items' keys besides their episodes and frames."""
        return {
            "frames": dataclasses.replace(self.frames, last_step=self.frames.last_step or "drop"),
            "items": self.items,
        }

    def count(self, batch: Any) -> tuple[int, int]:
        """The numbers of items and frames of a `connectors.base.Batch`; items across episodes count later."""
        lengths = [frame_count(episode, self.frames) for episode in batch.episodes]
        return 0 if self.items.across_episodes else predict_items(lengths, self.items), sum(lengths)

    def converter(self, encode: Callable[[Items], T]) -> WindowItemConverter[T]:
        """The converter of a range; `encode` encodes items for the sink."""
        return WindowItemConverter(self, encode)

    def plan(self) -> dict[str, Any]:
        """The inputs of the items' bytes besides the episodes, as JSON."""
        return {
            "frames": dataclasses.asdict(self.frames),
            "items": dataclasses.asdict(self.items),
            "images": self.images,
            **({"keep": [entry.field.path for entry in self.keep]} if self.keep else {}),
        }

    def describe(self) -> tuple[list[str], dict[str, str]]:
        """The leaves of a frame, one per line; and the fields left out, with reasons."""
        kept = {entry.field.path: f"{entry.field} (kept, not a leaf of the trajectory)" for entry in self.keep}
        left_out = {path: why for path, why in self.spec.left_out.items() if path not in kept}
        return [*map(str, self.spec.leaves), *kept.values()], left_out

    @property
    def ignored_values(self) -> IgnoredValues:
        """The values that no item depends on."""
        fields = () if self.frames.policy_info_fn else self.describe()[1]  # the function sees every field
        return IgnoredValues(frozenset(fields), last_step=self.frames.last_step in (None, "drop"))

    def predict(self, episodes: Iterable[Episode]) -> int:
        """The number of items from episodes; with `across_episodes`, from all episodes of one shard."""
        return predict_items([frame_count(episode, self.frames) for episode in episodes], self.items)


class WindowItemConverter(Generic[T]):
    """Converts the episodes of one ordered range of a dataset to the input of a sink.

    With `across_episodes`, items cross episode boundaries, so episodes must come in order and `finish` returns the
    last items. Otherwise each episode is independent.

    Args:
      conversion: how to convert episodes to items.
      encode: encodes items for the sink (`TrajectoryEncoder.prepare`, `reverb.writer.RequestEncoder`); raises
        BadEpisode if an episode cannot be written.

    Attributes:
      predicted: the number of items that the closed form predicts for the episodes so far.
      unused_steps: the steps that are in no item, by reason (`trajectories.items.REASONS`); complete after `finish`.
    """

    def __init__(self, conversion: WindowItemConversion, encode: Callable[[Items], T]):
        self._conversion, self._encode = conversion, encode
        self._maker = ItemMaker(conversion.items)
        self._coverage = Coverage(conversion.items)
        self._frames = 0
        self.predicted = 0

    @property
    def unused_steps(self) -> Mapping[str, UnusedSteps]:
        return self._coverage.unused

    def encode(self, episodes: Sequence[Episode]) -> list[T]:
        """Encodes the items of valid episodes: all of them, or none if one fails.

        Raises:
          BadEpisode: an image cannot be decoded, or an episode is too long for an item.
        """
        parts = [self._make_frames(episode) for episode in episodes]
        encoded = [self._encode(self._maker.push(frames)) for frames in parts]
        # Count only after everything that can fail.
        for frames, episode in zip(parts, episodes, strict=True):
            self._frames += len(frames)
            self._coverage.add(len(episode), len(frames))
            if not self._conversion.items.across_episodes:
                self.predicted += item_count(len(frames), self._conversion.items)
        return encoded

    def encode_batch(self, batch: Any) -> list[T]:
        """Calls `encode` for the episodes of a batch."""
        return self.encode(batch.episodes)

    def encode_items(self, items: Items) -> T:
        """Encodes items that were converted before, from one episode.

        Raises:
          BadEpisode: an image cannot be decoded.
        """
        encoded = self._encode(items)
        self.predicted += len(items)
        return encoded

    def finish(self) -> list[T]:
        """Returns the items that are complete only at the end of the range."""
        if self._conversion.items.across_episodes:
            self.predicted += item_count(self._frames, self._conversion.items)
        self._coverage.finish()
        last = self._maker.finish()
        return [] if last is None else [self._encode(last)]

    def _make_frames(self, episode: Episode) -> Frames:
        frames = to_frames(episode, self._conversion.frames, self._conversion.keep)
        if not self._conversion.items.across_episodes:
            return frames
        # Items of the next episode may contain frames of this one, so decode and check its images first.
        columns = dict(frames.columns)
        for path, column in frames.columns.items():
            leaf = self._conversion.spec[path]
            if isinstance(column, EncodedImages) and is_jpeg(leaf, self._conversion.images):
                jpegs = encode_jpegs(column, leaf, JPEG_QUALITY)
                columns[path] = column.with_data(np.fromiter(map(bytes, jpegs), object, len(jpegs)))
            elif isinstance(column, EncodedImages):
                columns[path] = column.decode_all(leaf.path, leaf.shape)
        return dataclasses.replace(frames, columns=columns)
