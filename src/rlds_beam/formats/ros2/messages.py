"""Topics, messages, the definitions of their types, and the interface of a bag's files.

Only rosbags' parser is used. Its generated classes are not: they would execute code made from a stranger's text.
"""

from __future__ import annotations

import abc
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from rlds_beam.errors import UsageError, needs
from rlds_beam.text import did_you_mean, shorten
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


Fields: TypeAlias = "list[tuple[str, Any]]"
"""The fields of a type: names, and rosbags' description of each type."""

Definitions: TypeAlias = "Mapping[str, Fields]"
"""The fields of each message type."""

_MAX_DEFINITION_CHARACTERS = 1 << 20
"""Maximum characters of a definition, with its comments."""
_MAX_PARSED = 64 << 10
"""Maximum characters of a definition without comments; the parser takes up to 30 microseconds for each."""
_MAX_PARSED_OF_BAG = 256 << 10
_MAX_ARRAY = (1 << 32) - 1
_IDL = ("ros2idl", "omgidl")
_RULE = "=" * 80 + "\n"
_SERVICE = re.compile(r"^---[ \t]*$\n?", re.MULTILINE)
"""Between the request and the response of a service."""
_NOTHING = re.compile(r"^[ \t]*(?:#[^\n]*)?\n", re.MULTILINE)
"""Lines of comments, and empty ones."""
_IDL_TOKENS = re.compile(
    r'(?P<comment>(?://|#)[^\n]*|/\*.*?(?:\*/|\Z))|(?P<text>"(?:\\.|[^"\\])*(?:"|\\?\Z))|(?P<annotation>@\w+\s*\(?)|[^"@/()#]+|.',
    re.DOTALL,
)
_COMPUTED = re.compile(r"[(*]|<<")
"""Expressions that rosbags computes: nested ones take exponential time, products and shifts take any memory."""


def distributions() -> list[str]:
    """The names of the ROS 2 distributions whose types are known: `humble`."""
    with needs("ros", "reading ROS 2 bags needs rosbags"):
        from rosbags.typesys import Stores

    return [store.value.removeprefix("ros2_") for store in Stores if store.value.startswith("ros2_")]


@functools.cache
def of_distribution(name: str) -> Definitions:
    """The types of a ROS 2 distribution, or of the latest one if the name is empty.

    Raises:
      UsageError: there is no such distribution.
    """
    with needs("ros", "reading ROS 2 bags needs rosbags"):
        from rosbags.typesys import Stores, get_typestore
    if name and name not in distributions():
        hint = did_you_mean(name, distributions(), otherwise=f"known: {', '.join(distributions())}")
        raise UsageError(f"--ros_distro={name}: no such ROS 2 distribution{hint}")
    store = get_typestore(Stores(f"ros2_{name}" if name else "latest"))
    return {kind: list(fields) for kind, (_, fields) in store.fielddefs.items()}


def find_definitions(topics: Iterable[Topic], distribution: str, recorded: str) -> Definitions:
    """The types of these topics: as the bag defines them, otherwise as a distribution does.

    Args:
      distribution: the distribution that the user chose; empty for the `recorded` one.
      recorded: the one that wrote the bag by its metadata, which may be anything.
    """
    chosen = distribution or (recorded if recorded in distributions() else "")
    known = dict(of_distribution(chosen))
    texts = dict.fromkeys((topic.type, topic.language, topic.definition) for topic in topics if topic.definition)
    if sum(len(_essence(*text)) for text in texts) > _MAX_PARSED_OF_BAG:
        raise UsageError(f"the definitions of its types have more than {_MAX_PARSED_OF_BAG:,} characters")
    for text in texts:
        known.update(_parse(*text))
    return known


@functools.lru_cache(maxsize=256)
def _essence(kind: str, language: str, text: str) -> str:
    """A definition without comments and annotations. Raises UsageError if the parser may not be given it."""
    if len(text) > _MAX_DEFINITION_CHARACTERS:
        raise UsageError(f"the definition of {kind} has {len(text):,} characters")
    if language == "ros2msg":
        text = _NOTHING.sub("", text)
    elif language in _IDL:
        text = _plain_idl(kind, text)
    if len(text) > _MAX_PARSED:
        raise UsageError(f"the definition of {kind} has {len(text):,} characters without its comments")
    return text


def _plain_idl(kind: str, text: str) -> str:
    """IDL without comments, annotations, and includes. Raises UsageError if it computes a value."""
    kept, depth = [], 0
    for token in _IDL_TOKENS.finditer(text):
        if depth:
            depth += (token[0] == "(") - (token[0] == ")")
        elif token["annotation"]:
            depth = token[0].endswith("(")
        elif token["comment"]:
            kept.append(" ")
        elif not token["text"] and (computed := _COMPUTED.search(token[0])):
            raise UsageError(f"the definition of {kind} computes a value ({computed[0]}), which is not supported")
        else:
            kept.append(token[0])
    return "".join(kept)


@functools.lru_cache(maxsize=256)
def _parse(kind: str, language: str, text: str) -> Definitions:
    """The types that a definition contains. Raises UsageError if it cannot be parsed."""
    from rosbags.interfaces import Nodetype
    from rosbags.typesys import get_types_from_idl, get_types_from_msg

    text = _essence(kind, language, text)
    types: dict[str, Any] = {}
    try:
        if language == "ros2msg" and kind.endswith("_Event") and _SERVICE.search(text):
            types.update(_service_event(kind, text))
        elif language == "ros2msg":
            types.update(get_types_from_msg(text, kind))
        elif language in _IDL:
            parts = text.split(_RULE)[1:] if text.startswith(f"{_RULE}IDL: ") else [text]
            for part in parts:
                types.update(get_types_from_idl(part.partition("\n")[2] if part.startswith("IDL: ") else part))
        else:
            raise UsageError(f"{kind} is defined in {shorten(language, 40)!r}; supported: ros2msg, ros2idl")
    except UsageError:
        raise
    except Exception as error:  # the parser meets a stranger's text
        raise UsageError(f"the definition of {kind} cannot be read: {shorten(error)}") from error
    definitions = {name: list(fields) for name, (_, fields) in types.items()}
    for field, (node, about) in (field for fields in definitions.values() for field in fields):
        if node == Nodetype.ARRAY and not 0 <= about[1] <= _MAX_ARRAY:
            raise UsageError(f"the definition of {kind} cannot be read: {field} has {shorten(about[1])} elements")
    return definitions


def _service_event(kind: str, text: str) -> dict[str, Any]:
    """The types of a service's events, which rosbag2 stores as the text of the service."""
    from rosbags.interfaces import Nodetype
    from rosbags.typesys import get_types_from_msg

    own, *others = text.split(_RULE)
    service = f"{kind.split('/')[0]}/msg/{kind.split('/')[-1].removesuffix('_Event')}"  # rosbags' parser knows only msg
    types: dict[str, Any] = {}
    fields: list[Any] = [("info", (Nodetype.NAME, "service_msgs/msg/ServiceEventInfo"))]
    for name, part in zip(("Request", "Response"), _SERVICE.split(own, maxsplit=1), strict=True):
        # ROS gives a message without fields one of a byte
        definition = _RULE.join([part if part.strip() else "uint8 structure_needs_at_least_one_member\n", *others])
        types.update(get_types_from_msg(definition, f"{service}_{name}"))
        fields.append((name.lower(), (Nodetype.SEQUENCE, ((Nodetype.NAME, f"{service}_{name}"), 1))))
    types[kind] = ([], fields)
    return types
