"""Reads single values out of serialized messages (CDR) by a path: `pose.position.x`, `position`, `transforms[0].child`.

Only what leads to a value is read; images are never copied as a whole. Lengths in a message are compared with its
size before anything is allocated.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rlds_beam.errors import UsageError
from rlds_beam.formats.ros2.definitions import Definitions, Fields
from rlds_beam.text import did_you_mean

Array: TypeAlias = "np.ndarray[Any, Any]"

_DTYPES = {
    "bool": "bool", "byte": "uint8", "octet": "uint8", "char": "uint8", "int8": "int8", "uint8": "uint8",
    "int16": "int16", "uint16": "uint16", "int32": "int32", "uint32": "uint32", "int64": "int64", "uint64": "uint64",
    "float32": "float32", "float64": "float64",
}  # fmt: skip
_BASE, _NAME, _ARRAY, _SEQUENCE = 1, 2, 3, 4
_DEPTH = 32
_STEP = re.compile(r"([A-Za-z_]\w*)(?:\[(\d{1,6})\])?")
_LAYOUTS = {b"\x00\x00": ">", b"\x00\x01": "<"}


class BadMessage(ValueError):
    """A message's bytes do not match its type."""


class Cursor:
    """A position in a serialized message."""

    __slots__ = ("at", "data", "order")

    def __init__(self, data: memoryview):
        order = _LAYOUTS.get(bytes(data[:2]))
        if order is None or len(data) < 4:
            raise BadMessage("its bytes are not plain CDR")
        self.data, self.at, self.order = data[4:], 0, order

    def number(self, form: str, size: int) -> Any:
        """A number, with its alignment."""
        self.at += -self.at % size
        try:
            (value,) = struct.unpack_from(self.order + form, self.data, self.at)
        except struct.error:
            raise BadMessage("it ends early") from None
        self.at += size
        return value

    def skip(self, size: int) -> None:
        """Skips bytes."""
        self.at += size
        if self.at > len(self.data):
            raise BadMessage("it ends early")

    def block(self, size: int) -> memoryview:
        """The next bytes."""
        start = self.at
        self.skip(size)
        return self.data[start : self.at]

    def text(self) -> bytes:
        """A string, without the NUL at its end."""
        return bytes(self.block(self.number("I", 4))).removesuffix(b"\0")

    def length(self) -> int:
        """The length of a sequence whose elements take at least a byte each."""
        size: int = self.number("I", 4)
        if size > len(self.data) - self.at:
            raise BadMessage(f"it claims a list of {size:,} values, but has {len(self.data):,} bytes")
        return size

    def array(self, dtype: np.dtype[Any], count: int) -> Array:
        """Numbers of one type, as native ones."""
        if count:
            self.at += -self.at % dtype.itemsize
        block = self.block(count * dtype.itemsize)
        return np.frombuffer(block, dtype.newbyteorder(self.order)).astype(dtype)  # type: ignore[arg-type]


class Step(NamedTuple):
    """A step of a path: the fields before it, its own type, and the element to take, if any."""

    before: Fields
    kind: Any
    element: int | None


class ValuePath(NamedTuple):
    """Where a value is in the messages of a type.

    Attributes:
      text: the path as given.
      steps: what leads to it.
      dtype: the dtype of its numbers; `string` for text; `strings` for a list of them.
      is_scalar: whether it is one value, not a list.
    """

    text: str
    steps: tuple[Step, ...]
    dtype: str
    is_scalar: bool


