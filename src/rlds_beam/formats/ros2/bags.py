"""A bag: a directory with metadata.yaml, or one `.mcap` or `.db3` file."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.checked_json import parse_yaml
from rlds_beam.errors import UsageError
from rlds_beam.formats.ros2.mcap import McapFile
from rlds_beam.formats.ros2.mcap_records import decompress, zstd_size
from rlds_beam.formats.ros2.messages import BagFile, DamagedBag, Message, Topic
from rlds_beam.formats.ros2.sqlite import SqliteFile
from rlds_beam.text import shorten
from rlds_beam.typing import Array

METADATA = "metadata.yaml"
ENDINGS = (".mcap", ".db3")
_KINDS = {".mcap": McapFile, ".db3": SqliteFile}


@dataclasses.dataclass(frozen=True)
class BagLayout:
    """The files of a bag.

    Attributes:
      path: its metadata.yaml, or its only file.
      files: the files with messages, in order.
      is_compressed: whether each message is compressed (zstd).
      distribution: the ROS distribution that wrote it; empty if unknown.
    """

    path: str
    files: tuple[str, ...]
    is_compressed: bool = False
    distribution: str = ""

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
    named = about.get("relative_file_paths") if isinstance(about, dict) else None
    if not isinstance(about, dict) or not isinstance(named, list) or not named:
        raise UsageError(f"{path} is not the metadata of a ROS 2 bag: it has no relative_file_paths")
    files = []
    for entry in named:
        parts = entry.split("/") if isinstance(entry, str) else []
        # before version 4, the paths begin with the name of the bag's directory
        if not parts or not all(map(naming.is_file_name, parts)) or len(parts) > 2:
            raise UsageError(f"{path} names {shorten(repr(entry), 80)}, which is not a file in its directory")
        if parts[-1].endswith((".zstd", ".zst")) or about.get("compression_mode", "") in ("file", "FILE"):
            raise UsageError(
                f"{storage.join(directory, parts[-1])} is compressed as a whole: decompress it (zstd -d), or convert "
                "the bag (ros2 bag convert)"
            )
        if not parts[-1].endswith(ENDINGS):
            raise UsageError(f"{path} names {parts[-1]}; --from=ros2 reads {' and '.join(ENDINGS)} files")
        files.append(storage.join(directory, parts[-1]))
    mode = str(about.get("compression_mode") or "").lower()
    if mode == "message" and about.get("compression_format") != "zstd":
        raise UsageError(f"{path}: messages are compressed as {shorten(repr(about.get('compression_format')), 40)}")
    return BagLayout(path, tuple(files), mode == "message", str(about.get("ros_distro") or ""))


class Bag:
    """An open bag, as a context manager.

    Attributes:
      layout: its files.
      topics: its topics by name.
      damage: why a part of it cannot be read; empty if it is intact.
    """

    def __init__(self, layout: BagLayout):
        """
        Raises:
          OSError: a file is missing, or is not of a bag.
        """
        self.layout = layout
        self._files: list[BagFile] = []
        try:
            for path in layout.files:
                if not storage.exists(path):
                    raise DamagedBag(f"{path} is missing, but {layout.path} names it")
                self._files.append(_KINDS["." + path.rpartition(".")[2]](path))
            self.topics = self._topics()
        except BaseException:
            self.close()
            raise
        self.damage = next((file.damage for file in self._files if file.damage), "")

    def __enter__(self) -> Bag:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files."""
        for file in self._files:
            file.close()

    def messages(self, topics: Collection[str], start: int = 0, stop: int = 1 << 63) -> Iterator[Message]:
        """The messages of these topics with a log time in [start, stop). Raises DamagedBag."""
        for file in self._files:
            found = file.messages(topics, start, stop)
            yield from map(self._decompress, found) if self.layout.is_compressed else found

    def times(self, topic: str) -> Array:
        """The log times of a topic's messages, int64, ascending. Raises DamagedBag."""
        found = np.concatenate([np.zeros(0, np.int64), *(file.times(topic) for file in self._files)])
        return np.sort(found, kind="stable")

    def last_time(self, topic: str, before: int) -> int | None:
        """The log time of a topic's last message before a log time. Raises DamagedBag."""
        times = [time for file in self._files if (time := file.last_time(topic, before)) is not None]
        return max(times, default=None)

    def first(self, topic: str) -> Message | None:
        """The first message of a topic in the order of the files; None if there is none. Raises DamagedBag."""
        return next(self.messages((topic,)), None)

    def _decompress(self, message: Message) -> Message:
        where = f"{self.layout.path}: a message of {message.topic}"
        size = zstd_size(message.data, where)
        return message._replace(data=decompress(message.data, "zstd", size, where))

    def _topics(self) -> dict[str, Topic]:
        topics: dict[str, Topic] = {}
        for file in self._files:
            for name, topic in file.topics.items():
                known = topics.get(name)
                if known is not None and known.type != topic.type:
                    raise DamagedBag(f"{file.path}: {name} is a {topic.type}, but elsewhere a {known.type}")
                counts = (known.total if known else 0, topic.total)
                count = None if None in counts else sum(count or 0 for count in counts)
                topics[name] = topic._replace(total=count)
        return topics


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
