"""Frames and windows over them, as requests to a Reverb server."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds_beam.formats import reverb_stream
from rlds_beam.formats.reverb_stream import Keys, Request
from rlds_beam.items import Windows
from rlds_beam.reverb import slicing
from rlds_beam.reverb.slicing import Chunk, SlicedItems

Array = np.ndarray[Any, Any]

_CHUNK_FRAMES, _CHUNK_BYTES, _LONG_CHUNK_BYTES, _EPISODE_CHUNK_BYTES = 64, 64 << 10, 1 << 20, 16 << 20


def chunk_length_of(frame_bytes: int, item_length: int | None) -> int:
    """Frames in a chunk, where nobody says otherwise.

    Who samples an item is sent whole chunks, so they are short: 64 frames or 64 KB, or a quarter of a long
    item. (A chunk of 1,000 frames is pushed no faster than one of 64, and pairs are sampled from it at a
    third to two thirds of the rate.) Whole episodes are one chunk up to 16 MB, since nothing less is ever sampled.

    Args:
      frame_bytes: of all columns of one frame.
      item_length: frames in an item; None for whole episodes.
    """
    frame_bytes = max(1, frame_bytes)
    if item_length is None:
        return max(1, _EPISODE_CHUNK_BYTES // frame_bytes)
    return max(
        1, min(_CHUNK_FRAMES, _CHUNK_BYTES // frame_bytes), min(item_length // 4, _LONG_CHUNK_BYTES // frame_bytes)
    )


def digest(*parts: str) -> int:
    """A uint64 that follows from some texts."""
    text = "\0".join(parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def mixed(seed: int, count: int, start: int = 0) -> Keys:
    """uint64 [count]: keys that follow from a seed, one for each number from `start` on; different for each.

    The finaliser of SplitMix64 (Steele, Lea and Flood 2014), which is a bijection.
    """
    z = np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Keys = z ^ (z >> np.uint64(31))
    return mixed


class ItemEncoder:
    """Encodes items of one signature.

    Args:
      leaves: dtype and shape of one frame of each column, in the order of the tables' signature.
      tables: every item goes into each of them.
      chunk_length: frames in a chunk.
      squeeze: items are single frames without a time axis.
    """

    def __init__(
        self,
        leaves: Sequence[tuple[np.dtype[Any], tuple[int, ...]]],
        tables: Sequence[str],
        chunk_length: int,
        squeeze: bool = False,
    ):
        self._leaves, self._tables = tuple(leaves), tuple(tables)
        self._chunk_length, self._squeeze = chunk_length, squeeze

    def encode(
        self,
        columns: Sequence[Array],
        windows: Windows,
        *,
        priorities: Array,
        item_keys: Keys,
        chunk_seed: int,
        episode_id: int,
        start: int = 0,
    ) -> list[Request]:
        """The items that `windows` cut out of consecutive frames.

        Args:
          columns: [n, ...] each; n covers all windows (padding frames are part of the columns).
          windows: K of them.
          priorities: float64 [K].
          item_keys: uint64 [tables, K].
          chunk_seed: uint64; the keys of the chunks follow from it, so other frames need another seed.
          episode_id: uint64, for Reverb's count of episodes.
          start: which frame of that episode the first one is.

        Raises:
          ValueError: the columns are not of the dtypes and shapes that the items are to have, or too
            short for the windows. The server would take them, and its clients would break on them.
        """
        if not windows.count:
            return []
        self._check(columns, windows)
        length = self._aligned(windows)
        chunks = range(windows.start // length, -(-len(columns[0]) // length))
        made = []
        for key, begin in zip(mixed(chunk_seed, len(chunks)).tolist(), (i * length for i in chunks), strict=True):
            part = [column[begin : begin + length] for column in columns]
            payload = reverb_stream.chunk(key, part, episode_id, start + begin)
            made.append(Chunk(key, begin, begin + len(part[0]), payload))
        starts = windows.start + windows.stride * np.arange(windows.count, dtype=np.int64)
        items = SlicedItems(starts, np.full(windows.count, windows.length), priorities, item_keys)
        return list(slicing.requests(items, made, self._tables, len(columns), squeeze=self._squeeze))

    def _check(self, columns: Sequence[Array], windows: Windows) -> None:
        needed = windows.start + (windows.count - 1) * windows.stride + windows.length
        for i, (column, (dtype, shape)) in enumerate(zip(columns, self._leaves, strict=True)):
            if column.dtype != dtype or column.shape[1:] != shape or len(column) < needed:
                raise ValueError(
                    f"column {i} is {column.dtype}{list(column.shape)}; the items need {dtype}{[needed, *shape]}"
                )

    def _aligned(self, windows: Windows) -> int:
        """The chunk length; where windows do not overlap, one whose chunks end with a window."""
        length = self._chunk_length
        if windows.count > 1 and windows.stride >= windows.length and not windows.start:
            return max(1, length // windows.stride) * windows.stride
        return length
