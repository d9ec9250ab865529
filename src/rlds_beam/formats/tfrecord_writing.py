"""Framing records for a TFRecord file, one or a matrix of them at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rlds_beam.formats.tfrecord_framing import (
    FOOTER,
    HEADER,
    OVERHEAD,
    masked_crc,
    payload_crcs,
    record_dtype,
    record_header,
)


def frame(payload: bytes) -> bytes:
    """One record as it is in a TFRecord file."""
    return b"".join(framed(payload))


def framed(payload: bytes) -> tuple[bytes, bytes, bytes]:
    """One record as it is in a TFRecord file, in pieces."""
    return record_header(len(payload)), payload, FOOTER.pack(masked_crc(payload))


def frame_all(payloads: Sequence[bytes]) -> bytes:
    """Records of any lengths, framed and joined."""
    parts: list[bytes] = []
    for payload in payloads:
        parts += framed(payload)
    return b"".join(parts)


class FramedRows:
    """Room for N framed records of R bytes each: fill `payload` in place, then `finish`; and again.

    Attributes:
      payload: uint8 [N, R], a view into the frames, not initialised.
    """

    def __init__(self, count: int, length: int):
        self._framed = np.empty((count, length + OVERHEAD), np.uint8)
        self._framed[:, : HEADER.size] = np.frombuffer(record_header(length), np.uint8)
        self.payload: npt.NDArray[np.uint8] = self._framed[:, HEADER.size : HEADER.size + length]
        self._records = self._framed.reshape(-1).view(record_dtype(length))

    def finish(self, count: int | None = None) -> npt.NDArray[np.uint8]:
        """Writes the checksums of the first `count` records (all of them, by default).

        Returns:
          uint8 [count, R + 16], whose buffer is what goes into the file. It is overwritten when the
          room is filled and finished again.
        """
        records = self._records[:count]
        records["crc"] = payload_crcs(records)
        return self._framed[:count]
