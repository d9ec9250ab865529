"""How the frames of a LeRobot dataset are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rlds_beam.formats.lerobot.depth import DepthEncoding
from rlds_beam.formats.lerobot.features import FeatureMap, LerobotFeature
from rlds_beam.formats.lerobot.videos import Encoding


@dataclasses.dataclass(frozen=True)
class FrameFormat:
    """The features of the frames, and how their images are stored.

    Attributes:
      features: the features, with their fields.
      fps: frames per second.
      image_samples: the number of frames of each camera and episode decoded for the statistics
        (`statistics.sample_places`).
      encoding: the encoding of videos; None if there are none.
      copied: what is said of the videos whose packets are copied if no frame changes, by path.
      only_copied: whether other images stay images.
    """

    features: FeatureMap
    fps: int
    image_samples: int | None = None
    encoding: Encoding | None = None
    copied: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    only_copied: bool = False

    @property
    def videos(self) -> tuple[LerobotFeature, ...]:
        """The features that become videos; other images (16-bit, gray) are copied into the data files."""
        features = [f for f in self.features.images if f.is_video] if self.encoding is not None else []
        return tuple(f for f in features if not self.only_copied or f.path in self.copied)

    def encoding_of(self, feature: LerobotFeature) -> Encoding | DepthEncoding:
        """The encoding of a video."""
        assert self.encoding is not None
        return self.encoding if feature.depth is None else DepthEncoding(feature.depth)

    @property
    def stored(self) -> tuple[LerobotFeature, ...]:
        """The features in the data files."""
        return tuple(feature for feature in self.features.features if feature not in self.videos)
