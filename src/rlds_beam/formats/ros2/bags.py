"""Bags: their files, topics, and messages. `mcap` reads `.mcap` files, rosbags reads `.db3` files."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sqlite3
import struct
import urllib.parse
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.metadata import parse_yaml
from rlds_beam.errors import UsageError, needs
from rlds_beam.text import shorten
from rlds_beam.typing import Array

METADATA = "metadata.yaml"
ENDINGS = (".mcap", ".db3")
EVER = (1 << 63) - 1
_RECOVER = "`mcap recover` saves what is intact"
_RECORD_HEAD = 9  # bytes before the content of an MCAP record: its kind and length


class DamagedBag(OSError):
    """Messages of a bag cannot be read. The text says where and why."""


class Topic(NamedTuple):
    """A topic.

    Attributes:
      name: for example `/joint_states`.
      type: the message type, `sensor_msgs/msg/JointState`.
      definition: the text of the type's definition as stored in the bag; empty if there is none.
      language: the language of the definition: `ros2msg` or `ros2idl`.
      encoding: how messages are serialized; only `cdr` is supported.
    """

    name: str
    type: str
    definition: str = ""
    language: str = ""
    encoding: str = "cdr"


class Message(NamedTuple):
    """A message as recorded.

    Attributes:
      topic: the topic's name.
      time: when the recorder received it, in nanoseconds.
      data: its serialized bytes.
    """

    topic: str
    time: int
    data: bytes


@dataclasses.dataclass(frozen=True)
class BagLayout:
    """The files of a bag.

    Attributes:
      path: its metadata.yaml, or its only file.
      files: the files with messages, in order.
      is_compressed: whether each message is compressed (zstd).
    """

    path: str
    files: tuple[str, ...]
    is_compressed: bool = False

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(storage.size(path) for path in self.files if storage.exists(path))


def bag_layout(path: str) -> BagLayout:
    """The files of the bag at the path of its metadata.yaml, or of its only file.

    Raises:
      UsageError: the metadata is damaged, or names files outside of its directory; or the files are compressed as a
        whole.
    """
    directory, name = storage.split(path)
    if name != METADATA:
        return BagLayout(path, (path,))
    content = parse_yaml(storage.read_text(path), path)
    about = content.get("rosbag2_bagfile_information") if isinstance(content, dict) else None
    names = about.get("relative_file_paths") if isinstance(about, dict) else None
    if not isinstance(about, dict) or not isinstance(names, list) or not names:
        raise UsageError(f"{path} is not the metadata of a ROS 2 bag: it has no relative_file_paths")
    files = []
    for entry in names:
        file = str(entry).rpartition("/")[2]  # before version 4, the paths begin with the name of the bag's directory
        if file.endswith((".zstd", ".zst")):
            raise UsageError(
                f"{storage.join(directory, file)} is compressed as a whole: decompress it (zstd -d), or convert the "
                "bag (ros2 bag convert)"
            )
        if not naming.is_file_name(file) or not file.endswith(ENDINGS):
            raise UsageError(
                f"{path} names {shorten(repr(entry), 80)}; --from=ros2 reads {' and '.join(ENDINGS)} files"
            )
        files.append(storage.join(directory, file))
    return BagLayout(path, tuple(files), str(about.get("compression_mode")).lower() == "message")


def find_bags(input: str) -> list[str]:
    """The bags at a path: itself, or those in a directory (one level down), each by the path for `bag_layout`."""
    if not storage.isdir(input):
        return [input]
    here = storage.join(input, METADATA)
    if storage.exists(here):
        return [here]
    names = sorted(storage.listdir(input))
    below = [storage.join(input, name, METADATA) for name in names]
    found = [path for path in below if storage.exists(path)]
    return found + [storage.join(input, name) for name in names if name.endswith(ENDINGS)]


class McapFile:
    """An MCAP file, open for reading.

    Attributes:
      topics: the topics by name.
    """

    def __init__(self, path: str):
        with needs("ros", "reading ROS 2 bags needs mcap"):
            from mcap.reader import make_reader

        self._file = storage.open_read(path)
        try:
            self._reader = make_reader(self._file, validate_crcs=True)
            summary = None
            with contextlib.suppress(Exception):  # a file that was cut short ends with anything
                summary = self._reader.get_summary()
            if summary is None:
                raise DamagedBag(f"{path} has no summary at its end: was its recorder killed? {_RECOVER}")
        except BaseException:
            self.close()
            raise
        self._chunks, self._channels = summary.chunk_indexes, summary.channels
        self.topics: dict[str, Topic] = {}
        for channel in summary.channels.values():
            schema = summary.schemas.get(channel.schema_id)
            kind, text, language = (schema.name, schema.data.decode(), schema.encoding) if schema else ("", "", "")
            self.topics[channel.topic] = Topic(channel.topic, kind, text, language, channel.message_encoding)

    def messages(self, topics: Collection[str], start: int, stop: int) -> Iterator[Message]:
        """The messages of these topics with a log time in [start, stop)."""
        found = self._reader.iter_messages(topics, start, stop)
        for _, channel, message in found:
            yield Message(channel.topic, message.log_time, message.data)

    def times(self, topic: str) -> Array:
        """The log times of a topic's messages, int64."""
        if not self._chunks or not all(chunk.message_index_offsets for chunk in self._chunks):
            return np.array([message.time for message in self.messages((topic,), 0, EVER)], np.int64)
        found = [np.zeros(0, np.int64)]
        for chunk in self._chunks:
            for channel, offset in chunk.message_index_offsets.items():
                if self._channels[channel].topic == topic:
                    self._file.seek(offset + _RECORD_HEAD)
                    _, size = struct.unpack("<HI", self._file.read(6))
                    entries = np.frombuffer(self._file.read(size), "<u8").reshape(-1, 2)  # times and places
                    found.append(entries[:, 0].astype(np.int64))
        return np.concatenate(found)

    def close(self) -> None:
        self._file.close()


