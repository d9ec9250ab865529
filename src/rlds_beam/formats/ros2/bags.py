"""Bags: their files, topics, and messages. `mcap` reads `.mcap` files, rosbags reads `.db3` files."""

from __future__ import annotations

import contextlib
import os
import shlex
import struct
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.metadata import convert, parse_yaml
from rlds_beam.errors import RldsBeamError, UsageError, needs
from rlds_beam.text import shorten
from rlds_beam.typing import Array

METADATA = "metadata.yaml"
ENDINGS = (".mcap", ".db3")
EVER = (1 << 63) - 1
_RECORD_HEAD = 9  # bytes before the content of an MCAP record: its kind and length
_ZSTD = b"\x28\xb5\x2f\xfd"  # the start of a compressed message; others start with 0


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


def find_bags(input: str | Sequence[str]) -> list[str]:
    """The bags of an input (files, globs, directories of bags), each by its metadata.yaml or its only file.

    Raises:
      UsageError: a path has none.
    """
    bags: list[str] = []
    for path in storage.paths_in(input):
        if not storage.isdir(path):
            found = [file for file in storage.glob(path) if file.endswith((METADATA, *ENDINGS))]
        elif storage.exists(storage.join(path, METADATA)):
            found = [storage.join(path, METADATA)]
        else:
            names = sorted(storage.listdir(path))
            below = [storage.join(path, name, METADATA) for name in names]
            found = [file for file in below if storage.exists(file)]
            found += [storage.join(path, name) for name in names if name.endswith(ENDINGS)]
        if not found:
            raise UsageError(
                f"{path}: no such file or directory, or no {METADATA} or {' or '.join(ENDINGS)} file in it"
            )
        bags += found
    return list(dict.fromkeys(bags))


class _Information(msgspec.Struct):
    relative_file_paths: list[str]


class _Metadata(msgspec.Struct):
    rosbag2_bagfile_information: _Information


def bag_files(path: str) -> list[str]:
    """The files with messages, in order, of the bag at the path of its metadata.yaml, or of its only file.

    Raises:
      OSError: the metadata cannot be read, is damaged, or names files of another kind.
    """
    directory, name = storage.split(path)
    if name != METADATA:
        return [path]
    try:
        about = convert(parse_yaml(storage.read_text(path), path), _Metadata, path).rosbag2_bagfile_information
    except UsageError as error:
        raise OSError(str(error)) from error
    # before version 4, the paths begin with the name of the bag's directory
    names = [file.rpartition("/")[2] for file in about.relative_file_paths]
    if others := [name for name in names if not name.endswith(ENDINGS)]:
        raise OSError(
            f"{path} names {shorten(others[0], 80)}, but --from=ros2 reads {' and '.join(ENDINGS)} files: "
            "convert the bag (ros2 bag convert), or decompress its files (zstd -d)"
        )
    return [storage.join(directory, name) for name in names]


class _McapFile:
    """An MCAP file, open for reading until `stack` closes.

    Attributes:
      topics: the topics by name.
    """

    def __init__(self, path: str, stack: contextlib.ExitStack):
        with needs("ros", "reading ROS 2 bags needs mcap"):
            from mcap.reader import make_reader

        self._file = stack.enter_context(storage.open_read(path))
        self._reader = make_reader(self._file, validate_crcs=True)
        summary = self._reader.get_summary()
        if summary is None:
            raise ValueError("no summary at its end")
        self._chunks, self._channels = summary.chunk_indexes, summary.channels
        self.topics: dict[str, Topic] = {}
        for channel in summary.channels.values():
            schema = summary.schemas.get(channel.schema_id)
            about = (schema.name, schema.data.decode(errors="replace"), schema.encoding) if schema else ("", "", "")
            self.topics[channel.topic] = Topic(channel.topic, *about, channel.message_encoding)

    def messages(self, topics: Collection[str], start: int, stop: int) -> Iterator[tuple[str, int, bytes]]:
        for _, channel, message in self._reader.iter_messages(topics, start, stop):
            yield channel.topic, message.log_time, message.data

    def times(self, topic: str) -> Array:
        if not self._chunks or not all(chunk.message_index_offsets for chunk in self._chunks):
            return np.array([time for _, time, _ in self.messages((topic,), 0, EVER)], np.int64)
        found = [np.zeros(0, np.int64)]
        for chunk in self._chunks:
            for channel, offset in chunk.message_index_offsets.items():
                if self._channels[channel].topic == topic:
                    self._file.seek(offset + _RECORD_HEAD)
                    _, size = struct.unpack("<HI", self._file.read(6))
                    entries = np.frombuffer(self._file.read(size), "<u8").reshape(-1, 2)  # times and places
                    found.append(entries[:, 0].astype(np.int64))
        return np.concatenate(found)


