"""TFRecord files: reading that survives damage and can start anywhere, and writing many records at once.

Every byte of a file is accounted for: `read_records` gives each record whose checksums are right as a
`Record` and everything else as `Damage`, and continues after it. A file can be read in ranges of bytes,
each by another worker, and the ranges add up to what one reader of the whole file gives.
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
    TooDamagedError,
    masked_crc,
    record_header,
)
from rlds_beam.encoding.tfrecord.gzip_stream import GzipStream

MAX_RECORD_BYTES = 1 << 30
MAX_DAMAGE_BYTES = 1 << 24
Row = tuple[int, int, int]
"""Of a record: its position, length and checksum."""
_FOOTER_AND_HEADER = struct.Struct("<I12s")
_KNOWN = 1 << 12
_COUNTED = 1 << 24  # bytes of a file from one count of how far a scan is to the next
_FAR, _FEW = 1 << 15, 1 << 6  # after a record this long, seek and read this little, instead of reading on


class TFRecordFile(NamedTuple):
    """An open TFRecord file.

    Attributes:
      file: its uncompressed bytes, seekable; the caller closes it.
      splittable: whether ranges of it can be read on their own. A gzip file's cannot.
      size: number of uncompressed bytes; None for a gzip file.
    """

    file: BinaryIO | GzipStream
    splittable: bool
    size: int | None


def open_tfrecord(path: str) -> TFRecordFile:
    """Opens a plain or gzip TFRecord file, told apart by their first bytes, whatever the name says.

    Raises OSError if there is no such file, UsageError if nothing here can open the path.
    """
    file = storage.open_read(path)
    start = file.read(HEADER.size)
    file.seek(0)
    # A plain file whose first record is 559,903 bytes long begins with the magic bytes of gzip, too.
    plain = len(start) == HEADER.size and start == record_header(int.from_bytes(start[:8], "little"))
    if start.startswith(b"\x1f\x8b\x08") and not plain:
        return TFRecordFile(GzipStream(file), splittable=False, size=None)
    return TFRecordFile(file, splittable=True, size=storage.size(path))


def read_records(
    file: BinaryIO | GzipStream,
    start: int = 0,
    stop: int | None = None,
    *,
    max_record_bytes: int = MAX_RECORD_BYTES,
    max_damage_bytes: int = MAX_DAMAGE_BYTES,
) -> Iterator[Record | Damage]:
    """Reads the records whose first byte is in [start, stop), and the damage after them.

    Any offsets will do, they need not be boundaries of records. A damaged region belongs to the range
    of the last good record before it, and before the first good record to the range that starts at 0;
    so any partition of a file into ranges gives each record and each damaged region exactly once, in
    the words of one reader of the whole file. A range that starts after 0 and in which no good record
    begins gives nothing.

    Damage costs only the bytes that it hits: the next record after it is found by its checksums. Two things follow
    from this. First, TFRecords *inside* a record's data are never mistaken for records by a reader that
    starts at 0, nor by one that starts at a position from `scan_headers`; one that starts at any other
    offset within such a record may take what is inside for records. Split files at positions from
    `scan_headers`. Second, where a header is destroyed whose record holds TFRecords, these are found.

    The work is bounded by the size of the file (`framing.EFFORT`): where so much is damaged that
    it takes more, the rest of the range is one `Damage`.

    Args:
      file: a seekable binary file, or what `open_tfrecord` gave; it is not closed.
      start: first byte of the range.
      stop: after the last byte of the range; None for the end of the file.
      max_record_bytes: a longer record is damage; it bounds what is allocated.
      max_damage_bytes: bytes of a region without frames to keep in `Damage.payload`.

    Yields:
      `Record` and `Damage` in the order of their positions. Memory holds one record and one block.

    Raises:
      ValueError: if max_record_bytes is not in [1, 2^32). OSError: if the file cannot be read.
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
            del unit  # A record may be large: it is let go before the next one is read.
    except TooDamagedError:
        if owner:
            yield _given_up(finder, position, stop, max_damage_bytes)
        return
    error = finder.window.error
    if error and owner and not damaged:  # else it is part of that one's reason
        end = finder.window.size or 0
        yield Damage(end, end, error, b"")


