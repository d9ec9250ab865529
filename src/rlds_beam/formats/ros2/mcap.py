"""Reads untrusted MCAP files: their topics, and the messages of a time window.

A file is a sequence of records; chunks hold the messages, often compressed. The summary at the end lists the chunks
with the times and channels of their messages. Without a valid summary (the recorder crashed), the file is scanned
record by record, and what follows the first damage is reported as damage.

The format: https://mcap.dev/spec
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from typing import BinaryIO, NamedTuple

import numpy as np

from rlds_beam import storage
from rlds_beam.formats.ros2.mcap_records import (
    CHANNEL,
    CHUNK,
    CHUNK_INDEX,
    DATA_END,
    FOOTER,
    MAGIC,
    MESSAGE,
    MESSAGE_INDEX,
    SCHEMA,
    STATISTICS,
    Channel,
    Fields,
    MessageChunk,
    MessageSchema,
    checked_crc,
    decompress,
    place_chunks,
    records,
)
from rlds_beam.formats.ros2.messages import MAX_BYTES, BagFile, DamagedBag, Message, Topic
from rlds_beam.typing import Array

_RUN_BYTES = 4 << 20
"""Messages outside of chunks are read in runs of about this size."""
_MAX_SUMMARY_BYTES = 512 << 20
_HEAD = struct.Struct("<BQ")
_MESSAGE = struct.Struct("<HIQQ")
_INDEX = struct.Struct("<HI")
_ROW = np.dtype([("key", "u2"), ("time", "u8"), ("start", "u8"), ("stop", "u8")])
"""A message in a chunk: its channel, its log time, and where its bytes are."""
_MAX_TIME = (1 << 63) - 1
_FOOTER = _HEAD.size + 20 + len(MAGIC)


class _Table(NamedTuple):
    """The messages of a chunk: its bytes, where each is, and their order and times by log time."""

    chunk: MessageChunk
    data: memoryview
    rows: Array
    order: Array
    times: Array


class McapFile(BagFile):
    """An MCAP file of ROS 2 messages. Attributes: see `BagFile`."""

    def __init__(self, path: str):
        """
        Raises:
          OSError: the file cannot be opened, or it is not MCAP.
        """
        self.path, self.damage = path, ""
        self._size = storage.size(path)
        self._file: BinaryIO = storage.open_read(path)
        self._schemas: dict[int, MessageSchema] = {}
        self._channels: dict[int, Channel] = {}
        self._counts: Mapping[int, int] | None = None
        self._chunks: list[MessageChunk] = []
        self._table: _Table | None = None
        try:
            if self._file.read(len(MAGIC)) != MAGIC:
                raise DamagedBag(f"{path} is not an MCAP file")
            if not self._read_summary():
                self._scan()
        except BaseException:
            self.close()
            raise
        self.topics = self._topics()

    def close(self) -> None:
        self._file.close()

    def messages(self, topics: Collection[str], start: int, stop: int) -> Iterator[Message]:
        names = {key: channel.topic for key, channel in self._channels.items() if channel.topic in topics}
        for chunk in self._chunks:
            if chunk.start < stop and chunk.end >= start and chunk.may_hold(names):
                yield from self._in_chunk(chunk, names, start, stop)

    def times(self, topic: str) -> Array:
        ids = {key for key, channel in self._channels.items() if channel.topic == topic}
        found = [self._chunk_times(chunk, ids) for chunk in self._chunks if chunk.may_hold(ids)]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def last_time(self, topic: str, before: int) -> int | None:
        ids = {key for key, channel in self._channels.items() if channel.topic == topic}
        last = -1
        for chunk in sorted(self._chunks, key=lambda chunk: chunk.end, reverse=True):
            if chunk.end <= last:
                break
            if chunk.start < before and chunk.may_hold(ids):
                last = max([last, *self._select(chunk, ids, 0, before)["time"].tolist()])
        return None if last < 0 else last

    def _topics(self) -> dict[str, Topic]:
        topics: dict[str, Topic] = {}
        for key, channel in self._channels.items():
            schema = self._schemas.get(channel.schema, MessageSchema("", "", ""))
            known = topics.get(channel.topic)
            count = None if self._counts is None else self._counts.get(key, 0) + (known.total or 0 if known else 0)
            topics[channel.topic] = Topic(
                channel.topic, schema.name, count, schema.text, schema.language, channel.encoding
            )
        return topics

    def _in_chunk(self, chunk: MessageChunk, names: Mapping[int, str], start: int, stop: int) -> Iterator[Message]:
        rows = self._select(chunk, names, start, stop)
        assert self._table is not None
        data = self._table.data
        for key, time, first, last in rows.tolist():
            yield Message(names[key], time, data[first:last])

    def _select(self, chunk: MessageChunk, ids: Collection[int], start: int, stop: int) -> Array:
        """The messages of a chunk on these channels with a log time in [start, stop), as rows."""
        if self._table is None or self._table.chunk is not chunk:
            self._table = None  # not two chunks in memory
            data = self._read_records(chunk)
            rows = np.fromiter(_message_rows(data, self._where(chunk)), _ROW)
            self._check_rows(chunk, rows)
            order = np.argsort(rows["time"], kind="stable")
            self._table = _Table(chunk, data, rows, order, rows["time"][order])
        table = self._table
        first, last = np.searchsorted(table.times, np.array([start, stop], np.uint64))
        rows = table.rows[np.sort(table.order[first:last])]
        return rows[np.isin(rows["key"], list(ids))]

    def _check_rows(self, chunk: MessageChunk, rows: Array) -> None:
        """Compares messages with what is said about them outside of the chunk, which no checksum covers."""
        if len(rows) and not chunk.start <= rows["time"].min() <= rows["time"].max() <= min(chunk.end, _MAX_TIME):
            raise DamagedBag(f"{self._where(chunk)}: a message has another time than the chunk")
        if not {*np.unique(rows["key"]).tolist()} <= (chunk.indexes or self._channels).keys():
            raise DamagedBag(f"{self._where(chunk)}: a message has an unknown channel")
        for key, at in (chunk.indexes or {}).items():
            times = np.sort(rows["time"][rows["key"] == key])
            if not np.array_equal(np.sort(self._index_times(chunk, key)[0]), times):
                raise DamagedBag(f"{self.path}: the message index at byte {at:,} is damaged")

    def _where(self, chunk: MessageChunk) -> str:
        return f"{self.path}: the chunk at byte {chunk.offset:,}"

    def _read_records(self, chunk: MessageChunk) -> memoryview:
        """The records of a chunk, with their checksum verified."""
        data = self._read(chunk.offset, chunk.length)
        if chunk.is_run:
            return memoryview(data)
        where = self._where(chunk)
        fields = Fields(memoryview(data)[_HEAD.size :], where)
        start, end, size, crc = fields.take(struct.Struct("<QQQI"))
        if (*_HEAD.unpack_from(data), start, end) != (CHUNK, len(data) - _HEAD.size, chunk.start, chunk.end):
            raise DamagedBag(f"{where} is not as the summary describes it")
        compression = fields.text()
        stored = fields.block(fields.take(struct.Struct("<Q"))[0])
        return checked_crc(decompress(stored, compression, size, where), crc, where)

    def _chunk_times(self, chunk: MessageChunk, ids: Collection[int]) -> Array:
        """The log times of a chunk's messages, from its message indexes if it has any."""
        if chunk.indexes is None:
            return self._select(chunk, ids, 0, _MAX_TIME)["time"].astype(np.int64)
        found, after = [np.zeros(0, np.int64)], 0
        for at, key in sorted((at, key) for key, at in chunk.indexes.items() if key in ids):
            times, stop = self._index_times(chunk, key)
            if at < after:  # a small file could list the same times again and again
                raise DamagedBag(f"{self.path}: the message index at byte {at:,} is damaged")
            found.append(times)
            after = stop
        return np.concatenate(found)

    def _index_times(self, chunk: MessageChunk, key: int) -> tuple[Array, int]:
        """The log times in a message index, and where it ends."""
        assert chunk.indexes is not None
        at = chunk.indexes[key]
        kind, length = _HEAD.unpack(self._read(at, _HEAD.size))
        stop = at + _HEAD.size + length
        body = self._read(at + _HEAD.size, length) if kind == MESSAGE_INDEX and stop <= chunk.limit else b""
        count, rest = divmod(len(body) - _INDEX.size, 16)
        if rest or count < 0 or _INDEX.unpack_from(body) != (key, 16 * count):
            raise DamagedBag(f"{self.path}: the message index at byte {at:,} is damaged")
        times = np.frombuffer(body, "<u8", 2 * count, _INDEX.size)[::2]
        if count and not chunk.start <= times.min() <= times.max() <= min(chunk.end, _MAX_TIME):
            raise DamagedBag(f"{self.path}: the message index at byte {at:,} has a time that its chunk has not")
        return times.astype(np.int64), stop

    def _read(self, at: int, size: int) -> bytes:
        if size > MAX_BYTES or at + size > self._size:
            raise DamagedBag(f"{self.path}: a record of {size:,} bytes at byte {at:,} goes beyond the file")
        self._file.seek(at)
        data = self._file.read(size)
        if len(data) != size:
            raise DamagedBag(f"{self.path} is cut short at byte {at + len(data):,}")
        return data

    def _read_summary(self) -> bool:
        """Reads the summary; False if there is none, if it is damaged, or if it does not list all chunks."""
        if self._size < _FOOTER + len(MAGIC):
            return False
        end = self._size - _FOOTER
        self._file.seek(end)
        footer = self._file.read(_FOOTER)
        start, _, crc = struct.unpack_from("<QQI", footer, _HEAD.size)
        if _HEAD.unpack_from(footer) != (FOOTER, 20) or not footer.endswith(MAGIC):
            return False
        if not len(MAGIC) <= start <= end or end - start > _MAX_SUMMARY_BYTES:
            return False
        self._file.seek(start)
        data = self._file.read(end - start)
        try:
            checked_crc(memoryview(data + footer[: _HEAD.size + 16]), crc, self.path)
            return self._parse_summary(memoryview(data), start)
        except DamagedBag:
            self._schemas, self._channels, self._chunks = {}, {}, []
            return False

    def _parse_summary(self, data: memoryview, start: int) -> bool:
        expected = messages = 0
        for kind, at, end, _ in records(data, f"{self.path}: its summary"):
            fields = Fields(data[at:end], f"{self.path}: its summary")
            if kind == CHUNK_INDEX:
                self._chunks.append(MessageChunk.from_index(fields))
            elif kind == STATISTICS:
                messages, _, _, _, _, expected, _, _ = fields.take(struct.Struct("<QHIIIIQQ"))
                counts = fields.block(fields.take(struct.Struct("<I"))[0])
                self._counts = dict(struct.iter_unpack("<HQ", bytes(counts[: len(counts) // 10 * 10])))
            else:
                self._take(kind, fields)
        if len(self._chunks) != expected or (messages and not (self._chunks and self._channels)):
            raise DamagedBag("the summary does not list all chunks")
        if any(not (chunk.indexes or {}).keys() <= self._channels.keys() for chunk in self._chunks):
            raise DamagedBag("the summary does not list all channels")
        self._chunks = place_chunks(self._chunks, start)
        return True

    def _take(self, kind: int, fields: Fields) -> None:
        """Takes a schema or a channel; ignores other records."""
        if kind == SCHEMA:
            key, schema = (
                fields.take(struct.Struct("<H"))[0],
                MessageSchema(fields.text(), fields.text(), fields.text()),
            )
            self._schemas.setdefault(key, schema)
        elif kind == CHANNEL:
            key, schema_id = fields.take(struct.Struct("<HH"))
            self._channels.setdefault(key, Channel(fields.text(), schema_id, fields.text()))

    def _scan(self) -> None:
        """Lists chunks and messages record by record, until the footer or the first damage."""
        at, run = len(MAGIC), _Run()
        counts: dict[int, int] = {}
        try:
            while True:
                kind, length = _HEAD.unpack(self._read(at, _HEAD.size))
                if not kind:
                    raise DamagedBag(f"{self.path} is damaged at byte {at:,}: no record begins there")
                if at + _HEAD.size + length > self._size:
                    raise DamagedBag(f"{self.path} is cut short: the record at byte {at:,} goes beyond its end")
                if kind == MESSAGE:
                    if length < _MESSAGE.size:
                        raise DamagedBag(f"{self.path}: the message at byte {at:,} has {length} bytes")
                    key, _, time, _ = _MESSAGE.unpack(self._read(at + _HEAD.size, _MESSAGE.size))
                    counts[key] = counts.get(key, 0) + 1
                    run.add(at, _HEAD.size + length, time, self._chunks)
                elif kind == CHUNK:
                    chunk = MessageChunk(
                        at, _HEAD.size + length, *struct.unpack("<QQ", self._read(at + _HEAD.size, 16))
                    )
                    self._look_inside(chunk, counts)
                    self._chunks.append(chunk)
                elif kind in (SCHEMA, CHANNEL):
                    self._take(kind, Fields(memoryview(self._read(at + _HEAD.size, length)), self.path))
                elif kind in (DATA_END, FOOTER):
                    break
                at += _HEAD.size + length
        except DamagedBag as error:
            self.damage = f"{error}. Messages after it are lost; `mcap recover` writes a file with those before it"
        run.end(self._chunks)
        self._chunks.sort(key=lambda chunk: chunk.offset)  # a run ends after the chunks that follow it
        self._counts = counts

    def _look_inside(self, chunk: MessageChunk, counts: dict[int, int]) -> None:
        for kind, start, end, data in records(self._read_records(chunk), self._where(chunk)):
            if kind == MESSAGE and end - start >= _MESSAGE.size:
                (key,) = struct.unpack_from("<H", data, start)
                counts[key] = counts.get(key, 0) + 1
            elif kind in (SCHEMA, CHANNEL):
                self._take(kind, Fields(data[start:end], self._where(chunk)))


def _message_rows(data: memoryview, where: str) -> Iterator[tuple[int, int, int, int]]:
    for kind, at, end, _ in records(data, where):
        if kind == MESSAGE:
            if end - at < _MESSAGE.size:
                raise DamagedBag(f"{where}: a message of {end - at} bytes")
            key, _, time, _ = _MESSAGE.unpack_from(data, at)
            yield key, time, at + _MESSAGE.size, end


class _Run:
    """Collects messages outside of chunks into runs of consecutive records."""

    def __init__(self) -> None:
        self._first = self._stop = self._low = self._high = 0

    def add(self, at: int, length: int, time: int, chunks: list[MessageChunk]) -> None:
        if self._stop != at or at + length - self._first > _RUN_BYTES:
            self.end(chunks)
            self._first, self._low, self._high = at, time, time
        self._stop, self._low, self._high = at + length, min(self._low, time), max(self._high, time)

    def end(self, chunks: list[MessageChunk]) -> None:
        if self._stop > self._first:
            chunks.append(MessageChunk(self._first, self._stop - self._first, self._low, self._high, is_run=True))
        self._first = self._stop = 0
