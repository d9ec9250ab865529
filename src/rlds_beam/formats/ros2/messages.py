"""Message types and values in messages: `pose.position.x`, `position`, `transforms[0].child_frame_id`.

rosbags parses the definitions of types and decodes messages with code that it generates from them. That code holds only
names that its parser accepted.
"""

from __future__ import annotations

import functools
import re
import struct
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rlds_beam.errors import UsageError, needs
from rlds_beam.formats.ros2.bags import Topic
from rlds_beam.text import did_you_mean, shorten
from rlds_beam.typing import Array

_DTYPES = {"byte": "uint8", "octet": "uint8", "char": "uint8"}
_UNREADABLE = ("float128", "wchar", "wstring", "fixed")
_STEP = re.compile(r"([A-Za-z_]\w*)(?:\[(\d{1,6})\])?")
_IDL_FILE = "=" * 80 + "\nIDL: "
_REGISTERING = threading.Lock()  # rosbags' register() is not for several threads


class BadMessage(ValueError):
    """A message's bytes do not match its type."""


class ValuePath(NamedTuple):
    """The path of a value in the messages of a type.

    Attributes:
      text: the path as given.
      leaves: the names and indices that lead to each number or list that it consists of.
      dtype: the dtype of its numbers; `string` for text; `strings` for a list of them.
      is_scalar: whether it is one value, not a list.
    """

    text: str
    leaves: tuple[tuple[str | int, ...], ...]
    dtype: str
    is_scalar: bool

    def read(self, message: Any) -> Any:
        """The value in a decoded message: an array (of shape () or (n,)), bytes, or a list of bytes.

        Raises:
          BadMessage: a list in it has no such element.
        """
        values = []
        for leaf in self.leaves:
            value = message
            for step in leaf:
                if isinstance(step, int) and step >= len(value):
                    raise BadMessage(f"{self.text}: the list has {len(value)} elements")
                value = value[step] if isinstance(step, int) else getattr(value, step)
            values.append(value)
        if self.dtype == "string":
            return values[0].encode()
        if self.dtype == "strings":
            return [text.encode() for text in values[0]]
        if self.is_scalar:
            return np.dtype(self.dtype).type(values[0])
        return concatenate([np.asarray(value, self.dtype) for value in values])


def concatenate(values: list[Array]) -> Array:
    """Numbers of several fields as one vector."""
    return np.atleast_1d(values[0]) if len(values) == 1 else np.concatenate([np.atleast_1d(value) for value in values])


