"""Edits images, and the calibration of their cameras. Each image is decoded and encoded once, whatever its edits.

A field `IMAGE_intrinsics`, of the steps or of the episode, is the camera matrix K of the image field IMAGE, [3, 3]
or [9], with pixel centers at whole numbers, as in OpenCV and ROS. An edit that moves pixel p to A p makes it A K;
distortion and pose stay. After a turn, values are off the diagonal, or focal lengths are negative.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.fields import StepFields, check_choices
from rlds_beam.episodes.columns import all_below, is_numeric
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.resizing import edit_images, resize_colors, resize_depth
from rlds_beam.text import did_you_mean
from rlds_beam.typing import Array

Fit = Literal["stretch", "pad", "crop"]
Places: TypeAlias = tuple[Sequence[int], Sequence[int]]  # (top, left, height, width) before and after
INTRINSICS = "_intrinsics"  # the ending of the field with the camera matrix of an image field


class _ImageEditor(EpisodeConnector):
    """Edits the images of `fields`; by default those of the observation."""

    fields: Sequence[str] | None
    quality: int

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise UsageError(f"{type(self).__name__}: quality={self.quality}, expected 1 to 100")

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        names: str | Sequence[str] = (fields.obs,) if self.fields is None else self.fields
        edited: dict[str, Column] = {}
        for name in (names,) if isinstance(names, str) else names:
            paths = [p for p in all_below(episode.steps, name) if not p.endswith((INTRINSICS, "_extrinsics"))]
            columns = {path: episode.steps[path] for path in paths}
            columns = {path: c for path, c in columns.items() if self.takes(path, c, named=path == name)}
            if not columns:
                near = did_you_mean(name, [*episode.steps])
                raise UsageError(f"{type(self).__name__}: there is no image field {name}{near}")
            edited |= {path: self.change(path, column) for path, column in columns.items() if path not in edited}
        steps: dict[str, Any] = {**episode.steps, **edited}
        metadata: dict[str, Any] = {**episode.metadata}
        for path in [path for path, images in edited.items() if images is not episode.steps[path]]:
            for values, camera in ((steps, path + INTRINSICS), (metadata, f"episode_metadata/{path}{INTRINSICS}")):
                if camera in values:
                    values[camera] = self._move_matrix(camera, values[camera], episode.steps[path])
        return episode.replace(steps=steps, metadata=metadata)

    def _move_matrix(self, path: str, value: Any, images: Column) -> Array:
        """The camera matrix of edited images, or one of each step, given those of the images before."""
        known, (height, width, *_) = np.asarray(value), _shape(images)
        matrix = known.reshape(*known.shape[:-1], 3, 3) if known.shape[-1:] == (9,) else known  # as in CameraInfo
        if matrix.shape[-2:] != (3, 3) or matrix.dtype.kind != "f" or height is None or width is None:
            said = f"{matrix.dtype} {matrix.shape} for images of {height} x {width} pixels"
            raise UsageError(f"{type(self).__name__}: {path} is {said}, expected floats (3, 3) for images of one size")
        return np.asarray(self.move(height, width) @ matrix, known.dtype).reshape(known.shape)

    def move(self, height: int, width: int) -> Array:
        """The matrix [3, 3] by which the pixels (x, y, 1) of edited images move, which had this size."""
        return np.eye(3)

    def takes(self, path: str, column: Column, *, named: bool) -> bool:
        """Whether a field holds images. An array that the user named is trusted to hold them if its shape allows it."""
        if isinstance(column, EncodedImages):
            return True
        if column.dtype.kind not in "biuf" or column.ndim not in (3, 4):
            return False
        return named or is_depth(path) or (column.dtype == np.uint8 and column.ndim == 4)

    def change(self, path: str, column: Column) -> Column:
        """Returns the edited images."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class ResizeImages(_ImageEditor):
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
      crop: the part of each image to keep before it is resized: (top, left, height, width), in pixels.
      fit: what happens to images of other proportions: `stretch` changes them, as rlds_dataset_mod does; `pad` keeps
        the whole image and adds black borders, as `tf.image.resize_with_pad`; `crop` fills the size and cuts off both
        ends of the longer side.
    """

    height: int = 256
    width: int = 256
    fields: Sequence[str] | None = None
    minimum: int = 64
    enlarge: bool = True
    quality: int = 95
    crop: Sequence[int] | None = None
    fit: Fit = "stretch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, fit=get_args(Fit))
        if min(self.height, self.width) < 1:
            raise UsageError("ResizeImages: height and width must be at least 1")
        if self.crop is not None and (len(self.crop) != 4 or min(self.crop[:2]) < 0 or min(self.crop[2:]) < 1):
            raise UsageError(f"ResizeImages: crop={self.crop}, expected (top, left, height, width)")

    def takes(self, path: str, column: Column, *, named: bool) -> bool:
        return True  # other fields are returned as they are

    def change(self, path: str, column: Column) -> Column:
        shape = _shape(column)
        if len(shape) not in (2, 3) or any(side is not None and side < self.minimum for side in shape[:2]):
            return column
        depth, whole, crop = is_depth(path), shape[:2], self.crop
        if crop and any(side is not None and crop[i] + crop[i + 2] > side for i, side in enumerate(whole)):
            raise UsageError(f"ResizeImages: crop={crop} exceeds {path} of {whole[0]} x {whole[1]} pixels")
        height, width = self._size(*whole)
        edit = functools.partial(_resize, height=height, width=width, fit=self.fit, depth=depth, crop=crop)
        if isinstance(column, EncodedImages):
            encoding = "png" if depth or column.dtype != "uint8" or column.shape[-1] not in (1, 3, None) else "jpeg"
            if crop is None and (height, width) == whole and column.encoding == encoding:
                return column
            size = (height, width, column.shape[2])
            return edit_images(column, edit, path, shape=size, encoding=encoding, quality=self.quality)
        if not is_numeric(column):
            return column
        return edit(column[..., None])[..., 0] if len(shape) == 2 else edit(column)

    def _size(self, rows: int | None, columns: int | None) -> tuple[int, int]:
        """The new height and width of images of this size."""
        sides = (rows, columns) if self.crop is None else self.crop[2:]
        height, width = (
            wanted if self.enlarge or side is None else min(wanted, side)
            for wanted, side in zip((self.height, self.width), sides, strict=True)
        )
        return height, width

    def move(self, height: int, width: int) -> Array:
        (top, left, tall, wide), place = _place(height, width, *self._size(height, width), self.fit, self.crop)
        above, before, high, broad = place
        x, y = broad / wide, high / tall
        right, down = (0.5 - left) * x - 0.5 + before, (0.5 - top) * y - 0.5 + above
        return np.array([[x, 0, right], [0, y, down], [0, 0, 1.0]])


@dataclasses.dataclass(frozen=True)
class RotateImages(_ImageEditor):
    """Rotates images counterclockwise by 90, 180, or 270 degrees, like `np.rot90`.

        degrees=180     1 2 3     6 5 4          degrees=90     1 2 3     3 6
                        4 5 6  -> 3 2 1                         4 5 6  -> 2 5
                                                                          1 4

    The cameras of LIBERO and of other simulators that render with OpenGL are stored upside down: rotate them by 180.
    To rotate cameras differently, list the connector once for each. Pixels keep their values: PNGs and arrays are
    rotated without loss, and JPEGs are encoded again.

    Attributes:
      degrees: 90, 180, or 270. 90 and 270 swap height and width.
      fields: the image fields, each with everything below it; by default the observation. Arrays below a name are
        rotated if they look like images: uint8 (H, W, C), or depth, which has `depth` in its name. Name other arrays
        of shape (H, W) or (H, W, C) exactly.
      quality: the JPEG quality, 1 to 100.
    """

    degrees: int
    fields: Sequence[str] | None = None
    quality: int = 95

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, degrees=(90, 180, 270))

    def change(self, path: str, column: Column) -> Column:
        rotate = functools.partial(_rotate, turns=self.degrees // 90)
        if not isinstance(column, EncodedImages):
            return rotate(column)
        height, width, channels = column.shape
        shape = (height, width, channels) if self.degrees == 180 else (width, height, channels)
        return edit_images(column, rotate, path, shape=shape, quality=self.quality)

    def move(self, height: int, width: int) -> Array:
        moved = np.eye(3)
        for last in ((width, height) * 2)[: self.degrees // 90]:
            moved = np.array([[0, 1, 0], [-1, 0, last - 1], [0, 0, 1.0]]) @ moved
        return moved


@dataclasses.dataclass(frozen=True)
class FlipChannels(_ImageEditor):
    """Reverses the color channels of images that were stored as BGR. An alpha channel stays the last one.

        observation/image   (H, W, 3)   b g r     ->   r g b
        observation/image   (H, W, 4)   b g r a   ->   r g b a

    Equals `flip_image_channels` of rlds_dataset_mod. PNGs and arrays are flipped without loss, and JPEGs are encoded
    again.

    Attributes:
      fields: the image fields, each with all color images below it; by default the observation.
      quality: the JPEG quality, 1 to 100.
    """

    fields: Sequence[str] | None = None
    quality: int = 95

    def change(self, path: str, column: Column) -> Column:
        shape = _shape(column)
        if len(shape) != 3 or shape[2] not in (3, 4, None):
            if path in ((self.fields,) if isinstance(self.fields, str) else self.fields or ()):
                said = f"{column.dtype} {shape}"
                raise UsageError(f"FlipChannels: {path} has no colors to flip: {said}, expected 3 or 4 channels")
            return column
        if isinstance(column, EncodedImages):
            return edit_images(column, _flip, path, quality=self.quality)
        return _flip(column)


def is_depth(path: str) -> bool:
    """Whether a field holds depth, by its name."""
    return "depth" in path.rpartition("/")[2]


def _shape(column: Column) -> tuple[int | None, ...]:
    return column.shape if isinstance(column, EncodedImages) else column.shape[1:]


def _place(rows: int, columns: int, height: int, width: int, fit: Fit, crop: Sequence[int] | None) -> Places:
    """The part of an image that is resized, and its place in the result."""
    top, left, rows, columns = crop or (0, 0, rows, columns)
    part, place = (top, left, rows, columns), (0, 0, height, width)
    if fit == "crop":
        scale = min(rows / height, columns / width)
        tall, wide = max(1, round(height * scale)), max(1, round(width * scale))
        part = top + (rows - tall) // 2, left + (columns - wide) // 2, tall, wide
    if fit == "pad":
        scale = max(rows / height, columns / width)
        tall, wide = max(1, int(rows / scale)), max(1, int(columns / scale))
        place = (height - tall) // 2, (width - wide) // 2, tall, wide
    return part, place


def _resize(images: Array, *, height: int, width: int, fit: Fit, depth: bool, crop: Sequence[int] | None) -> Array:
    (top, left, tall, wide), place = _place(images.shape[1], images.shape[2], height, width, fit, crop)
    above, before, high, broad = place
    images = images[:, top : top + tall, left : left + wide]
    if images.shape[1:3] == (height, width):
        return images
    resized = (resize_depth if depth else resize_colors)(images, high, broad)
    if (high, broad) == (height, width):
        return resized
    padded = np.zeros((len(images), height, width, images.shape[-1]), images.dtype)
    padded[:, above : above + high, before : before + broad] = resized
    return padded


def _rotate(images: Array, *, turns: int) -> Array:
    if images.ndim == 4 and images.size:  # moving whole pixels takes less than half the time of moving channels
        pixels = np.ascontiguousarray(images).view(f"V{images.shape[-1] * images.itemsize}")[..., 0]
        return np.rot90(pixels, turns, axes=(1, 2)).copy()[..., None].view(images.dtype)
    return np.rot90(images, turns, axes=(1, 2)).copy()


def _flip(images: Array) -> Array:
    """Reverses the first three channels. Images of undeclared channels may be gray, which has nothing to reverse."""
    if images.shape[-1] not in (3, 4):
        return images
    flipped = images[..., 2::-1]
    return flipped if images.shape[-1] == 3 else np.concatenate([flipped, images[..., 3:]], axis=-1)