def _given_up(finder: FrameFinder, position: int, stop: int | None, max_damage_bytes: int) -> Damage:
    """The rest of a range in which looking for records takes too long."""
    window = finder.window
    end = window.farthest if window.size is None else window.size
    end = max(position, end if stop is None else min(stop, end))
    reason = "so much is damaged here that the rest is not searched for records"
    return Damage(position, end, reason, window.bytes_at(position, min(end - position, max_damage_bytes)))


def _chain(finder: FrameFinder, position: int, max_damage_bytes: int) -> Iterator[Record | Damage]:
    """All records and damaged regions from `position`, where an anchor or damage begins, to the file's end."""
    window = finder.window
    known, length = b"", 0  # a header that was checked, and its length: equal ones need no second check
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
    """The record or damaged region at `position`, None at the file's end. May cross the window's end."""
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
    # What is at hand is kept: to go back for it would be to decompress a gzip stream once more.
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
    """What is wrong in [position, stop).

    Args:
      start: the first 12 bytes, or fewer at the file's end.
      length: what they say as a header; None where they are none.
      there: bytes of that record that are in the file.
    """
    if length is not None:
        if length > finder.max_record_bytes:
            return f"the record has {length} bytes, more than max_record_bytes={finder.max_record_bytes}"
        if there < length + OVERHEAD:
            return f"the record is cut short: {length + OVERHEAD} bytes announced, {there} there"
        return "the data do not match their checksum"
    at_end = finder.window.load(stop, 1) == 0
    if at_end and position == 0:
        return "there is no record in it; not a TFRecord file?"
    if at_end and len(start) < HEADER.size:
        return f"the record's header is cut short: {len(start)} of {HEADER.size} bytes there"
    if len(start) == HEADER.size and start == record_header(int.from_bytes(start[:8], "little")):
        return f"the record announces {int.from_bytes(start[:8], 'little')} bytes, more than a record can have"
    if start == bytes(HEADER.size):
        return "zeros where a record should begin"
    return "the record's length does not match its checksum"


def scan_headers(
    file: BinaryIO | GzipStream, start: int = 0, stop: int | None = None, *, max_record_bytes: int = MAX_RECORD_BYTES
) -> Headers:
    """Lists the records whose first byte is in [start, stop) from their frames alone, seeking over the data.

    The positions are those of the records that `read_records` gives and of damaged data in an intact frame that
    is followed by another or by the file's end (data are not looked at there). Other damage is left out. Each
    position is a good place to split the file, and ranges add up as those of `read_records` do.

    Args and what is raised: as for `read_records`.
    """
    rows: list[Row] = []
    with contextlib.suppress(TooDamagedError):
        _scan(FrameFinder(file, max_record_bytes), start, stop, rows)
    positions, lengths, crcs = zip(*rows, strict=True) if rows else ((), (), ())
    return Headers(np.array(positions, np.int64), np.array(lengths, np.int64), np.array(crcs, np.uint32))


def _scan(finder: FrameFinder, start: int, stop: int | None, rows: list[Row]) -> None:
    """Adds the records whose first byte is in [start, stop)."""
    window = finder.window
    window.block = _FEW  # until the first header says how far off the next one is
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
    """Adds the records that lie in the window, one after another, each before another one; where that ends.

    Args:
      position, length: of the first record.
      known: headers that were checked, and their lengths.
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
    """TFRecord files, plain or gzip (`encoding.base.RecordFormat`). Positions are offsets of bytes."""

    name: str = "tfrecord"
    unit: str = "bytes"

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Record | Damage]:
        with open_tfrecord(path).file as file:
            yield from read_records(file, start, stop)

    def scan(self, path: str, start: int = 0, stop: int | None = None) -> Headers:
        with open_tfrecord(path).file as file:
            return scan_headers(file, start, stop)

    def is_splittable(self, path: str) -> bool:
        opened = open_tfrecord(path)
        opened.file.close()
        return opened.splittable

    def end(self, path: str, size: int) -> int:
        return size

    def positions(self, path: str, low: int, high: int) -> tuple[int, int | None]:
        positions, lengths, _ = self.scan(path)
        # Where the last record of a shorter shard ends: not the size of the file, which may be compressed.
        end = int(positions[-1] + lengths[-1]) + OVERHEAD if len(positions) else 1
        start, stop = (int(positions[i]) if i < len(positions) else None for i in (low, high))
        return (end if start is None else start), stop