class MessageType:
    """The type of a topic's messages.

    Attributes:
      topic: the topic.
      name: the type's name.
    """

    def __init__(self, topic: Topic, store: Any):
        self.topic, self.name, self._store = topic.name, topic.type, store
        self._paths: dict[str, ValuePath] = {}

    @property
    def has_header(self) -> bool:
        """Whether the messages begin with a std_msgs/Header."""
        fields = self.fields()
        return bool(fields) and next(iter(fields)) == "header" and fields["header"][1] == "std_msgs/msg/Header"

    def fields(self, kind: str = "") -> dict[str, Any]:
        """The fields of this type, or of one inside it, with rosbags' description of each. Raises UsageError."""
        kind = kind or self.name
        if kind not in self._store.fielddefs:
            raise UsageError(
                f"the message type {kind} is unknown: the bag does not define it, and it is none of ROS's own; "
                "convert the bag to MCAP on a machine that has the type (ros2 bag convert)"
            )
        return dict(self._store.fielddefs[kind][1])

    def decode(self, data: bytes) -> Any:
        """A message's bytes as an object. Raises BadMessage."""
        try:
            return self._store.deserialize_cdr(memoryview(data), self.name)
        except Exception as error:
            raise BadMessage(f"not a {self.name}: {shorten(error, 200)}") from error

    def find(self, path: str) -> ValuePath:
        """Finds a value in the type.

        Raises:
          UsageError: there is no such field, or it is neither numbers nor text.
        """
        if path not in self._paths:
            try:
                self._paths[path] = self._find(path)
            except UsageError as error:
                raise UsageError(f"{self.topic}: {error}") from error
        return self._paths[path]

    def _find(self, path: str) -> ValuePath:
        from rosbags.interfaces import Nodetype
        from rosbags.typesys.base import normalize_fieldname

        steps: list[str | int] = []
        here: Any = (Nodetype.NAME, self.name)
        for text in path.split("."):
            match = _STEP.fullmatch(text)
            fields = self.fields(here[1]) if here[0] == Nodetype.NAME else {}
            if match is None or match[1] not in fields:
                owner = here[1] if here[0] == Nodetype.NAME else "a number, text, or list"
                hint = did_you_mean(text, fields, otherwise=shorten(f"it has {', '.join(fields) or 'none'}"))
                raise UsageError(f"{path} is not the path of a value: {owner} has no field {text}{hint}")
            here = fields[match[1]]
            steps.append(normalize_fieldname(match[1]))
            if match[2] is not None:
                if here[0] not in (Nodetype.ARRAY, Nodetype.SEQUENCE):
                    raise UsageError(f"{self.name}: {match[1]} is not a list, so it has no element {match[2]}")
                here = here[1][0]
                steps.append(int(match[2]))
        leaves = [*self._leaves(here, tuple(steps))]
        dtypes = {dtype for _, dtype in leaves}
        if here[0] == Nodetype.NAME and (len(dtypes) != 1 or not dtypes.isdisjoint({"string", "strings", ""})):
            inside = shorten(", ".join(f"{path}.{name}" for name in self.fields(here[1])))
            raise UsageError(f"{self.name}: {path} is a {here[1]}; name what to take of it: {inside}")
        (dtype,) = dtypes
        if not dtype:
            raise UsageError(f"{self.name}: {path} cannot be read; of a list of messages, name one: {path}[0]")
        return ValuePath(path, tuple(steps for steps, _ in leaves), dtype, here[0] == Nodetype.BASE)

    def _leaves(self, here: Any, steps: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """The numbers, texts, and lists of them in a value, with their dtypes; empty for what cannot be read."""
        from rosbags.interfaces import Nodetype
        from rosbags.typesys.base import normalize_fieldname

        if here[0] == Nodetype.NAME:
            for name, inner in self.fields(here[1]).items():
                # a list of varying length in a message is not part of a vector
                found = self._leaves(inner, (*steps, normalize_fieldname(name)))
                yield from found if inner[0] != Nodetype.SEQUENCE else [((*steps, name), "")]
            return
        base = here if here[0] == Nodetype.BASE else here[1][0]
        if base[0] != Nodetype.BASE or base[1][0] in _UNREADABLE:
            yield steps, ""
            return
        name = base[1][0]
        dtype = ("string" if here is base else "strings") if name == "string" else _DTYPES.get(name, name)
        yield steps, dtype


@functools.lru_cache(maxsize=256)
def message_type(topic: Topic) -> MessageType:
    """The type of a topic's messages: as the bag defines it, otherwise as the latest ROS 2 distribution does.

    Raises:
      UsageError: the definition cannot be parsed, or is too large; or the messages are not serialized as CDR.
    """
    if topic.encoding != "cdr":
        raise UsageError(f"{topic.name} is serialized as {topic.encoding!r}, not as cdr")
    with needs("ros", "reading ROS 2 bags needs rosbags"):
        from rosbags.typesys import Stores, get_typestore

    if topic.definition:
        return MessageType(topic, _defined_types(topic.type, topic.language, topic.definition))
    return MessageType(topic, get_typestore(Stores.LATEST))


@functools.lru_cache(maxsize=256)
def _defined_types(kind: str, language: str, text: str) -> Any:
    """rosbags' store of the types in a definition."""
    from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

    types: dict[str, Any] = {}
    try:
        if language == "ros2msg":
            types.update(get_types_from_msg(text, kind))
        else:
            for part in text.removeprefix(_IDL_FILE).split(_IDL_FILE):
                types.update(get_types_from_idl(part.partition("\n")[2] if text.startswith(_IDL_FILE) else part))
        store = get_typestore(Stores.EMPTY)
        with _REGISTERING:
            store.register(types)
        store.get_msgdef(kind)
    except Exception as error:
        raise UsageError(
            f"the definition of {kind} cannot be read: {type(error).__name__}: {shorten(error, 200)}"
        ) from error
    return store


def read_stamp(data: bytes) -> int | None:
    """The stamp of a message that begins with a std_msgs/Header, in nanoseconds; None if there is none."""
    if len(data) < 12:
        raise BadMessage("it ends early")
    seconds, nanoseconds = struct.unpack_from("<iI" if data[1] else ">iI", data, 4)
    stamp = int(seconds) * 1_000_000_000 + int(nanoseconds)
    return stamp if stamp > 0 else None
