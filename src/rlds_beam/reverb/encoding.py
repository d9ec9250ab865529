"""Frames and windows over them, as requests to a Reverb server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.reverb.protocol import inserts
from rlds_beam.reverb.protocol.inserts import Chunk, Keys, Request
from rlds_beam.reverb.slicing import SlicedItems, message, portions
from rlds_beam.trajectories.items import Windows

Array = np.ndarray[Any, Any]

GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's step; odd, so that every number comes up before one comes again
_ITEM_BYTES = 256  # of an item of some columns, about
_CHUNK_FRAMES, _CHUNK_BYTES, _LONG_CHUNK_BYTES, _EPISODE_CHUNK_BYTES = 64, 64 << 10, 1 << 20, 16 << 20


def chunk_length_of(frame_bytes: int, item_length: int | None) -> int:
    """Frames in a chunk, unless an option sets them.

    A client that samples an item receives whole chunks, so they are short: 64 frames or 64 KB, or a quarter of a long
    item. (A chunk of 1,000 frames is pushed no faster than one of 64, and pairs are sampled from it at a third to two
    thirds of the rate.) Whole episodes are one chunk up to 16 MB, since nothing less is ever sampled.

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


def mixed(seed: int | Keys, numbers: Array) -> Keys:
    """uint64 [n]: keys that follow from a seed (or n of them), one for each number; different for each.

    The finaliser of SplitMix64 (Steele, Lea and Flood 2014), which is a bijection.
    """
    z = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN) + np.asarray(seed, np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Keys = z ^ (z >> np.uint64(31))
    return mixed


class Cut(NamedTuple):
    """Items over one run of frames, whose frames are encoded.

    Attributes:
      chunks: of the run.
      windows: K of them, each an item.
      priorities: float64 [K].
      seeds: uint64, what the keys of the items follow from: one for each table.
    """

    chunks: list[Chunk]
    windows: Windows
    priorities: Array
    seeds: Sequence[int]

    @property
    def size(self) -> int:
        """In bytes, about, when all of it is encoded."""
        return sum(chunk.size for chunk in self.chunks) + _ITEM_BYTES * self.windows.count * len(self.seeds)


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
        """The items that `windows` cut out of consecutive frames; `encode` makes requests of them.

        Args:
          columns: [n, ...] each; n covers all windows (padding frames are part of the columns).
          windows: K of them.
          priorities: float64 [K].
          seeds: uint64, one for each table; the keys of the items follow from it.
          chunk_seed: uint64; the keys of the chunks follow from it, so other frames need another seed.
          episode_id: uint64, for Reverb's count of episodes.

        Raises:
          ValueError: the columns are not of the dtypes and shapes that the items are to have, or too
            short for the windows. The server would take them, and its clients would break on them.
        """
        if not windows.count:
            return Cut([], windows, priorities, seeds)
        self._check(columns, windows)
        length, count = self._aligned(windows), len(columns[0])
        skipped = windows.start // length * length  # frames that no window reaches
        begins = range(skipped, count, length)
        keys = np.uint64(chunk_seed) + np.arange(len(begins), dtype=np.uint64) * np.uint64(GOLDEN)
        used = [column[skipped:] for column in columns] if skipped else columns
        chunks = inserts.chunks(keys, used, length, episode_id, skipped)
        return Cut([chunk.shifted(skipped) for chunk in chunks], windows, priorities, seeds)

    def encode(self, cuts: Sequence[Cut]) -> list[Request]:
        """The items of all cuts, as if their runs lay end to end: few large requests cost less than many small ones."""
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

    def _aligned(self, windows: Windows) -> int:
        """The chunk length; where windows do not overlap, one whose chunks end with a window."""
        length = self._chunk_length
        if windows.count > 1 and windows.stride >= windows.length and not windows.start:
            return max(1, length // windows.stride) * windows.stride
        return length
