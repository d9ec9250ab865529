"""Reads TFRecord files; survives damage and can start anywhere.

Every byte of a file is accounted for: `read_records` yields each record with correct checksums as a `Record`, and
everything else as `Damage`, and continues after it. Several workers can each read a range of bytes; together, the
ranges yield the same as one reader of the whole file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import os
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from rlds_beam import storage, worker_status
from rlds_beam.encoding.base import CheckedRecord, Damage, Headers, Record
from rlds_beam.encoding.tfrecord.framing import (
    BLOCK,
    FOOTER,
    HEADER,
    LENGTH_LIMIT,
    OVERHEAD,
    mask_crcs,
    masked_crc,
    record_header,
)

MAX_RECORD_BYTES = 1 << 30
"""Longer records are damage; bounds memory."""
MAX_DAMAGE_BYTES = 1 << 24
"""Maximum bytes of an unframed region to keep in `Damage.payload`."""
Row = tuple[int, int, int]
"""The position, length, and checksum of a record."""
_FOOTER_AND_HEADER = struct.Struct("<I12s")
_KNOWN = 1 << 12
_COUNTED = 1 << 24  # bytes between two progress reports of a scan
_FAR, _FEW = 1 << 15, 1 << 6  # after a record longer than _FAR, seek and read _FEW bytes instead of reading on
_KEPT = 16 << 20  # buffers larger than this are freed while their record is processed
_INFLATED = 1 << 16  # bytes to decompress at a time; at most these are lost to damage of a gzip stream

TFRecordFile = BinaryIO | gzip.GzipFile


@contextlib.contextmanager
def open_tfrecord(path: str) -> Iterator[TFRecordFile]:
    """Opens a plain or gzip TFRecord file; detects gzip by the first bytes, not by the name.

    Raises:
      OSError: the file does not exist.
      UsageError: the path is not supported.
    """
    with storage.open_read(path) as file:
        if _is_gzip(file):
            with gzip.GzipFile(fileobj=file) as inflated:
                yield inflated
        else:
            yield file


def _is_gzip(file: BinaryIO) -> bool:
    start = file.read(HEADER.size)
    file.seek(0)
    # A plain file whose first record is 559,903 bytes long also starts with the magic bytes of gzip.
    plain = len(start) == HEADER.size and start == record_header(int.from_bytes(start[:8], "little"))
    return start.startswith(b"\x1f\x8b\x08") and not plain


def read_records(file: TFRecordFile, start: int = 0, stop: int | None = None) -> Iterator[Record | Damage]:
    """Reads the records whose first byte is in [start, stop), and the damage after them.

    Offsets need not be record boundaries. A damaged region belongs to the range of the last good record before it, or,
    before the first good record, to the range that starts at 0. So any partition of a file into ranges yields each
    record and each damaged region exactly once, with the same messages as a single reader. A range that starts after 0
    yields nothing if no good record begins in it.

    Damage costs only the damaged bytes: the next record is found by its checksums. This has two consequences for
    records whose data contains TFRecords. First, a reader that starts at 0 or at a position from `scan_headers` never
    mistakes the inner ones for records, but a reader that starts at another offset within such a record might; split
    files at positions from `scan_headers`. Second, if the header of such a record is destroyed, the inner records are
    found.

    Args:
      file: a seekable binary file, for example from `open_tfrecord`; it is not closed.
      start: the first byte of the range.
      stop: the end of the range (exclusive); None for the end of the file.

    Yields:
      `Record` and `Damage` in the order of their positions. One record and one block are in memory at a time.

    Raises:
      OSError: the file cannot be read.
    """
    if stop is not None and start >= stop:
        return
    finder = FrameFinder(file)
    position = finder.search(start, stop) if start else 0
    if stop is not None and position >= stop:
        return
    owner = start == 0
    damaged = False
    for unit in _chain(finder, position):
        damaged = isinstance(unit, Damage)
        if stop is not None and unit.position >= stop and not (owner and damaged):
            return
        owner = owner or not damaged
        if owner:
            yield unit
        del unit  # Release the record, which may be large, before reading the next one.
    error = finder.window.error
    if error and owner and not damaged:  # otherwise the last damage's reason includes it
        end = finder.window.size or 0
        yield Damage(end, end, error, b"")


def _chain(finder: FrameFinder, position: int) -> Iterator[Record | Damage]:
    """Yields all records and damaged regions from `position`, the start of an anchor or damage, to the end."""
    window = finder.window
    known, length = b"", 0  # the last checked header and its length, so that equal headers need no check
    while window.load(position, 1):
        data, view, base = window.data, window.view, window.base
        offset = position - base
        last = window.filled - OVERHEAD
        while offset <= last:
            if data[offset : offset + HEADER.size] != known:
                checked = finder.length_at(base + offset)
                if checked is None or checked > MAX_RECORD_BYTES:
                    break
                known, length = bytes(view[offset : offset + HEADER.size]), checked
            footer = offset + HEADER.size + length
            if footer > window.filled - FOOTER.size:
                break
            payload = bytes(view[offset + HEADER.size : footer])
            crc = masked_crc(payload)
            if FOOTER.pack(crc) != data[footer : footer + FOOTER.size]:
                break
            yield CheckedRecord.from_payload(base + offset, payload, crc)
            offset = footer + FOOTER.size
        position = base + offset
        unit = _next_unit(finder, position)
        if unit is None:
            return
        position = unit.stop if isinstance(unit, Damage) else position + len(unit.payload) + OVERHEAD
        window.let_go(position)
        yield unit
        del unit


def _next_unit(finder: FrameFinder, position: int) -> Record | Damage | None:
    """The record or damaged region at `position`, or None at the end of the file. May cross the window's end."""
    window = finder.window
    if not window.load(position, 1):
        return None
    expected = finder.length_at(position)
    if expected is not None:
        payload = finder.payload(position, expected)
        if payload is not None:
            (crc,) = FOOTER.unpack_from(window.data, position + HEADER.size + expected - window.base)
            return CheckedRecord.from_payload(position, payload, crc)
    # Keep these bytes: going back for them would decompress a gzip stream again.
    there = 0 if expected is None else window.load(position, min(expected, MAX_RECORD_BYTES) + OVERHEAD)
    held = window.bytes_at(position, BLOCK)
    stop = finder.follow(position, expected)
    reason = _reason(finder, held[: HEADER.size], position, stop, expected, there)
    if not window.load(stop, 1) and window.error:
        reason = f"{reason} ({window.error})"
    start, size = 0, min(stop - position, MAX_DAMAGE_BYTES)
    if expected is not None and stop == position + expected + OVERHEAD and expected <= MAX_RECORD_BYTES:
        start, size = HEADER.size, expected
    content = held[start : start + size] if start + size <= len(held) else window.bytes_at(position + start, size)
    return Damage(position, stop, reason, content)


