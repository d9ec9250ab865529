"""Images of another size, as `tf.image.resize` with antialias makes them: lanczos3 for colours, bilinear for depth.

Each pixel of the result is a weighted mean of a few pixels around its place in the source, first along the columns,
then along the rows. The weights of neighbouring results overlap, so a block of results is one small matrix product:

    result rows 0..31      =  weights (32, 70)  @  source rows 0..69
    result rows 32..63     =  weights (32, 73)  @  source rows 56..128

Source of the weights: tensorflow/core/kernels/image/scale_and_translate_op.cc.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

_BLOCK = 32
_RADIUS = {"lanczos3": 3.0, "bilinear": 1.0}


class _Block(NamedTuple):
    """Some results: which, from which pixels of the source, with which weights (results, pixels)."""

    first: int
    last: int
    start: int
    stop: int
    weights: Array


def resize(images: Array, height: int, width: int, method: str = "lanczos3") -> Array:
    """Images [T, H, W, C] as float32 [T, height, width, C], neither rounded nor clipped.

    Args:
      method: `lanczos3` or `bilinear`.
    """
    count, _, columns, channels = images.shape
    rows = np.empty((count, height, columns * channels), np.float32)
    source = images.reshape(count, images.shape[1], -1)
    for block in _blocks(images.shape[1], height, method):
        part = source[:, block.start : block.stop].astype(np.float32)
        np.matmul(block.weights, part, out=rows[:, block.first : block.last])
    # One large product for each block: with the channels before the columns, all rows of all images are its rows.
    flat = rows.reshape(count, height, columns, channels).swapaxes(2, 3).reshape(-1, columns)
    resized = np.empty((len(flat), width), np.float32)
    for block in _blocks(columns, width, method):
        np.matmul(flat[:, block.start : block.stop], block.weights.T, out=resized[:, block.first : block.last])
    return np.ascontiguousarray(resized.reshape(count, height, channels, width).swapaxes(2, 3))


def resize_colours(images: Array, height: int, width: int) -> Array:
    """[T, H, W, C] by lanczos3; integers rounded and clipped. Of uint8 what dlimp's `resize_image` gives."""
    resized = resize(images, height, width, "lanczos3")
    if images.dtype.kind not in "ui":
        return resized.astype(images.dtype)
    limits = np.iinfo(images.dtype)
    np.rint(resized, out=resized)
    return np.clip(resized, limits.min, limits.max, out=resized).astype(images.dtype)


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
        blocks.append(_Block(first, last, start, stop, weights.astype(np.float32)))
    return tuple(blocks)


def _kernel(x: Array, method: str) -> Array:
    if method == "bilinear":
        return np.maximum(0, 1 - np.abs(x))
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)
