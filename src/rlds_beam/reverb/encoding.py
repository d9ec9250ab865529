"""Encodes frames and windows over them as requests to a Reverb server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.reverb.protocol import inserts
from rlds_beam.reverb.protocol.inserts import Chunk, Keys, Request
from rlds_beam.reverb.slicing import SlicedItems, message, portions
from rlds_beam.trajectories.items import Windows
from rlds_beam.typing import Array

GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's step; odd, so that its multiples do not repeat
_ITEM_BYTES = 256  # typical size of an item
_CHUNK_FRAMES, _CHUNK_BYTES, _LONG_CHUNK_BYTES, _EPISODE_CHUNK_BYTES = 64, 64 << 10, 1 << 20, 16 << 20


def chunk_length_of(frame_bytes: int, item_length: int | None) -> int:
    """The default number of frames per chunk.

    A client that samples an item receives whole chunks, so chunks are short: 64 frames or 64 KB, or a quarter of a long
    item. (Chunks of 1,000 frames are pushed no faster than chunks of 64, and pairs are sampled from them at a third to
    two thirds of the rate.) A whole episode is one chunk up to 16 MB, because it is always sampled as a whole.

    Args:
      frame_bytes: the bytes of all columns of one frame.
      item_length: the frames in an item; None for whole episodes.
    """
    frame_bytes = max(1, frame_bytes)
    if item_length is None:
        return max(1, _EPISODE_CHUNK_BYTES // frame_bytes)
    return max(
        1, min(_CHUNK_FRAMES, _CHUNK_BYTES // frame_bytes), min(item_length // 4, _LONG_CHUNK_BYTES // frame_bytes)
    )


def digest(*parts: str) -> int:
    """A uint64 hash of texts."""
    text = "\0".join(parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def mixed(seed: int | Keys, numbers: Array) -> Keys:
    """Keys derived from a seed (or n seeds) and numbers, uint64 [n]; different numbers give different keys.

    Uses the finalizer of SplitMix64 (Steele, Lea, and Flood 2014), which is a bijection.
    """
    z = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN) + np.asarray(seed, np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Keys = z ^ (z >> np.uint64(31))
    return mixed


class Cut(NamedTuple):
    """Items over one run of encoded frames.

    Attributes:
      chunks: the chunks of the run.
      windows: the K windows, one per item.
      priorities: the priorities, float64 [K].
      seeds: the seeds of the items' keys, uint64, one per table.
    """

    chunks: list[Chunk]
    windows: Windows
    priorities: Array
    seeds: Sequence[int]

    @property
    def size(self) -> int:
        """The approximate encoded size in bytes."""
        return sum(chunk.size for chunk in self.chunks) + _ITEM_BYTES * self.windows.count * len(self.seeds)


class ItemEncoder:
    """Encodes items of one signature.

    Args:
      leaves: the dtype and shape of one frame of each column, in the order of the tables' signature.
      tables: the tables; every item goes into each.
      chunk_length: the frames per chunk.
      squeeze: whether items are single frames without a time axis.
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

    def cut(
        self,
        columns: Sequence[Array],
        windows: Windows,
        *,
        priorities: Array,
        seeds: Sequence[int],
        chunk_seed: int,
        episode_id: int,
    ) -> Cut:
        """Cuts items out of consecutive frames; pass the result to `encode`.

        Args:
          columns: the columns, [n, ...] each; n covers all windows (padding frames are part of the columns).
          windows: the K windows.
          priorities: the priorities, float64 [K].
          seeds: the seeds of the items' keys, uint64, one per table.
          chunk_seed: the seed of the chunks' keys, uint64; other frames need another seed.
          episode_id: the ID of the episode, uint64, for Reverb's count of episodes.

        Raises:
          ValueError: the columns have wrong dtypes or shapes, or are too short for the windows. The server would accept
            them, but they would break its clients.
        """
        if not windows.count:
            return Cut([], windows, priorities, seeds)
        self._check(columns, windows)
        length, count = self._align(windows), len(columns[0])
        skipped = windows.start // length * length  # frames before the first window
        begins = range(skipped, count, length)
        keys = np.uint64(chunk_seed) + np.arange(len(begins), dtype=np.uint64) * np.uint64(GOLDEN)
        used = [column[skipped:] for column in columns] if skipped else columns
        chunks = inserts.chunks(keys, used, length, episode_id, skipped)
        return Cut([chunk.shifted(skipped) for chunk in chunks], windows, priorities, seeds)

    def encode(self, cuts: Sequence[Cut]) -> list[Request]:
        """Encodes all cuts as if their runs were concatenated: a few large requests cost less than many small ones."""
        cuts = [cut for cut in cuts if cut.windows.count]
        if not cuts:
            return []
        counts = np.array([cut.windows.count for cut in cuts])
        bases = np.cumsum([0, *(cut.chunks[-1].end for cut in cuts[:-1])]).tolist()
        chunks = [chunk.shifted(base) for base, cut in zip(bases, cuts, strict=True) for chunk in cut.chunks]
        numbers = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)

        def of_each(values: Iterable[int], dtype: Any = np.int64) -> Array:
            return np.repeat(np.fromiter(values, dtype, len(cuts)), counts)

        first = of_each(base + cut.windows.start for base, cut in zip(bases, cuts, strict=True))
        items = SlicedItems(
            starts=first + of_each(cut.windows.stride for cut in cuts) * numbers,
            lengths=of_each(cut.windows.length for cut in cuts),
            priorities=np.concatenate([cut.priorities for cut in cuts]),
            keys=np.stack(
                [mixed(of_each((cut.seeds[i] for cut in cuts), np.uint64), numbers) for i in range(len(self._tables))]
            ),
        )
        contents = portions(items, chunks, self._tables, len(self._leaves), squeeze=self._squeeze)
        return [message([portion]) for portion in contents]

    def _check(self, columns: Sequence[Array], windows: Windows) -> None:
        needed = windows.start + (windows.count - 1) * windows.stride + windows.length
        for i, (column, (dtype, shape)) in enumerate(zip(columns, self._leaves, strict=True)):
            if column.dtype != dtype or column.shape[1:] != shape or len(column) < needed:
                raise ValueError(
                    f"column {i} is {column.dtype}{list(column.shape)}; the items need {dtype}{[needed, *shape]}"
                )

    def _align(self, windows: Windows) -> int:
        """The chunk length; if windows do not overlap, rounded so that chunks end with a window."""
        length = self._chunk_length
        if windows.count > 1 and windows.stride >= windows.length and not windows.start:
            return max(1, length // windows.stride) * windows.stride
        return length
