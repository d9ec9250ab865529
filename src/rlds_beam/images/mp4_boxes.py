"""Compares what the tables of an MP4 claim with the size of the file, before FFmpeg allocates it.

    moov                               each box: its size, its name, its contents
      trak
        mdia
          minf
            stbl
              stsz  0, 1, 50000000     50 million samples of one byte, in 20 bytes of file
    moof                               a fragment
      traf
        trun  0, 50000000              50 million samples of the default size

A sample has at least a byte, so a file has at most as many samples as bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from rlds_beam.typing import Array

_HOLDING = frozenset(b"moov trak mdia minf stbl edts moof traf mvex udta dinf tref sinf schi iprp mfra hoov".split())
"""Boxes that hold boxes."""

_DESCRIBING = frozenset(b"stsd meta ilst wave".split())
"""Boxes in which FFmpeg finds boxes at other places than their start."""

_ENTRY_BYTES = {b"stts": 8, b"ctts": 8, b"stsc": 12, b"stss": 4, b"stco": 4, b"co64": 8, b"elst": 12}
"""Tables, and the least bytes of an entry."""

_CHECKED = (*_ENTRY_BYTES, b"stsz", b"stz2", b"trun", b"cmov")
_MAX_DEPTH = 16
_MAX_DESCRIPTION_BYTES = 16 << 20
_SAMPLE_FIELDS = 0x100 | 0x200 | 0x400 | 0x800
"""The flags of a fragment's fields for each sample: duration, size, flags, and time."""


def check_tables(file: BinaryIO, size: int) -> None:
    """Reads the boxes of a file, without its samples. Other formats than MP4 pass.

    Raises:
      ValueError: the file claims more samples, chunks, or edits than it can hold.
    """
    file.seek(4)
    if file.read(4) not in (b"ftyp", b"moov", b"moof", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp", b"sidx"):
        return
    tables = _Tables(size)
    for name, start, stop in _boxes(file, 0, size):
        tables.add(file, name, start, stop)
    tables.check()


def _boxes(file: BinaryIO, start: int, stop: int, depth: int = 0) -> Iterator[tuple[bytes, int, int]]:
    """The boxes from `start` to `stop` and those in them: name, start and end of the contents."""
    while start + 8 <= stop:
        file.seek(start)
        head = file.read(16)
        if len(head) < 8:
            return
        size, name = struct.unpack_from(">I4s", head)
        skip = 8
        if size == 1 and len(head) == 16:
            size, skip = int.from_bytes(head[8:], "big"), 16
        end = stop if size == 0 else min(start + size, stop)
        if end < start + skip:
            return
        within = name in _HOLDING or (name == b"free" and head[12:16] in (b"mvhd", b"cmov"))
        if within and depth < _MAX_DEPTH:
            yield from _boxes(file, start + skip, end, depth + 1)
        elif within:
            raise ValueError(f"its boxes are more than {_MAX_DEPTH} deep")
        else:
            yield name, start + skip, end
        start = end


class _Tables:
    """The claims of a file's tables together."""

    def __init__(self, size: int):
        self._size = size
        self._samples = self._edits = self._chunks = 0
        self._runs: list[Array] = []

    def add(self, file: BinaryIO, name: bytes, start: int, stop: int) -> None:
        """Adds a box."""
        if name in _DESCRIBING:
            file.seek(start)
            data = file.read(min(stop - start, _MAX_DESCRIPTION_BYTES))
            for inner in _CHECKED:
                if inner in data:
                    raise ValueError(f"its box {name.decode()} holds a box {inner.decode()}")
        elif name in _CHECKED:
            file.seek(start)
            self._add_table(name, file.read(12).ljust(12, b"\0"), stop - start, file)

    def _add_table(self, name: bytes, head: bytes, length: int, file: BinaryIO) -> None:
        flags, first, second = struct.unpack(">III", head)
        if name == b"cmov":
            raise ValueError("its tables are compressed, which is not supported")
        if name in (b"stsz", b"stz2"):
            bits = first & 0xFF if name == b"stz2" else 0 if first else 32
            self._claim(second, bits, length - 12, name)
            if name == b"stsz" and first * second > self._size:
                self._refuse(f"{second:,} samples of {first:,} bytes")
            self._samples += second
        elif name == b"trun":
            fields = (flags & _SAMPLE_FIELDS).bit_count()
            self._claim(first, 32 * fields, length - 8 - 4 * (flags & 5).bit_count(), name)
            self._samples += first
        else:
            self._claim(first, 8 * _ENTRY_BYTES[name], length - 8, name)
            self._edits += first if name == b"elst" else 0
            self._chunks = max(self._chunks, first if name in (b"stco", b"co64") else 0)
            if name == b"stsc":
                file.seek(-4, 1)
                self._runs.append(np.frombuffer(file.read(12 * first), ">u4").reshape(-1, 3).astype(np.float64))

    def _claim(self, entries: int, bits: int, length: int, name: bytes) -> None:
        if entries * bits > 8 * length:
            raise ValueError(f"its table {name.decode()} claims {entries:,} entries in {max(length, 0):,} bytes")

    def check(self) -> None:
        """Raises ValueError if the tables claim more than the file can hold."""
        if self._samples > self._size:
            self._refuse(f"{self._samples:,} samples")
        if self._samples * self._edits > self._size:
            self._refuse(f"{self._edits:,} edits of {self._samples:,} samples")
        for runs in self._runs:
            firsts = np.append(runs[:, 0], self._chunks + 1)
            if (claimed := float((np.diff(firsts).clip(0) * runs[:, 1]).sum())) > self._size:
                self._refuse(f"{claimed:,.0f} samples in chunks")

    def _refuse(self, claim: str) -> None:
        raise ValueError(f"it claims {claim}, but has {self._size:,} bytes")