class SqliteFile:
    """A `.db3` file, rosbag2's SQLite storage, with the members of McapFile. It must be on a local disk."""

    def __init__(self, path: str):
        with needs("ros", "reading ROS 2 bags needs rosbags"):
            from rosbags.interfaces import MessageDefinitionFormat
            from rosbags.rosbag2 import Reader

        if storage.scheme(path) is not None:
            raise UsageError(f"cannot read {path}: .db3 files are read from local disks only; copy the bag first")
        if os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal"):
            raise DamagedBag(
                f"{path} was not closed: {path}-wal holds its last messages. Open it once with SQLite, on a copy of "
                f"both files: sqlite3 {shlex.quote(path)} 'PRAGMA wal_checkpoint(TRUNCATE)'"
            )
        self._path = path
        self._reader = Reader(path)
        self._reader.open()
        languages = {MessageDefinitionFormat.MSG: "ros2msg", MessageDefinitionFormat.IDL: "ros2idl"}
        self.topics = {
            topic.topic: Topic(
                topic.topic,
                topic.msgtype,
                topic.msgdef.data,
                languages.get(topic.msgdef.format, ""),
                topic.ext.serialization_format,
            )
            for topic in self._reader.connections
        }

    def messages(self, topics: Collection[str], start: int, stop: int) -> Iterator[Message]:
        connections = [one for one in self._reader.connections if one.topic in topics]
        if connections:  # rosbags takes none for all
            for connection, time, data in self._reader.messages(connections, start, stop):
                yield Message(connection.topic, time, data)

    def times(self, topic: str) -> Array:
        ids = [connection.id for connection in self._reader.connections if connection.topic == topic]
        query = f"SELECT timestamp FROM messages WHERE topic_id IN ({','.join('?' * len(ids))})"
        uri = f"file:{urllib.parse.quote(os.path.abspath(self._path))}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as base:
            return np.array([time for (time,) in base.execute(query, ids)], np.int64)

    def close(self) -> None:
        self._reader.close()


@contextlib.contextmanager
def _explain(path: str) -> Iterator[None]:
    """Turns what the libraries raise for a damaged file into DamagedBag."""
    try:
        yield
    except (DamagedBag, UsageError, ImportError, GeneratorExit):
        raise
    except Exception as error:
        hint = f"; {_RECOVER}" if path.endswith(".mcap") else ""
        raise DamagedBag(f"{path} cannot be read: {type(error).__name__}: {shorten(error, 300)}{hint}") from error


class Bag:
    """An open bag, as a context manager.

    Attributes:
      layout: its files.
      topics: its topics by name.
    """

    def __init__(self, layout: BagLayout):
        """
        Raises:
          OSError: a file is missing, or is not of a bag.
        """
        self.layout = layout
        self.topics: dict[str, Topic] = {}
        self._files: dict[str, McapFile | SqliteFile] = {}
        self._times: dict[str, Array] = {}
        try:
            for path in layout.files:
                if not storage.exists(path):
                    raise DamagedBag(f"{path} is missing, but {layout.path} names it")
                with _explain(path):
                    file: McapFile | SqliteFile = McapFile(path) if path.endswith(".mcap") else SqliteFile(path)
                self._files[path] = file
                for name, topic in file.topics.items():
                    if self.topics.setdefault(name, topic).type != topic.type:
                        raise DamagedBag(f"{path}: {name} is a {topic.type}, but elsewhere a {self.topics[name].type}")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Bag:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()

    def messages(self, topics: Collection[str], start: int = 0, stop: int = EVER) -> Iterator[Message]:
        """The messages of these topics with a log time in [start, stop). Raises DamagedBag."""
        import imagecodecs

        for path, file in self._files.items():
            with _explain(path):
                for message in file.messages(topics, start, stop):
                    if self.layout.is_compressed:
                        message = message._replace(data=bytes(imagecodecs.zstd_decode(message.data)))
                    yield message

    def times(self, topic: str) -> Array:
        """The log times of a topic's messages, int64, ascending. Raises DamagedBag."""
        if topic not in self._times:
            found = [np.zeros(0, np.int64)]
            for path, file in self._files.items():
                with _explain(path):
                    found.append(file.times(topic))
            self._times[topic] = np.sort(np.concatenate(found))
        return self._times[topic]

    def first(self, topic: str) -> Message | None:
        """The first message of a topic in the order of the files; None if there is none. Raises DamagedBag."""
        return next(self.messages((topic,)), None)
