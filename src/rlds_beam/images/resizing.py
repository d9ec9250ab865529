"""Resizes images like `tf.image.resize` with antialias: lanczos3 for colors, bilinear for depth.

Each pixel of the result is a weighted mean of nearby source pixels, first along the rows, then along the columns. The
weights of neighboring results overlap, so a block of results is one small matrix product:

    result rows 0..7       =  weights (8, 20)   @  source rows 0..19
    result rows 8..15      =  weights (8, 25)   @  source rows 10..34

Along the columns, each weight is repeated for each channel, with zeros in between. The extra multiplications take less
time than separating and interleaving the channels.

    result r g b r g b ..  =  source r g b r g b r g b ..  @    w0 0  0   w4 0  0
                                                                0  w0 0   0  w4 0
                                                                0  0  w0  0  0  w4
                                                                w1 0  0   w5 0  0   ..

Source of the weights: tensorflow/core/kernels/image/scale_and_translate_op.cc.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.images.codecs import encode_jpeg, encode_png
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages
from rlds_beam.lazy import lockless_property
from rlds_beam.typing import Array

_BLOCK = 8
_PRODUCTS = 1 << 18
"""Maximum multiplications in one matrix product, so that OpenBLAS uses one thread; workers share the cores."""

_TOGETHER = 4
"""Maximum channels to resize together; with more, too many multiplications are with zeros."""

_RADIUS = {"lanczos3": 3.0, "bilinear": 1.0}


class _Block(NamedTuple):
    """A block of results: its range, the source range, and the weights (results, source), also transposed."""

    results: slice
    source: slice
    weights: Array
    transposed: Array


def resize(images: Array, height: int, width: int, method: str = "lanczos3") -> Array:
    """Resizes images [T, H, W, C] to float32 [T, height, width, C], neither rounded nor clipped.

    Args:
      method: `lanczos3` or `bilinear`.
    """
    resized = np.empty((len(images), height, width, images.shape[-1]), np.float32)
    for result, image in zip(resized, _each(images, height, width, method), strict=True):
        result[:] = image
    return resized


def resize_colors(images: Array, height: int, width: int) -> Array:
    """Resizes [T, H, W, C] by lanczos3; integers are rounded and clipped. For uint8, equals dlimp's `resize_image`."""
    if images.dtype.kind not in "ui":
        return resize(images, height, width, "lanczos3").astype(images.dtype)
    limits = np.iinfo(images.dtype)
    colors = np.empty((len(images), height, width, images.shape[-1]), images.dtype)
    for result, image in zip(colors, _each(images, height, width, "lanczos3"), strict=True):
        np.rint(image, out=image)
        np.maximum(image, limits.min, out=image)  # np.clip takes twice as long
        np.minimum(image, limits.max, out=image)
        np.copyto(result, image, casting="unsafe")
    return colors


def resize_depth(images: Array, height: int, width: int) -> Array:
    """Resizes [T, H, W, C] of any dtype bilinearly and casts back; equals dlimp's `resize_depth_image`."""
    return resize(images, height, width, "bilinear").astype(images.dtype)


def _each(images: Array, height: int, width: int, method: str) -> Iterator[Array]:
    """Yields each image as float32 [height, width, C]; the same array each time, which the caller may modify."""
    _, rows, columns, channels = images.shape
    exact = images.dtype.kind in "ui"  # no NaN, which would spread to other channels: NaN x 0 is NaN
    if channels > (_TOGETHER if exact else 1):
        yield from _each_channel(images, height, width, method)
        return
    source = np.empty((rows, columns * channels), np.float32)
    lower = np.empty((height, columns * channels), np.float32)
    resized = np.empty((height, width * channels), np.float32)
    down = [
        (block.source, [(block.weights, source[block.source, some], lower[block.results, some]) for some in parts])
        for block in _blocks(rows, height, method, 1)
        for parts in [_slices(columns * channels, block)]
    ]
    across = [
        (lower[some, block.source], block.transposed, resized[some, block.results])
        for block in _blocks(columns, width, method, channels)
        for some in _slices(height, block)
    ]
    for image in images:
        flat, done = image.reshape(rows, -1), 0
        for needed, products in down:
            if needed.stop > done:  # converted just before use
                source[done : needed.stop] = flat[done : needed.stop]
                done = needed.stop
            for product in products:
                np.matmul(*product)
        for product in across:
            np.matmul(*product)
        yield resized.reshape(height, width, channels)


def _each_channel(images: Array, height: int, width: int, method: str) -> Iterator[Array]:
    """Like `_each`, one channel at a time."""
    resized = np.empty((height, width, images.shape[-1]), np.float32)
    for image in images:
        channels = _each(np.moveaxis(image, -1, 0)[..., None], height, width, method)
        for i, channel in enumerate(channels):
            resized[..., i] = channel[..., 0]
        yield resized


