"""Frames records for TFRecord files, one at a time or as a matrix."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from rlds_beam.encoding.tfrecord.framing import (
    FOOTER,
    HEADER,
    OVERHEAD,
    mask_crcs,
    masked_crc,
    payload_crcs,
    record_dtype,
    record_header,
)

_JOINED = 1 << 17
"""Join about this many bytes of records, which stay in the cache; longer records are not copied again."""

_known_header = functools.lru_cache(maxsize=1 << 12)(record_header)


def frame(payload: bytes) -> bytes:
    """Frames one record."""
    return b"".join(framed(payload))


def framed(payload: bytes, crc: int | None = None) -> tuple[bytes, bytes, bytes]:
    """Frames one record, in pieces; `crc` is the payload's masked CRC32C, if known."""
    return record_header(len(payload)), payload, FOOTER.pack(masked_crc(payload) if crc is None else crc)


def frame_all(payloads: Sequence[bytes]) -> bytes:
    """Frames and joins records of any lengths."""
    return b"".join(framed_blocks(payloads))


def framed_blocks(payloads: Iterable[bytes]) -> Iterator[bytes]:
    """Frames records of any lengths, in pieces: several short records, or part of a long one."""
    rest = iter(payloads)
    for first in rest:
        block = [first, *islice(rest, _JOINED // max(1, len(first)))]
        crcs = mask_crcs(np.frombuffer(array("I", map(crc32c, block)), np.uint32)).astype("<u4", copy=False)
        headers, footers = map(_known_header, map(len, block)), crcs.view(f"V{FOOTER.size}").tolist()
        pieces = chain.from_iterable(zip(headers, block, footers, strict=True))
        yield from pieces if len(block) == 1 else [b"".join(pieces)]


class FramedRows:
    """A reusable buffer for N framed records of R bytes: fill `payload` in place, then call `finish`.

    Attributes:
      payload: the payloads, uint8 [N, R], a view of the frames; initially not set.
    """

    def __init__(self, count: int, length: int):
        self._framed = np.empty((count, length + OVERHEAD), np.uint8)
        self._framed[:, : HEADER.size] = np.frombuffer(record_header(length), np.uint8)
        self.payload: npt.NDArray[np.uint8] = self._framed[:, HEADER.size : HEADER.size + length]
        self._records = self._framed.reshape(-1).view(record_dtype(length))

    def finish(self, count: int | None = None) -> npt.NDArray[np.uint8]:
        """Computes the checksums of the first `count` records (all by default).

        Returns:
          uint8 [count, R + 16], the bytes to write to the file; valid until the buffer is filled again.
        """
        records = self._records[:count]
        records["crc"] = payload_crcs(records)
        return self._framed[:count]
