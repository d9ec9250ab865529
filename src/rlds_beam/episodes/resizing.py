"""Images of another size, as `tf.image.resize` with antialias makes them: lanczos3 for colours, bilinear for depth.

Each pixel of the result is a weighted mean of a few pixels around its place in the source, first along the columns,
then along the rows. The weights of neighbouring results overlap, so a block of results is one small matrix product:

    result rows 0..7       =  weights (8, 20)   @  source rows 0..19
    result rows 8..15      =  weights (8, 25)   @  source rows 10..34

Small blocks have fewer weights that are 0, and one image after another stays in the processor's cache.

Source of the weights: tensorflow/core/kernels/image/scale_and_translate_op.cc.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

_BLOCK = 8
_PRODUCTS = 1 << 18
"""Multiplications in one product of matrices at most: OpenBLAS makes it on one thread. Workers share the cores."""

_RADIUS = {"lanczos3": 3.0, "bilinear": 1.0}


class _Block(NamedTuple):
    """Some results: which, from which pixels of the source, with which weights (results, pixels), also transposed."""

    first: int
    last: int
    start: int
    stop: int
    weights: Array
    transposed: Array


def resize(images: Array, height: int, width: int, method: str = "lanczos3") -> Array:
    """Images [T, H, W, C] as float32 [T, height, width, C], neither rounded nor clipped.

    Args:
      method: `lanczos3` or `bilinear`.
    """
    resized = np.empty((len(images), height, width, images.shape[-1]), np.float32)
    for image, result in zip(images, resized, strict=True):
        result[:] = _resized(image, height, width, method)
    return resized


def _resized(image: Array, height: int, width: int, method: str) -> Array:
    """One image [H, W, C] as float32 [height, width, C], a view; its channels come before its columns in memory."""
    _, columns, channels = image.shape
    source = image.reshape(len(image), -1)
    rows = np.empty((height, columns * channels), np.float32)
    for block in _blocks(len(image), height, method):
        part = source[block.start : block.stop].astype(np.float32)
        for some in _slices(part.shape[1], block):
            np.matmul(block.weights, part[:, some], out=rows[block.first : block.last, some])
    # With the channels before the columns, all rows of all channels are those of one product for each block.
    flat = rows.reshape(height, columns, channels).swapaxes(1, 2).reshape(-1, columns)
    resized = np.empty((len(flat), width), np.float32)
    for block in _blocks(columns, width, method):
        for some in _slices(len(flat), block):
            part = flat[some, block.start : block.stop]
            np.matmul(part, block.transposed, out=resized[some, block.first : block.last])
    return resized.reshape(height, channels, width).swapaxes(1, 2)


def _slices(size: int, block: _Block) -> Iterator[slice]:
    """Slices of the other axis, so that a product with the block's weights has no more than `_PRODUCTS`."""
    step = max(1, _PRODUCTS // block.weights.size)
    parts = -(-size // step)
    return (slice(size * i // parts, size * (i + 1) // parts) for i in range(parts))


def resize_colours(images: Array, height: int, width: int) -> Array:
    """[T, H, W, C] by lanczos3; integers rounded and clipped. Of uint8 what dlimp's `resize_image` gives."""
    if images.dtype.kind not in "ui":
        return resize(images, height, width, "lanczos3").astype(images.dtype)
    limits = np.iinfo(images.dtype)
    colours = np.empty((len(images), height, width, images.shape[-1]), images.dtype)
    for image, result in zip(images, colours, strict=True):
        resized = np.rint(_resized(image, height, width, "lanczos3"))
        np.clip(resized, limits.min, limits.max, out=resized)
        for channel in range(images.shape[-1]):
            result[..., channel] = resized[..., channel]
    return colours


def resize_depth(images: Array, height: int, width: int) -> Array:
    """[T, H, W, C] of any dtype by bilinear interpolation, cast back: what dlimp's `resize_depth_image` gives."""
    return resize(images, height, width, "bilinear").astype(images.dtype)


@functools.lru_cache(maxsize=32)
def _blocks(size: int, wanted: int, method: str) -> tuple[_Block, ...]:
    """The weights of `wanted` results of `size` pixels, block by block."""
    scale = size / wanted
    stretch = max(scale, 1.0)  # antialias: a kernel as wide as a result
    centre = (np.arange(wanted) + 0.5) * scale
    radius = _RADIUS[method] * stretch
    starts = np.maximum(np.ceil(centre - radius - 0.5).astype(int), 0)
    stops = np.minimum(np.floor(centre + radius - 0.5).astype(int), size - 1) + 1
    blocks = []
    for first in range(0, wanted, _BLOCK):
        last = min(first + _BLOCK, wanted)
        start, stop = int(starts[first:last].min()), int(stops[first:last].max())
        at = np.arange(start, stop)
        kernel = _kernel((at + 0.5 - centre[first:last, None]) / stretch, method)
        kernel[(at < starts[first:last, None]) | (at >= stops[first:last, None])] = 0
        weights = kernel / kernel.sum(axis=1, keepdims=True)
        weights = weights.astype(np.float32)
        blocks.append(_Block(first, last, start, stop, weights, np.ascontiguousarray(weights.T)))
    return tuple(blocks)


def _kernel(x: Array, method: str) -> Array:
    if method == "bilinear":
        return np.maximum(0, 1 - np.abs(x))
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)
