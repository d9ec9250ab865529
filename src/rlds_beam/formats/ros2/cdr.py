"""Reads single values out of serialized messages (CDR) by a path: `pose.position.x`, `position`, `transforms[0].child`.

Only what leads to a value is read; images are never copied as a whole. Lengths in a message are compared with its
size before anything is allocated. The definitions of types are untrusted: a value of a fixed size is skipped at once,
whatever it is made of, and the others take at least 4 bytes each.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rlds_beam.errors import UsageError
from rlds_beam.formats.ros2.messages import Definitions, Fields
from rlds_beam.text import did_you_mean, shorten
from rlds_beam.typing import Array

_DTYPES = {
    "bool": "bool",
    "byte": "uint8",
    "octet": "uint8",
    "char": "uint8",
    "int8": "int8",
    "uint8": "uint8",
    "int16": "int16",
    "uint16": "uint16",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "float32": "float32",
    "float64": "float64",
}
_BASE, _NAME, _ARRAY, _SEQUENCE = 1, 2, 3, 4
_MAX_DEPTH = 32
_MAX_VALUES = 300_000
"""Maximum number of texts, sequences, and messages that are skipped or read one by one in a message."""
_STEP = re.compile(r"([A-Za-z_]\w*)(?:\[(\d{1,6})\])?")
_ORDERS = {b"\x00\x00": ">", b"\x00\x01": "<"}
_LENGTHS = {order: struct.Struct(f"{order}I").unpack_from for order in _ORDERS.values()}
"""What reads the length of a text, by the order of bytes."""

Sizes: TypeAlias = "tuple[int, ...]"
"""The bytes that values of a fixed size take, with their alignment, by their position modulo 8."""

_NO_BYTES: Sizes = (0,) * 8
_SIZES: Mapping[str, Sizes] = {
    dtype: tuple(-at % size + size for at in range(8))
    for dtype, size in ((dtype, np.dtype(dtype).itemsize) for dtype in _DTYPES.values())
}


class BadMessage(ValueError):
    """A message's bytes do not match its type."""


class Cursor:
    """A position in a serialized message."""

    __slots__ = ("_values_left", "at", "data", "order")

    def __init__(self, data: memoryview):
        order = _ORDERS.get(bytes(data[:2]))
        if order is None or len(data) < 4:
            raise BadMessage("its bytes are not plain CDR")
        self.data, self.at, self.order, self._values_left = data[4:], 0, order, _MAX_VALUES

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
        return self._texts(1)[0]

    def texts(self, count: int) -> list[bytes]:
        """Strings."""
        self._spend(count)
        return self._texts(count)

    def _texts(self, count: int) -> list[bytes]:
        texts = [bytes(self.data[start:stop]) for start, stop in self._pass_texts(count)]
        if any(text and text[-1] for text in texts):
            raise BadMessage("a text in it has no end")
        return [text[:-1] for text in texts]

    def _pass_texts(self, count: int) -> list[tuple[int, int]]:
        """Skips strings; returns where the bytes of each are."""
        unpack, data, at, places = _LENGTHS[self.order], self.data, self.at, []
        try:
            for _ in range(count):
                start = at + (-at & 3) + 4
                at = start + unpack(data, start - 4)[0]
                places.append((start, at))
        except struct.error:
            raise BadMessage("it ends early") from None
        self.at = at
        self.skip(0)
        return places

    def pass_parts(self, parts: Sequence[ValueRun]) -> None:
        """Skips values."""
        for count, sizes, inner in parts:
            if count is None:
                count = self.length()
            if sizes is not None:
                self.skip((sizes if count == 1 else _repeat(sizes, count))[self.at & 7])
                continue
            self._spend(count)
            if not inner:
                self._pass_texts(count)
                continue
            for _ in range(count):
                self.pass_parts(inner)

    def _spend(self, count: int) -> None:
        self._values_left -= count
        if self._values_left < 0:
            raise BadMessage(f"it has more than {_MAX_VALUES:,} texts, sequences, and messages")

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


class ValueRun(NamedTuple):
    """Values in a row.

    Attributes:
      length: their number; None if it precedes them in the message.
      sizes: the bytes of each, if that is fixed.
      inner: the parts of each otherwise; none for a text.
    """

    length: int | None
    sizes: Sizes | None
    inner: Parts = ()