class _SqliteFile:
    """A `.db3` file, rosbag2's SQLite storage, with the members of _McapFile. It must be on a local disk."""

    def __init__(self, path: str, stack: contextlib.ExitStack):
        with needs("ros", "reading ROS 2 bags needs rosbags"):
            from rosbags.interfaces import MessageDefinitionFormat
            from rosbags.rosbag2 import Reader

        if storage.scheme(path) is not None:
            raise OSError(".db3 files are read from local disks only; copy the bag first")
        if os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal"):
            raise OSError(
                "it was not closed, and its -wal file holds its last messages. Open it once with SQLite, on a copy of "
                f"both files: sqlite3 {shlex.quote(path)} 'PRAGMA wal_checkpoint(TRUNCATE)'"
            )
        self._reader = stack.enter_context(Reader(path))
        self.topics: dict[str, Topic] = {}
        for one in self._reader.connections:
            language = "ros2idl" if one.msgdef.format == MessageDefinitionFormat.IDL else "ros2msg"
            encoding = one.ext.serialization_format
            self.topics[one.topic] = Topic(one.topic, one.msgtype, one.msgdef.data, language, encoding)

    def messages(self, topics: Collection[str], start: int, stop: int) -> Iterator[tuple[str, int, bytes]]:
        connections = [one for one in self._reader.connections if one.topic in topics]
        if connections:  # rosbags takes none for all
            for connection, time, data in self._reader.messages(connections, start, stop):
                yield connection.topic, time, data

    def times(self, topic: str) -> Array:
        query = "SELECT timestamp FROM messages WHERE topic_id IN (SELECT id FROM topics WHERE name = ?)"
        return np.array([time for (time,) in self._reader.storage.dbconn.execute(query, (topic,))], np.int64)


@contextlib.contextmanager
def _explain(path: str) -> Iterator[None]:
    """Turns what the libraries raise for a damaged file into an OSError that names it."""
    try:
        yield
    except RldsBeamError:
        raise
    except OSError as error:
        raise OSError(f"{path} cannot be read: {shorten(error, 500)}") from error
    except Exception as error:
        hint = " (`mcap recover` saves what is intact)" if path.endswith(".mcap") else ""
        cause = f"{type(error).__name__}: {shorten(error, 300)}"
        raise OSError(f"{path} is damaged, or its recorder was killed{hint}: {cause}") from error


class Bag:
    """An open bag, as a context manager.

    Attributes:
      path: its metadata.yaml, or its only file.
      files: its files with messages.
      topics: its topics by name.
    """

    def __init__(self, path: str):
        """
        Raises:
          OSError: a file is missing, or is not of a bag.
        """
        self.path, self.files = path, bag_files(path)
        self.topics: dict[str, Topic] = {}
        self._readers: dict[str, _McapFile | _SqliteFile] = {}
        self._times: dict[str, Array] = {}
        with contextlib.ExitStack() as stack:
            for file in self.files:
                with _explain(file):
                    self._readers[file] = _McapFile(file, stack) if file.endswith(".mcap") else _SqliteFile(file, stack)
                for name, topic in self._readers[file].topics.items():
                    if self.topics.setdefault(name, topic).type != topic.type:
                        raise OSError(f"{file}: {name} is a {topic.type}, but elsewhere a {self.topics[name].type}")
            self._opened = stack.pop_all()

    def __enter__(self) -> Bag:
        return self

    def __exit__(self, *exception: object) -> None:
        self._opened.close()

    def messages(self, topics: Collection[str], start: int = 0, stop: int = EVER) -> Iterator[tuple[str, int, bytes]]:
        """The messages of these topics with a log time in [start, stop): topic, log time, and serialized bytes.

        They are in the order of the files, and of log times in each. Raises OSError if a file is damaged.
        """
        import imagecodecs

        for file, reader in self._readers.items():
            with _explain(file):
                for topic, time, data in reader.messages(topics, start, stop):
                    yield topic, time, bytes(imagecodecs.zstd_decode(data)) if data[:4] == _ZSTD else data

    def times(self, topic: str) -> Array:
        """The log times of a topic's messages, int64 nanoseconds, ascending. Raises OSError as `messages`."""
        if topic not in self._times:
            found = [np.zeros(0, np.int64)]
            for file, reader in self._readers.items():
                with _explain(file):
                    found.append(reader.times(topic))
            self._times[topic] = np.sort(np.concatenate(found))
        return self._times[topic]

    def first(self, topic: str) -> bytes | None:
        """The first message of a topic in the order of `messages`; None if there is none."""
        return next((data for _, _, data in self.messages((topic,))), None)
