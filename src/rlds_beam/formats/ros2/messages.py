"""What the storages of bags have in common: topics, messages, and the interface of a file."""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterator
from typing import NamedTuple

from rlds_beam.typing import Array

MAX_BYTES = 256 << 20
"""Maximum bytes of a message, and of an uncompressed chunk of messages."""

MAX_EPISODE_BYTES = 4 << 30
"""Maximum bytes of an episode's messages, and of a column of its values."""


class DamagedBag(OSError):
    """Messages of a bag cannot be read. The text says where and why."""


class Topic(NamedTuple):
    """A topic in a file.

    Attributes:
      name: for example `/joint_states`.
      type: the message type, `sensor_msgs/msg/JointState`.
      total: the number of messages; None if unknown.
      definition: the text of the type's definition as stored in the file; empty if there is none.
      language: the language of the definition: `ros2msg` or `ros2idl`.
      encoding: how messages are serialized; only `cdr` is supported.
    """

    name: str
    type: str
    total: int | None
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
    data: memoryview


class BagFile(abc.ABC):
    """A file of a bag, open for reading.

    Attributes:
      path: the path of the file.
      topics: the topics by name.
      damage: why the rest of the file cannot be read; empty if it is intact.
    """

    path: str
    topics: dict[str, Topic]
    damage: str = ""

    @abc.abstractmethod
    def messages(self, topics: Collection[str], start: int, stop: int) -> Iterator[Message]:
        """The messages of these topics with a log time in [start, stop), in the order of the file.

        Raises:
          DamagedBag: a part of the file that holds such messages is damaged.
        """

    @abc.abstractmethod
    def times(self, topic: str) -> Array:
        """The log times of a topic's messages, int64, in the order of the file. Raises DamagedBag."""

    @abc.abstractmethod
    def last_time(self, topic: str, before: int) -> int | None:
        """The log time of a topic's last message before a log time. Raises DamagedBag."""

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the file."""