def _reason(finder: FrameFinder, start: bytes, position: int, stop: int, length: int | None, there: int) -> str:
    """Describes the damage in [position, stop).

    Args:
      start: the first 12 bytes, or fewer at the end of the file.
      length: the record length in this header; None if these bytes are not a header.
      there: the number of bytes of this record in the file.
    """
    if length is not None:
        if length > MAX_RECORD_BYTES:
            return f"the record has {length} bytes, but at most {MAX_RECORD_BYTES} are supported"
        if there < length + OVERHEAD:
            return f"the record is cut short (expected {length + OVERHEAD} bytes, found {there})"
        return "the data does not match its checksum"
    at_end = finder.window.load(stop, 1) == 0
    if at_end and position == 0:
        return "no records found; is this a TFRecord file?"
    if at_end and len(start) < HEADER.size:
        return f"the record's header is cut short (expected {HEADER.size} bytes, found {len(start)})"
    if len(start) == HEADER.size and start == record_header(int.from_bytes(start[:8], "little")):
        return f"the header claims {int.from_bytes(start[:8], 'little')} bytes, more than a record can have"
    if start == bytes(HEADER.size):
        return "zeros instead of a record"
    return "the record's length does not match its checksum"


def scan_headers(file: TFRecordFile, start: int = 0, stop: int | None = None) -> Headers:
    """Lists the records whose first byte is in [start, stop) from their frames, without reading the data.

    Includes the records that `read_records` yields, and damaged data in an intact frame that is followed by another
    frame or the end of the file. Other damage is left out. Files can be split at each position, and ranges add up as in
    `read_records`.

    Arguments and errors are the same as for `read_records`.
    """
    rows: list[Row] = []
    _scan(FrameFinder(file), start, stop, rows)
    positions, lengths, crcs = zip(*rows, strict=True) if rows else ((), (), ())
    return Headers(np.array(positions, np.int64), np.array(lengths, np.int64), np.array(crcs, np.uint32))


