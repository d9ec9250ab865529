"""Reads untrusted `.db3` files, rosbag2's SQLite storage. Nothing in the file is executed: only tables are read."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sqlite3
import urllib.parse
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.errors import UsageError
from rlds_beam.formats.ros2.messages import MAX_BYTES, BagFile, DamagedBag, Message, Topic
from rlds_beam.text import shorten
from rlds_beam.typing import Array

_TABLES = {
    "topics": ("id", "name", "type", "serialization_format"),
    "messages": ("id", "topic_id", "timestamp", "data"),
}

_MAX_INSTRUCTIONS = 1_000_000, 16
"""Maximum number of SQLite's instructions for a query: some, and for each byte of the file.

A page can be linked many times, so that a small file has any number of rows.
"""
_TICK = 10_000
"""Instructions between two looks at their number."""

_LEFT_OVER = {
    "-wal": ("holds its last messages", "PRAGMA wal_checkpoint(TRUNCATE)"),
    "-journal": ("says how to undo a transaction that was not finished", "SELECT count(*) FROM messages"),
}
"""Files next to a database whose writer was killed: what they hold, and what lets SQLite complete the database."""


class SqliteFile(BagFile):
    """A `.db3` file. Attributes: see `BagFile`."""

    def __init__(self, path: str):
        """
        Raises:
          UsageError: it is not on a local disk, or its last messages are in a write-ahead log.
          OSError: it cannot be opened, or is not a bag.
        """
        if storage.scheme(path) is not None:
            raise UsageError(f"cannot read {path}: .db3 files are read from local disks only; copy the bag first")
        storage.check_regular(path)
        for ending, (holds, command) in _LEFT_OVER.items():
            if os.path.exists(path + ending) and os.path.getsize(path + ending):
                raise DamagedBag(
                    f"{path} was not closed: {path}{ending} {holds}. Open it once with SQLite, on a copy of both "
                    f"files: sqlite3 {shlex.quote(path)} '{command}'"
                )
        uri = f"file:{urllib.parse.quote(os.path.abspath(path))}?mode=ro&immutable=1"
        self.path, self._base = path, sqlite3.connect(uri, uri=True, isolation_level=None)
        self._ticks = self._ticks_left = (_MAX_INSTRUCTIONS[0] + _MAX_INSTRUCTIONS[1] * storage.size(path)) // _TICK
        try:
            self._base.set_progress_handler(self._tick, _TICK)
            with self._reading():
                self._base.execute("PRAGMA trusted_schema=OFF")
                self._check_tables()
                self.topics = self._read_topics()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._base.close()

    def messages(self, topics: Collection[str], start: int, stop: int) -> Iterator[Message]:
        names = {key: name for name, keys in self._ids.items() if name in topics for key in keys}
        query = (
            "SELECT topic_id, timestamp, data FROM messages WHERE timestamp >= ? AND timestamp < ? "
            f"AND topic_id IN ({_marks(names)})"
        )
        # SQLite's integers are signed
        bounds = max(start, -(1 << 63)), min(stop, (1 << 63) - 1)
        with self._reading():
            for key, time, data in self._base.execute(query, (*bounds, *names)):
                yield self._message(names[key], time, data)

    def times(self, topic: str) -> Array:
        ids = self._ids.get(topic, ())
        query = f"SELECT timestamp FROM messages WHERE topic_id IN ({_marks(ids)}) ORDER BY id"
        with self._reading():
            rows = [time for (time,) in self._base.execute(query, tuple(ids))]
        if not all(type(time) is int for time in rows):
            raise DamagedBag(f"{self.path}: a message of {topic} has no time")
        return np.array(rows, np.int64)

    def last_time(self, topic: str, before: int) -> int | None:
        ids = self._ids.get(topic, ())
        query = f"SELECT max(timestamp) FROM messages WHERE topic_id IN ({_marks(ids)}) AND timestamp < ?"
        with self._reading():
            (time,) = self._base.execute(query, (*ids, before)).fetchone()
        if time is not None and type(time) is not int:
            raise DamagedBag(f"{self.path}: a message of {topic} has no time")
        return time

    def _message(self, topic: str, time: Any, data: Any) -> Message:
        if type(time) is not int or type(data) is not bytes or len(data) > MAX_BYTES:
            raise DamagedBag(f"{self.path}: a message of {topic} has no time, or no bytes")
        return Message(topic, time, memoryview(data))

    def _tick(self) -> bool:
        """Whether to stop a query."""
        self._ticks_left -= 1
        return self._ticks_left < 0

    def _check_tables(self) -> None:
        for table, columns in _TABLES.items():
            found = self._base.execute("SELECT type, sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            text = found[1] if found and found[0] == "table" and isinstance(found[1], str) else ""
            if not re.match(r"\s*CREATE\s+TABLE\b", text, re.IGNORECASE):  # a virtual table runs code of modules
                raise DamagedBag(f"{self.path} is not a ROS 2 bag: it has no table {table}")
            known = {row[1]: row[6] for row in self._base.execute(f"PRAGMA table_xinfo({table})")}
            if lacking := [name for name in columns if known.get(name) != 0]:  # not 0: computed by the file's code
                raise DamagedBag(f"{self.path} is not a ROS 2 bag: its table {table} has no column {lacking[0]}")

    def _read_topics(self) -> dict[str, Topic]:
        definitions: dict[str, tuple[str, str]] = {}
        stored = self._base.execute(
            "SELECT count(*) FROM sqlite_master WHERE name = 'message_definitions' AND type = 'table'"
        ).fetchone()
        if stored[0]:
            rows = self._base.execute(
                "SELECT topic_type, encoding, encoded_message_definition FROM message_definitions"
            )
            definitions = {str(name): (str(text), str(language)) for name, language, text in rows}
        rows = self._base.execute(
            "SELECT topic_id, count(*), count(CASE WHEN typeof(timestamp) = 'integer' AND timestamp >= 0 THEN 1 END) "
            "FROM messages GROUP BY topic_id"
        )
        counts: dict[Any, int] = {}
        for key, counts[key], timed in rows:
            if timed != counts[key]:
                raise DamagedBag(f"{self.path}: a message has no time")
        topics: dict[str, Topic] = {}
        self._ids: dict[str, list[int]] = {}
        for key, name, kind, encoding in self._base.execute(
            "SELECT id, name, type, serialization_format FROM topics ORDER BY id"
        ):
            if type(key) is not int or not all(isinstance(text, str) for text in (name, kind, encoding)):
                raise DamagedBag(f"{self.path}: its table topics is damaged")
            self._ids.setdefault(name, []).append(key)
            before = topics[name].total or 0 if name in topics else 0
            definition, language = definitions.get(kind, ("", ""))
            topics[name] = Topic(name, kind, before + counts.pop(key, 0), definition, language, encoding)
        if counts:
            raise DamagedBag(f"{self.path}: {sum(counts.values()):,} messages are of no topic")
        return topics

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        self._ticks_left = self._ticks
        try:
            yield
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            why = shorten(error) if self._ticks_left >= 0 else "a query has more rows than the file has bytes for"
            raise DamagedBag(f"{self.path} cannot be read: {why}") from error


def _marks(values: Collection[Any]) -> str:
    return ",".join("?" * len(values))
