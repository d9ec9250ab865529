"""Edits images. Each image is decoded and encoded once, however many of these connectors run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.nesting import all_below
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.pixels import edit_images
from rlds_beam.images.resizing import resize_colors, resize_depth
from rlds_beam.text import did_you_mean

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True)
class ResizeImages(EpisodeConnector):
    """Resizes images and encodes color images as JPEG, as OpenVLA and Octo do for training.

        observation/image        480 x 640 x 3 PNG       lanczos3     256 x 256 x 3 JPEG
        observation/depth        480 x 640 x 1 PNG       bilinear     256 x 256 x 1 PNG, the same dtype
        observation/depth_map    480 x 640 float32       bilinear     256 x 256 float32
        observation/touch        16 x 16 x 3             unchanged: smaller than `minimum`

    Equals `resize_and_jpeg_encode` of rlds_dataset_mod: pixels are those of `tf.image.resize` with antialias, and
    fields with `depth` in their name are depth. A JPEG that already has the size is copied byte for byte.

    Attributes:
      height, width: the new size.
      fields: the fields to resize, each with everything below it; by default the observation.
      minimum: images whose declared height or width is smaller are not changed.
      enlarge: also enlarge images; otherwise no side grows.
      quality: the JPEG quality, 1 to 100.
    """

    height: int = 256
    width: int = 256
    fields: Sequence[str] | None = None
    minimum: int = 64
    enlarge: bool = True
    quality: int = 95

    def __post_init__(self) -> None:
        if min(self.height, self.width) < 1 or not 1 <= self.quality <= 100:
            raise UsageError("ResizeImages: height and width must be at least 1, and quality between 1 and 100")

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        names = (fields.obs,) if self.fields is None else self.fields
        paths = chosen(episode, names, "ResizeImages")
        return episode.with_columns({path: self._resized(path, episode.steps[path]) for path in paths})

    def _resized(self, path: str, column: Column) -> Column:
        shape = column.shape if isinstance(column, EncodedImages) else column.shape[1:]
        if len(shape) not in (2, 3) or any(side is not None and side < self.minimum for side in shape[:2]):
            return column
        depth = "depth" in path.rpartition("/")[2]
        height, width = (
            wanted if self.enlarge or side is None else min(wanted, side)
            for wanted, side in zip((self.height, self.width), shape, strict=False)
        )
        if isinstance(column, EncodedImages):
            encoding = "png" if depth or column.dtype != "uint8" or column.shape[-1] not in (1, 3, None) else "jpeg"
            if (height, width) == shape[:2] and column.encoding == encoding:
                return column
            edit = functools.partial(_resize, height=height, width=width, depth=depth)
            size = (height, width, column.shape[2])
            return edit_images(column, edit, path, shape=size, encoding=encoding, quality=self.quality)
        if not is_numeric(column):
            return column
        resized = _resize(column[..., None] if len(shape) == 2 else column, height=height, width=width, depth=depth)
        return resized[..., 0] if len(shape) == 2 else resized


@dataclasses.dataclass(frozen=True)
class FlipChannels(EpisodeConnector):
    """Reverses the channels of images that were stored as BGR.

        observation/image   (H, W, 3)   b g r   ->   r g b

    Equals `flip_image_channels` of rlds_dataset_mod. PNGs stay PNGs, and JPEGs are encoded again.

    Attributes:
      fields: the image fields.
      quality: the JPEG quality, 1 to 100.
    """

    fields: Sequence[str]
    quality: int = 95

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        return episode.with_columns(
            {
                path: self._flipped(path, episode.steps[path])
                for path in chosen(episode, self.fields, "FlipChannels", images=True)
            }
        )

    def _flipped(self, path: str, column: Column) -> Column:
        if isinstance(column, EncodedImages):
            return edit_images(column, _flip, path, quality=self.quality)
        return _flip(column)


def chosen(episode: Episode, names: str | Sequence[str], connector: str, *, images: bool = False) -> list[str]:
    """The paths of the named fields, each with everything below it.

    Args:
      images: only fields that hold images, or arrays shaped like images.

    Raises:
      UsageError: a name matches nothing.
    """
    paths: list[str] = []
    for name in (names,) if isinstance(names, str) else names:
        matching = all_below(episode.steps, name)
        if images:
            matching = [path for path in matching if _holds_images(episode.steps[path])]
        if not matching:
            what = "images" if images else "field"
            raise UsageError(f"{connector}: there is no {what} {name}{did_you_mean(name, [*episode.steps])}")
        paths += matching
    return paths


def _holds_images(column: Column) -> bool:
    return isinstance(column, EncodedImages) or (column.dtype == np.uint8 and column.ndim == 4)


def _resize(images: Array, *, height: int, width: int, depth: bool) -> Array:
    if images.shape[1:3] == (height, width):
        return images
    return (resize_depth if depth else resize_colors)(images, height, width)


def _flip(images: Array) -> Array:
    return images[..., ::-1]