class Reader:
    """Reads values of messages of known types."""

    def __init__(self, definitions: Definitions):
        self._definitions = definitions

    def fields(self, kind: str) -> Fields:
        """The fields of a type. Raises UsageError if it is unknown."""
        if kind not in self._definitions:
            raise UsageError(
                f"the message type {kind} is unknown: the bag does not define it, and it is in no ROS distribution; "
                "convert the bag to MCAP on a machine that has the type (ros2 bag convert)"
            )
        return self._definitions[kind]

    def find(self, kind: str, path: str) -> ValuePath:
        """Finds a value in a type.

        Raises:
          UsageError: the type has no such field, or the field is neither numbers nor text.
        """
        steps: list[Step] = []
        here: Any = (_NAME, kind)
        for part in path.split("."):
            match = _STEP.fullmatch(part)
            if match is None:
                raise UsageError(f"{path!r} is not the path of a field; write for example pose.position.x")
            if here[0] != _NAME:
                raise UsageError(f"{kind} has no field {path}: {part} is not in a message")
            fields = self.fields(here[1])
            names = [name for name, _ in fields]
            if match[1] not in names:
                hint = did_you_mean(match[1], names, otherwise=f"it has {', '.join(names)}")
                raise UsageError(f"{here[1]} has no field {match[1]}{hint}")
            index = names.index(match[1])
            own = fields[index][1]
            here, element = own, None
            if match[2] is not None:
                if own[0] not in (_ARRAY, _SEQUENCE):
                    raise UsageError(f"{kind}: {match[1]} is not a list, so it has no element {match[2]}")
                here, element = own[1][0], int(match[2])
            steps.append(Step(fields[:index], own, element))
        dtype, scalar = self._type_of(here, path, kind)
        return ValuePath(path, tuple(steps), dtype, scalar)

    def read(self, path: ValuePath, data: memoryview) -> Any:
        """The value in a message: an array (of shape () or (n,)), bytes, or a list of bytes.

        Raises:
          BadMessage: the message does not match its type.
          IndexError: a list in it has no such element.
        """
        cursor = Cursor(data)
        for step in path.steps:
            for _, kind in step.before:
                self._skip(cursor, kind, 0)
            here = step.kind
            if step.element is not None:
                here = here[1][0]
                count = cursor.length() if step.kind[0] == _SEQUENCE else step.kind[1][1]
                if step.element >= count:
                    raise IndexError(f"{path.text}: the list has {count} elements")
                for _ in range(step.element):
                    self._skip(cursor, here, 0)
        return self._value(cursor, here, path.dtype)

    def _value(self, cursor: Cursor, kind: Any, dtype: str) -> Any:
        if dtype == "string":
            return cursor.text()
        if dtype == "strings":
            count = cursor.length() if kind[0] == _SEQUENCE else kind[1][1]
            return [cursor.text() for _ in range(count)]
        form = np.dtype(dtype)
        if kind[0] == _BASE:
            return cursor.array(form, 1)[0]
        if kind[0] == _NAME:
            return np.concatenate([np.atleast_1d(self._value(cursor, one, dtype)) for _, one in self.fields(kind[1])])
        count = cursor.number("I", 4) if kind[0] == _SEQUENCE else kind[1][1]
        return cursor.array(form, count)

    def _type_of(self, kind: Any, path: str, owner: str, depth: int = 0) -> tuple[str, bool]:
        """The dtype of a value, and whether it is one value."""
        if kind[0] == _BASE:
            return self._base(kind[1][0], path, owner), True
        if kind[0] in (_ARRAY, _SEQUENCE):
            if kind[1][0][0] != _BASE:
                raise UsageError(f"{owner}: {path} is a list of messages; name one: {path}[0]")
            dtype = self._base(kind[1][0][1][0], path, owner)
            return ("strings" if dtype == "string" else dtype), False
        if depth > _DEPTH:
            raise UsageError(f"{owner}: {path} is nested more than {_DEPTH} levels deep")
        fields = self.fields(kind[1])
        types = {self._type_of(one, f"{path}.{name}", owner, depth + 1)[0] for name, one in fields}
        if len(types) != 1 or types & {"string", "strings"} or any(one[0] == _SEQUENCE for _, one in fields):
            inside = ", ".join(f"{path}.{name}" for name, _ in fields)
            raise UsageError(f"{owner}: {path} is a {kind[1]}; name what to take of it: {inside}")
        return types.pop(), False

    @staticmethod
    def _base(name: str, path: str, owner: str) -> str:
        if name != "string" and name not in _DTYPES:
            raise UsageError(f"{owner}: {path} has the type {name}, which cannot be read")
        return _DTYPES.get(name, name)

    def _skip(self, cursor: Cursor, kind: Any, depth: int) -> None:
        if depth > _DEPTH:
            raise BadMessage(f"its type is nested more than {_DEPTH} levels deep")
        if kind[0] == _BASE:
            self._skip_base(cursor, kind[1][0], 1)
        elif kind[0] == _NAME:
            for _, one in self.fields(kind[1]):
                self._skip(cursor, one, depth + 1)
        else:
            count = cursor.length() if kind[0] == _SEQUENCE else kind[1][1]
            element = kind[1][0]
            if element[0] == _BASE:
                self._skip_base(cursor, element[1][0], count)
                return
            for _ in range(count):
                before = cursor.at
                self._skip(cursor, element, depth + 1)
                if cursor.at == before:  # a type without fields would take no time limit
                    raise BadMessage("its type has elements of no bytes")

    @staticmethod
    def _skip_base(cursor: Cursor, name: str, count: int) -> None:
        if name == "string":
            for _ in range(count):
                cursor.skip(cursor.number("I", 4))
        elif name not in _DTYPES:
            raise BadMessage(f"it has a field of type {name}")
        elif count:
            size = np.dtype(_DTYPES[name]).itemsize
            cursor.skip(-cursor.at % size + count * size)


def concatenated(values: Sequence[Array]) -> Array:
    """Numbers of several fields as one vector."""
    return np.concatenate([np.atleast_1d(value) for value in values])