def _scan(finder: FrameFinder, start: int, stop: int | None, rows: list[Row]) -> None:
    """Adds the records whose first byte is in [start, stop) to `rows`."""
    window = finder.window
    window.block = _FEW  # until the first header gives the distance to the next one
    position = finder.search(start, stop) if start else 0
    length = finder.length_at(position)
    known: dict[bytes, int] = {}
    counted = position
    while stop is None or position < stop:
        if position - counted >= _COUNTED:
            worker_status.count(framed=position - counted)
            counted = position
        if length is not None:
            position, length = _scan_window(finder, position, length, stop, known, rows)
            if stop is not None and position >= stop:
                break
            window.block = _FEW if length > _FAR else BLOCK
            footer = position + HEADER.size + length
            there = window.load(footer, FOOTER.size + HEADER.size)
            follower = finder.length_at(footer + FOOTER.size)
            if there == FOOTER.size or follower is not None:
                (crc,) = FOOTER.unpack_from(window.data, footer - window.base)
                rows.append((position, length, crc))
                position, length = footer + FOOTER.size, follower
                continue
        if not window.load(position, 1):
            break
        end = finder.anchor(position)
        if end is not None and length is not None:
            (crc,) = FOOTER.unpack(window.bytes_at(end - FOOTER.size, FOOTER.size))
            rows.append((position, length, crc))
        position = finder.follow(position, length) if end is None else end
        length = finder.length_at(position)
    worker_status.count(framed=position - counted)


def _scan_window(
    finder: FrameFinder, position: int, length: int, stop: int | None, known: dict[bytes, int], rows: list[Row]
) -> tuple[int, int]:
    """Adds the chain of records in the window that are each followed by another; returns the first one left.

    Args:
      position, length: the position and length of the first record.
      known: the headers checked so far, and their lengths.

    Returns:
      The position and length of the record after the chain.
    """
    window = finder.window
    data, base, filled = window.data, window.base, window.filled
    offset, limit = position - base, filled if stop is None else stop - base
    while offset < limit:
        footer = offset + HEADER.size + length
        if footer > filled - OVERHEAD:
            break
        crc, header = _FOOTER_AND_HEADER.unpack_from(data, footer)
        follower = known.get(header)
        if follower is None:
            follower = finder.length_at(base + footer + FOOTER.size)
            if follower is None:
                break
            if len(known) < _KNOWN:
                known[header] = follower
        rows.append((base + offset, length, crc))
        offset, length = footer + FOOTER.size, follower
    return base + offset, length


@dataclasses.dataclass(frozen=True)
class TFRecordFormat:
    """TFRecord files, plain or gzip (`encoding.base.RecordFormat`). Positions are offsets of uncompressed bytes."""

    name: str = "tfrecord"
    unit: str = "bytes"

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Record | Damage]:
        with open_tfrecord(path) as file:
            yield from read_records(file, start, stop)

    def scan(self, path: str, start: int = 0, stop: int | None = None) -> Headers:
        with open_tfrecord(path) as file:
            return scan_headers(file, start, stop)

    def scan_plain(self, path: str) -> Headers | None:
        """`scan` of a whole file; None for a gzip file, which is not decompressed."""
        with storage.open_read(path) as file:
            return None if _is_gzip(file) else scan_headers(file)

    def is_splittable(self, path: str) -> bool:
        with storage.open_read(path) as file:
            return not _is_gzip(file)

    def end(self, path: str, size: int) -> int:
        return size

    def positions(self, path: str, low: int, high: int) -> tuple[int, int | None]:
        positions, lengths, _ = self.scan(path)
        # The end of the last record if the shard is shorter; the file size may be the compressed one.
        end = int(positions[-1] + lengths[-1]) + OVERHEAD if len(positions) else 1
        start, stop = (int(positions[i]) if i < len(positions) else None for i in (low, high))
        return (end if start is None else start), stop