Parts: TypeAlias = "tuple[ValueRun, ...]"
"""How to skip a value."""

_TEXT: Parts = (ValueRun(1, None),)


def _join(first: Sizes, second: Sizes) -> Sizes:
    """The sizes of two values in a row."""
    return tuple(size + second[(at + size) & 7] for at, size in enumerate(first))


@functools.lru_cache(maxsize=4096)
def _repeat(sizes: Sizes, count: int) -> Sizes:
    """The sizes of `count` values in a row, by squaring."""
    whole = _NO_BYTES
    while count:
        if count & 1:
            whole = _join(whole, sizes)
        sizes, count = _join(sizes, sizes), count >> 1
    return whole


def _row(parts: Parts, count: int | None) -> Parts:
    """A skip of `count` values; None if their number precedes them."""
    if not parts or (len(parts) == 1 and parts[0].length == 1 and parts[0].sizes):
        sizes = (parts[0].sizes if parts else None) or _NO_BYTES
        return (ValueRun(None, sizes) if count is None else ValueRun(1, _repeat(sizes, count)),)
    if count == 0:
        return ()
    if count == 1 and len(parts) == 1:
        return parts
    return (ValueRun(count, None, () if parts == _TEXT else parts),)


class TypeLayout(NamedTuple):
    """The layout of a type's values.

    Attributes:
      parts: how to skip a value.
      dtypes: the dtypes of the numbers in it; None among them for anything else.
      length: how many numbers.
      depth: how deep messages are nested in it.
    """

    parts: Parts
    dtypes: frozenset[str | None] = frozenset({None})
    length: int = 0
    depth: int = 0


class Step(NamedTuple):
    """A step of a path.

    Attributes:
      before: the values before its field.
      element: the index of the element to take from a list; None for the whole value.
      length: the length of that list; None if it is in the message.
      skipped: the elements before it.
    """

    before: Parts
    element: int | None = None
    length: int | None = None
    skipped: Parts = ()


class ValuePath(NamedTuple):
    """The path of a value in the messages of a type.

    Attributes:
      text: the path as given.
      steps: what leads to it.
      dtype: the dtype of its numbers; `string` for text; `strings` for a list of them.
      length: how many values it has; None if that is in the message.
      is_scalar: whether it is one value, not a list.
    """

    text: str
    steps: tuple[Step, ...]
    dtype: str
    length: int | None
    is_scalar: bool


