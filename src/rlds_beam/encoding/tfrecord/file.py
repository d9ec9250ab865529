"""Reads TFRecord files; survives damage and can start anywhere.

Every byte of a file is accounted for: `read_records` yields each record with correct checksums as a `Record`, and
everything else as `Damage`, and continues after it. Several workers can each read a range of bytes; together, the
ranges yield the same as one reader of the whole file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from rlds_beam import storage, worker_status
from rlds_beam.encoding.base import CheckedRecord, Damage, Headers, Record
from rlds_beam.encoding.tfrecord.framing import (
    BLOCK,
    FOOTER,
    HEADER,
    OVERHEAD,
    FrameFinder,
    GzipStream,
    TooDamagedError,
    masked_crc,
    record_header,
)

MAX_RECORD_BYTES = 1 << 30
MAX_DAMAGE_BYTES = 1 << 24
Row = tuple[int, int, int]
"""The position, length, and checksum of a record."""
_FOOTER_AND_HEADER = struct.Struct("<I12s")
_KNOWN = 1 << 12
_COUNTED = 1 << 24  # bytes between two progress reports of a scan
_FAR, _FEW = 1 << 15, 1 << 6  # after a record longer than _FAR, seek and read _FEW bytes instead of reading on


class TFRecordFile(NamedTuple):
    """An open TFRecord file.

    Attributes:
      file: the uncompressed bytes, seekable; the caller closes it.
      splittable: whether ranges of the file can be read independently; not for a gzip file.
      size: the number of uncompressed bytes; None for a gzip file.
    """

    file: BinaryIO | GzipStream
    splittable: bool
    size: int | None


def open_tfrecord(path: str) -> TFRecordFile:
    """Opens a plain or gzip TFRecord file; detects gzip by the first bytes, not by the name.

    Raises:
      OSError: the file does not exist.
      UsageError: the path is not supported.
    """
    file, is_gzip = _open(path)
    if is_gzip:
        return TFRecordFile(GzipStream(file), splittable=False, size=None)
    return TFRecordFile(file, splittable=True, size=storage.size(path))


def _open(path: str) -> tuple[BinaryIO, bool]:
    """The file, at its begin, and whether it is a gzip file."""
    file = storage.open_read(path)
    start = file.read(HEADER.size)
    file.seek(0)
    # A plain file whose first record is 559,903 bytes long also starts with the magic bytes of gzip.
    plain = len(start) == HEADER.size and start == record_header(int.from_bytes(start[:8], "little"))
    return file, start.startswith(b"\x1f\x8b\x08") and not plain


def read_records(
    file: BinaryIO | GzipStream,
    start: int = 0,
    stop: int | None = None,
    *,
    max_record_bytes: int = MAX_RECORD_BYTES,
    max_damage_bytes: int = MAX_DAMAGE_BYTES,
) -> Iterator[Record | Damage]:
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

    The work is bounded by the size of the file (`framing.EFFORT`): if there is more damage, the rest of the range
    becomes one `Damage`.

    Args:
      file: a seekable binary file, for example from `open_tfrecord`; it is not closed.
      start: the first byte of the range.
      stop: the end of the range (exclusive); None for the end of the file.
      max_record_bytes: longer records are damage; bounds memory.
      max_damage_bytes: the maximum bytes of an unframed region to keep in `Damage.payload`.

    Yields:
      `Record` and `Damage` in the order of their positions. One record and one block are in memory at a time.

    Raises:
      ValueError: max_record_bytes is not in [1, 2^32).
      OSError: the file cannot be read.
    """
    if stop is not None and start >= stop:
        return
    finder = FrameFinder(file, max_record_bytes)
    position = start
    owner = start == 0
    damaged = False
    try:
        position = finder.search(start, stop) if start else 0
        if stop is not None and position >= stop:
            return
        for unit in _chain(finder, position, max_damage_bytes):
            damaged = isinstance(unit, Damage)
            if stop is not None and unit.position >= stop and not (owner and damaged):
                return
            owner = owner or not damaged
            position = unit.stop if isinstance(unit, Damage) else unit.position + len(unit.payload) + OVERHEAD
            if owner:
                yield unit
            del unit  # Release the record, which may be large, before reading the next one.
    except TooDamagedError:
        if owner:
            yield _give_up(finder, position, stop, max_damage_bytes)
        return
    error = finder.window.error
    if error and owner and not damaged:  # otherwise the last damage's reason includes it
        end = finder.window.size or 0
        yield Damage(end, end, error, b"")


def _give_up(finder: FrameFinder, position: int, stop: int | None, max_damage_bytes: int) -> Damage:
    """The damage for the rest of a range, if searching it for records takes too long."""
    window = finder.window
    end = window.farthest if window.size is None else window.size
    end = max(position, end if stop is None else min(stop, end))
    reason = "too much damage; the rest is not searched for records"
    return Damage(position, end, reason, window.bytes_at(position, min(end - position, max_damage_bytes)))