_CRC_OF_ZERO_LENGTH = np.uint32(masked_crc(bytes(8)))
_ZERO = np.uint32(crc32c(bytes(8)))
_BYTES = np.array([[crc32c(bytes([0] * i + [b] + [0] * (7 - i))) for b in range(256)] for i in range(4)], np.uint32)
_LOW = (_BYTES[0] ^ _BYTES[1][:, None]).ravel()
_HIGH = (_BYTES[2] ^ _BYTES[3][:, None]).ravel() ^ _ZERO
"""CRC32C is affine: the CRC of a length below 2^32 is the xor of the tables' entries for its low and high 16 bits."""


def find_headers(data: memoryview) -> npt.NDArray[np.int64]:
    """Ascending offsets in `data` of all 12 bytes that are a length below 2^32 and its masked CRC."""
    offsets = [np.zeros(0, np.int64)]
    for phase in range(min(4, len(data) - HEADER.size + 1)):
        words = np.frombuffer(data, "<u4", (len(data) - phase) // 4, phase)
        low, high, crc = words[:-2], words[1:-1], words[2:]
        # Long runs of zeros are common (black images, holes in a file): drop them before the tables.
        at = np.flatnonzero((high == 0) & ((low != 0) | (crc == _CRC_OF_ZERO_LENGTH)))
        if not len(at):
            continue
        halves = low[at].view("<u2")
        crcs = _LOW[halves[::2]] ^ _HIGH[halves[1::2]]
        offsets.append(at[mask_crcs(crcs) == crc[at]] * 4 + phase)
    return np.sort(np.concatenate(offsets))


class Window:
    """A buffered window of a file that mostly moves forward: one block, or one record if that is longer.

    Attributes:
      base: the file offset of the first byte held.
      filled: the number of bytes held, at the front of `data`.
      data, view: the buffer, and a memoryview of it.
      size: the size of the file in bytes; None for a gzip file before its end was seen.
      error: the reason why a gzip file ends early (cut short, damaged), once detected; otherwise None.
    """

    def __init__(self, file: TFRecordFile):
        self._file, self._is_gzip = file, isinstance(file, gzip.GzipFile)
        self.size: int | None = None
        if not self._is_gzip:  # only decompression gives the size of a gzip file
            file.seek(0, os.SEEK_END)
            self.size = file.tell()
        self.error: str | None = None
        self._ended = False
        self._at = 0 if self._is_gzip else -1
        self.block = BLOCK
        self.base = self.filled = 0
        self.data = bytearray(BLOCK if self.size is None else max(1, min(BLOCK, self.size)))
        self.view = memoryview(self.data)

    def _read_into(self, room: memoryview) -> int:
        """Reads some bytes; 0 at the end of the file, or where a gzip file is damaged."""
        if not self._is_gzip:
            return self._file.readinto(room)  # type: ignore[union-attr]
        count = 0
        try:
            count = 0 if self._ended else self._file.readinto1(room[:_INFLATED])  # type: ignore[union-attr]
        except EOFError:
            self.error = "the gzip stream is cut short"
        except (gzip.BadGzipFile, zlib.error) as error:
            self.error = f"the gzip stream is damaged: {error}"
        self._ended = not count
        return count

    def _seek(self, position: int) -> None:
        """Seeks; in a gzip file by decompressing, again from the beginning if necessary."""
        if not self._is_gzip:
            self._file.seek(position)
            self._at = position
            return
        if position < self._at:
            self._file.seek(0)
            self._at, self._ended = 0, False
        skipped = memoryview(bytearray(_INFLATED))
        while self._at < position and (count := self._read_into(skipped[: position - self._at])):
            self._at += count

    def _grow(self, count: int) -> None:
        data = bytearray(count)
        data[: self.filled] = self.view[: self.filled]
        self.data, self.view = data, memoryview(data)

    def load(self, position: int, count: int) -> int:
        """Loads `count` bytes from `position`; returns how many are available (fewer at the end of the file)."""
        held = self.base + self.filled - position
        if self.base <= position and held >= count:
            return count
        if self.size is not None:
            count = max(0, min(count, self.size - position))
            if count == 0 or (self.base <= position and held >= count):
                return count
        keep = max(held, 0) if self.base <= position else 0
        self.view[:keep] = bytes(self.view[self.filled - keep : self.filled])
        self.base, self.filled = position, keep
        if self._at != position + keep:
            self._seek(position + keep)
        want = max(count, self.block)
        if self.size is not None and len(self.data) < count:
            self._grow(want + want // 4)  # the next record may be a little longer
        while self.filled < count:
            if self.filled == len(self.data):  # double: a gzip stream may be shorter than a wrong length
                self._grow(min(want, 2 * len(self.data)))
            got = self._read_into(self.view[self.filled : want])
            if not got:
                self.size = position + self.filled
                break
            self.filled += got
            self._at += got
        return min(count, self.filled)

    def let_go(self, position: int) -> None:
        """Frees a large buffer that ends before `position`."""
        if len(self.data) > _KEPT and position >= self.base + self.filled:
            self.base, self.filled = position, 0
            self.data = bytearray(BLOCK)
            self.view = memoryview(self.data)

    def bytes_at(self, position: int, count: int) -> bytes:
        """Copies `count` bytes from `position`, or fewer at the end of the file."""
        count = self.load(position, count)
        offset = position - self.base
        return bytes(self.view[offset : offset + count])


class FrameFinder:
    """Finds frames in a file: headers, and positions from which a chain of records can be read.

    An *anchor* is a position that certainly starts a record: the header's CRC is correct, the record is within the
    file, and either the data's CRC is correct, or the next header or the end of the file follows directly. All readers
    of a file agree on its anchors, wherever they start, so independently read ranges add up to the whole file.
    """

    def __init__(self, file: TFRecordFile):
        self.window = Window(file)
        self._barren = (0, 0)  # an earlier search found no anchor in this range

    def length_at(self, position: int) -> int | None:
        """The record length in the header at `position`; None if these bytes are not a header."""
        window = self.window
        if window.load(position, HEADER.size) < HEADER.size:
            return None
        offset = position - window.base
        length, crc = HEADER.unpack_from(window.data, offset)
        if length >= LENGTH_LIMIT or masked_crc(bytes(window.view[offset : offset + 8])) != crc:
            return None
        return int(length)

    def payload(self, position: int, length: int) -> bytes | None:
        """The data of the record at `position`; None if it is incomplete or its CRC is wrong."""
        window = self.window
        count = length + OVERHEAD
        if length > MAX_RECORD_BYTES or window.load(position, count) < count:
            return None
        offset = position - window.base
        data = bytes(window.view[offset + HEADER.size : offset + HEADER.size + length])
        (crc,) = FOOTER.unpack_from(window.data, offset + HEADER.size + length)
        return data if masked_crc(data) == crc else None

    def anchor(self, position: int) -> int | None:
        """The end of the record at `position`; None if `position` is not an anchor."""
        length = self.length_at(position)
        if length is None:
            return None
        end = position + length + OVERHEAD
        if length <= MAX_RECORD_BYTES:  # in one piece, so that a gzip file is not rewound
            self.window.load(position, length + OVERHEAD + HEADER.size)
        if self.window.load(end - 1, 1) == 0:
            return None
        if self.window.load(end, 1) == 0 or self.length_at(end) is not None:
            return end
        return end if self.payload(position, length) is not None else None

    def search(self, position: int, stop: int | None = None) -> int:
        """The first anchor at or after `position`; `stop` or the end of the file if there is none before it."""
        start = position
        if self._barren[0] <= position < self._barren[1]:
            start, position = self._barren
        elif self.anchor(position) is not None:  # ranges usually begin at a record
            return position
        while True:
            count = self.window.load(position, BLOCK)
            offset = position - self.window.base
            for candidate in find_headers(self.window.view[offset : offset + count]).tolist():
                if stop is not None and position + candidate >= stop:
                    return stop
                if self.anchor(position + candidate) is not None:
                    self._barren = (start, position + candidate)
                    return int(position + candidate)
            if count < BLOCK:
                end = position + count
                self._barren = (start, end)
                return end if stop is None else min(stop, end)
            position += count - HEADER.size + 1
            if stop is not None and position >= stop:
                return stop

    def follow(self, position: int, length: int | None) -> int:
        """The end of the bad record at `position`; `length` is from its header, None without a header."""
        end = self.anchor(position)
        if end is not None:
            return end
        next_header = self.search(position + 1)
        if length is None:
            return next_header
        # Both the data and the next header are bad, but nothing suggests another end of this record.
        return min(next_header, position + length + OVERHEAD)