class Reader:
    """Reads values of messages of known types."""

    def __init__(self, definitions: Definitions):
        self._definitions = definitions
        self._layouts: dict[str, TypeLayout] = {}

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
          UsageError: the type has no such field, the field is neither numbers nor text, or a field before it cannot be
            skipped.
        """
        steps: list[Step] = []
        here: Any = (_NAME, kind)
        for text in path.split("."):
            match = _STEP.fullmatch(text)
            if match is None:
                raise UsageError(f"{path!r} is not the path of a field; write for example pose.position.x")
            if here[0] != _NAME:
                raise UsageError(f"{kind} has no field {path}: {text} is not in a message")
            fields = self.fields(here[1])
            names = [name for name, _ in fields]
            if match[1] not in names:
                hint = did_you_mean(match[1], names, otherwise=shorten(f"it has {', '.join(names)}"))
                raise UsageError(f"{here[1]} has no field {match[1]}{hint}")
            index = names.index(match[1])
            before, here = self._message(here[1], index).parts, fields[index][1]
            if match[2] is None:
                steps.append(Step(before))
                continue
            if here[0] not in (_ARRAY, _SEQUENCE):
                raise UsageError(f"{kind}: {match[1]} is not a list, so it has no element {match[2]}")
            element, count, here = int(match[2]), None if here[0] == _SEQUENCE else here[1][1], here[1][0]
            steps.append(Step(before, element, count, _row(self._layout(here, kind).parts, element)))
        return ValuePath(path, tuple(steps), *self._value_type(here, path, kind))

    def read(self, path: ValuePath, data: memoryview) -> Any:
        """The value in a message: an array (of shape () or (n,)), bytes, or a list of bytes.

        Raises:
          BadMessage: the message does not match its type.
          IndexError: a list in it has no such element.
        """
        cursor = Cursor(data)
        for before, element, count, skipped in path.steps:
            cursor.pass_parts(before)
            if element is not None:
                count = cursor.length() if count is None else count
                if element >= count:
                    raise IndexError(f"{path.text}: the list has {count} elements")
                cursor.pass_parts(skipped)
        if path.dtype == "string":
            return cursor.text()
        count = cursor.length() if path.length is None else path.length
        if path.dtype == "strings":
            return cursor.texts(count)
        values = cursor.array(np.dtype(path.dtype), count)
        return values[0] if path.is_scalar else values

    def _value_type(self, kind: Any, path: str, owner: str) -> tuple[str, int | None, bool]:
        """The dtype of a value, the number of values in it if known, and whether it is one value."""
        if kind[0] == _NAME:
            layout = self._layout(kind, owner)
            dtype, *others = layout.dtypes
            if dtype is None or others:
                inside = shorten(", ".join(f"{path}.{name}" for name, _ in self.fields(kind[1])))
                raise UsageError(f"{owner}: {path} is a {kind[1]}; name what to take of it: {inside}")
            return dtype, layout.length, False
        if kind[0] == _BASE:
            return self._base(kind[1][0], path, owner), 1, True
        element, size = kind[1]
        if element[0] != _BASE:
            raise UsageError(f"{owner}: {path} is a list of messages; name one: {path}[0]")
        dtype = self._base(element[1][0], path, owner)
        return "strings" if dtype == "string" else dtype, None if kind[0] == _SEQUENCE else size, False

    @staticmethod
    def _base(name: str, path: str, owner: str) -> str:
        if name != "string" and name not in _DTYPES:
            raise UsageError(f"{owner}: {path} has the type {name}, which cannot be read")
        return _DTYPES.get(name, name)

    def _message(self, name: str, stop: int | None = None, outside: int = 0) -> TypeLayout:
        """The layout of a message type, or of its first fields; `outside` counts the messages around it."""
        layout = self._layouts.get(name) if stop is None else None
        if outside + (layout.depth if layout else 0) > _MAX_DEPTH:
            raise UsageError(f"the message type {name} is nested more than {_MAX_DEPTH} levels deep")
        if layout is None:
            layout = _struct([self._layout(kind, name, outside) for _, kind in self.fields(name)[:stop]])
            if stop is None:
                self._layouts[name] = layout
        return layout

    def _layout(self, kind: Any, owner: str, outside: int = 0) -> TypeLayout:
        """The layout of a field's type. Raises UsageError if such a value cannot be skipped."""
        if kind[0] == _BASE:
            name = kind[1][0]
            if name == "string":
                return TypeLayout(_TEXT)
            dtype = self._base(name, "a field", owner)
            return TypeLayout((ValueRun(1, _SIZES[dtype]),), frozenset({dtype}), 1)
        if kind[0] == _NAME:
            layout = self._message(kind[1], outside=outside + 1)
            return layout._replace(parts=_row(layout.parts, 1), depth=layout.depth + 1)
        element, size = self._layout(kind[1][0], owner, outside), None if kind[0] == _SEQUENCE else kind[1][1]
        parts = _row(element.parts, size)
        if size is None or kind[1][0][0] == _NAME:
            return TypeLayout(parts, depth=element.depth)
        return TypeLayout(parts, element.dtypes, element.length * size)


def _struct(fields: Sequence[TypeLayout]) -> TypeLayout:
    """The layout of a message with these fields."""
    parts: list[ValueRun] = []
    for part in (part for field in fields for part in field.parts):
        before = parts[-1] if parts else _TEXT[0]
        if before.length == part.length == 1 and before.sizes and part.sizes:
            parts[-1] = ValueRun(1, _join(before.sizes, part.sizes))
        else:
            parts.append(part)
    dtypes = frozenset[str | None]().union(*(field.dtypes for field in fields))
    numbers, depth = sum(field.length for field in fields), max((field.depth for field in fields), default=0)
    return TypeLayout(tuple(parts), dtypes or frozenset({None}), numbers, depth)


def concatenate(values: Sequence[Array]) -> Array:
    """Numbers of several fields as one vector."""
    return np.concatenate([np.atleast_1d(value) for value in values])