def _slices(size: int, block: _Block) -> Iterator[slice]:
    """Splits the other axis so that a product with the block's weights has at most `_PRODUCTS` multiplications."""
    step = max(1, _PRODUCTS // block.weights.size)
    parts = -(-size // step)
    return (slice(size * i // parts, size * (i + 1) // parts) for i in range(parts))


@functools.lru_cache(maxsize=32)
def _blocks(size: int, wanted: int, method: str, channels: int) -> tuple[_Block, ...]:
    """The weights to resize `size` pixels to `wanted`, in blocks, repeated for each channel."""
    scale = size / wanted
    stretch = max(scale, 1.0)  # antialias: the kernel is as wide as a result pixel
    center = (np.arange(wanted) + 0.5) * scale
    radius = _RADIUS[method] * stretch
    starts = np.maximum(np.ceil(center - radius - 0.5).astype(int), 0)
    stops = np.minimum(np.floor(center + radius - 0.5).astype(int), size - 1) + 1
    blocks = []
    for first in range(0, wanted, _BLOCK):
        last = min(first + _BLOCK, wanted)
        start, stop = int(starts[first:last].min()), int(stops[first:last].max())
        at = np.arange(start, stop)
        kernel = _kernel((at + 0.5 - center[first:last, None]) / stretch, method)
        kernel[(at < starts[first:last, None]) | (at >= stops[first:last, None])] = 0
        weights = kernel / kernel.sum(axis=1, keepdims=True)
        weights = np.kron(weights, np.eye(channels)).astype(np.float32)
        results, source = (slice(channels * low, channels * high) for low, high in ((first, last), (start, stop)))
        blocks.append(_Block(results, source, weights, np.ascontiguousarray(weights.T)))
    return tuple(blocks)


def _kernel(x: Array, method: str) -> Array:
    if method == "bilinear":
        return np.maximum(0, 1 - np.abs(x))
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


Edit = Callable[[Array], Array]
"""Edits images [T, H, W, C], for any T. Picklable. Must map zeros to zeros."""

_AT_ONCE = 8 << 20
"""Bytes of pixels to decode together."""


class EditedImages(EncodedImages):
    """A column of images with pending edits; nothing is decoded before `data` is read.

    Attributes:
      source: the images before the edits.
      edits: the edits, in order.
      path: the field's path, for errors about damaged images.
      quality: the JPEG quality of the result.
      shape, dtype, encoding: the shape, dtype, and encoding of the result.
    """

    source: EncodedImages
    edits: tuple[Edit, ...]
    path: str
    quality: int
    _computed = ("data",)

    def __init__(self, source: EncodedImages, edits: tuple[Edit, ...], path: str, quality: int, **column: Any):
        self.__dict__.update(source=source, edits=edits, path=path, quality=quality, **column)

    @lockless_property
    def data(self) -> Array:
        """The edited images, encoded: object array [T] of `bytes`. Raises BadEpisode if one cannot be decoded."""
        images = np.full(len(self.source), ZERO_IMAGE, object)
        for steps, pixels in self._edit():
            encoded = encode_jpeg(pixels, self.quality) if self.encoding == "jpeg" else encode_png(pixels)
            images[steps] = np.fromiter(encoded, object, len(encoded))
        return images

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Any) -> EditedImages:
        return self._with(source=self.source[index])

    def with_source(self, source: EncodedImages) -> EditedImages:
        """The same edits of other images."""
        return self._with(source=source)

    def _edit(self) -> Iterator[tuple[Array, Array]]:
        """Batches of steps and their edited pixels; images of zeros are skipped."""
        size = int(np.prod([d or 512 for d in self.source.shape]))
        count = 1 if None in self.source.shape else max(1, _AT_ONCE // max(1, size))  # each may have its own size
        for some, pixels in self.source.parts(count, self.path):
            for edit in self.edits:
                pixels = edit(pixels)
            yield some, pixels


def edit_images(
    images: EncodedImages,
    edit: Edit,
    path: str,
    *,
    shape: tuple[int | None, ...] | None = None,
    encoding: str | None = None,
    quality: int = 95,
) -> EditedImages:
    """Adds an edit to a column.

    Args:
      path: the field's path.
      shape, encoding: the shape and encoding of the result; the column's by default.
      quality: the JPEG quality.
    """
    before = images.edits if isinstance(images, EditedImages) else ()
    source = images.source if isinstance(images, EditedImages) else images
    shape = images.shape if shape is None else shape
    column = {"shape": shape, "dtype": images.dtype, "encoding": encoding or images.encoding}
    return EditedImages(source, (*before, edit), path, quality, **column)