def _chain(finder: FrameFinder, position: int, max_damage_bytes: int) -> Iterator[Record | Damage]:
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
                if checked is None or checked > finder.max_record_bytes:
                    break
                known, length = bytes(view[offset : offset + HEADER.size]), checked
            footer = offset + HEADER.size + length
            if footer > window.filled - FOOTER.size:
                break
            payload = bytes(view[offset + HEADER.size : footer])
            crc = masked_crc(payload)
            if FOOTER.pack(crc) != data[footer : footer + FOOTER.size]:
                break
            yield CheckedRecord.of(base + offset, payload, crc)
            offset = footer + FOOTER.size
        position = base + offset
        unit = _next_unit(finder, position, max_damage_bytes)
        if unit is None:
            return
        position = unit.stop if isinstance(unit, Damage) else position + len(unit.payload) + OVERHEAD
        window.let_go(position)
        yield unit
        del unit


def _next_unit(finder: FrameFinder, position: int, max_damage_bytes: int) -> Record | Damage | None:
    """The record or damaged region at `position`, or None at the end of the file. May cross the window's end."""
    window = finder.window
    if not window.load(position, 1):
        return None
    finder.spend(position)
    expected = finder.length_at(position)
    if expected is not None:
        payload = finder.payload(position, expected)
        if payload is not None:
            (crc,) = FOOTER.unpack_from(window.data, position + HEADER.size + expected - window.base)
            return CheckedRecord.of(position, payload, crc)
    # Keep these bytes: going back for them would decompress a gzip stream again.
    there = 0 if expected is None else window.load(position, min(expected, finder.max_record_bytes) + OVERHEAD)
    held = window.bytes_at(position, BLOCK)
    stop = finder.follow(position, expected)
    reason = _reason(finder, held[: HEADER.size], position, stop, expected, there)
    if not window.load(stop, 1) and window.error:
        reason = f"{reason} ({window.error})"
    start, size = 0, min(stop - position, max_damage_bytes)
    if expected is not None and stop == position + expected + OVERHEAD and expected <= finder.max_record_bytes:
        start, size = HEADER.size, expected
    at_hand = start + size <= len(held)
    return Damage(
        position, stop, reason, held[start : start + size] if at_hand else window.bytes_at(position + start, size)
    )


def _reason(finder: FrameFinder, start: bytes, position: int, stop: int, length: int | None, there: int) -> str:
    """Describes the damage in [position, stop).

    Args:
      start: the first 12 bytes, or fewer at the end of the file.
      length: the record length in this header; None if these bytes are not a header.
      there: the number of bytes of this record in the file.
    """
    if length is not None:
        if length > finder.max_record_bytes:
            return f"the record has {length} bytes, more than max_record_bytes={finder.max_record_bytes}"
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


def scan_headers(
    file: BinaryIO | GzipStream, start: int = 0, stop: int | None = None, *, max_record_bytes: int = MAX_RECORD_BYTES
) -> Headers:
    """Lists the records whose first byte is in [start, stop) from their frames, without reading the data.

    Includes the records that `read_records` yields, and damaged data in an intact frame that is followed by another
    frame or the end of the file. Other damage is left out. Files can be split at each position, and ranges add up as in
    `read_records`.

    Arguments and errors are the same as for `read_records`.
    """
    rows: list[Row] = []
    with contextlib.suppress(TooDamagedError):
        _scan(FrameFinder(file, max_record_bytes), start, stop, rows)
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
        finder.spend(position)
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
    """TFRecord files, plain or gzip (`encoding.base.RecordFormat`). Positions are byte offsets."""

    name: str = "tfrecord"
    unit: str = "bytes"

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Record | Damage]:
        with open_tfrecord(path).file as file:
            yield from read_records(file, start, stop)

    def scan(self, path: str, start: int = 0, stop: int | None = None) -> Headers:
        file, is_gzip = _open(path)
        opened: BinaryIO | GzipStream = GzipStream(file) if is_gzip else file
        with opened:
            return scan_headers(opened, start, stop)

    def is_splittable(self, path: str) -> bool:
        file, is_gzip = _open(path)
        file.close()
        return not is_gzip

    def end(self, path: str, size: int) -> int:
        return size

    def positions(self, path: str, low: int, high: int) -> tuple[int, int | None]:
        positions, lengths, _ = self.scan(path)
        # The end of the last record if the shard is shorter; the file size may be the compressed one.
        end = int(positions[-1] + lengths[-1]) + OVERHEAD if len(positions) else 1
        start, stop = (int(positions[i]) if i < len(positions) else None for i in (low, high))
        return (end if start is None else start), stop
