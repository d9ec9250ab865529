"""Reads the columns of step fields from messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.schema import Field, text_field
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import number_field
from rlds_beam.formats.arrays.parts import encode_frames
from rlds_beam.formats.ros2.cdr import BadMessage, Reader, ValuePath, concatenate
from rlds_beam.formats.ros2.images import IMAGES, ImageReader, image_reader
from rlds_beam.formats.ros2.mapping import TopicField
from rlds_beam.formats.ros2.messages import MAX_EPISODE_BYTES, Definitions, Topic
from rlds_beam.text import did_you_mean, shorten
from rlds_beam.typing import Array


def has_header(kind: str, definitions: Definitions) -> bool:
    """Whether messages of a type begin with a std_msgs/Header."""
    fields = definitions.get(kind) or [("", (0, ""))]
    return fields[0][0] == "header" and fields[0][1][1] == "std_msgs/msg/Header"


@dataclasses.dataclass(frozen=True)
class FieldReader:
    """Reads a step field from the messages of a topic.

    Attributes:
      field: what the mapping says.
      schema: the field of the schema.
      image: reads images, if it is one.
    """

    field: TopicField
    schema: Field
    image: ImageReader | None = None

    def bound(self, topics: Mapping[str, Topic], definitions: Definitions) -> BoundReader:
        """The reader for a bag with these topics and types. Raises UsageError if they do not fit."""
        topic = topics.get(self.field.topic)
        if topic is None or self.image is not None:
            if topic is not None and self.image is not None and topic.type != self.image.kind:
                raise UsageError(f"{topic.name} is a {topic.type}, but in the first bag a {self.image.kind}")
            return BoundReader(self.field, self.schema, self.image, None, (), None)
        reader = Reader(definitions)
        paths = tuple(_find(reader, topic, path) for path in self.field.fields)
        names = _find(reader, topic, self.field.names_field) if self.field.names else None
        return BoundReader(self.field, self.schema, None, reader, paths, names)


@dataclasses.dataclass(frozen=True)
class BoundReader:
    """Reads a step field from the messages of a bag."""

    field: TopicField
    schema: Field
    _image: ImageReader | None
    _reader: Reader | None
    _paths: tuple[ValuePath, ...]
    _names: ValuePath | None
    _orders: dict[tuple[bytes, ...], Array] = dataclasses.field(default_factory=dict)

    def column(self, messages: Sequence[memoryview], chosen: Array) -> Array:
        """The values of these messages, [T, ...]. A message that counts for several steps is read once.

        Raises:
          BadMessage: a message does not fit; names the topic.
          IndexError: a list has no such element.
        """
        unique, inverse = np.unique(chosen, return_inverse=True)
        values: list[Any] = []
        try:
            for i in unique.tolist():
                values.append(self._frame(self._image, messages[i]) if self._image else self.value(messages[i]))
        except (BadMessage, IndexError, UsageError) as error:
            raise BadMessage(f"{self.field.topic}: message {len(values)} of the episode: {error}") from error
        if self.schema.dtype == "string" or self.schema.holds_image_files:
            column = np.empty(len(values), object)
            column[:] = values
        else:
            column = np.stack(values)
        if len(unique) == len(chosen):
            return column
        sizes = np.array([len(value) if isinstance(value, bytes) else value.nbytes for value in values])
        if sizes[inverse].sum() > MAX_EPISODE_BYTES:
            raise BadMessage(
                f"{self.field.topic}: the values of {len(chosen):,} steps are larger than {MAX_EPISODE_BYTES >> 30} GB"
            )
        return column[inverse]

    def _frame(self, image: ImageReader, message: memoryview) -> Any:
        """An image as it was encoded, or pixels; pixels as a PNG or JPEG if the schema says so."""
        frame = image.read(message)
        if isinstance(frame, np.ndarray) and self.schema.holds_image_files:
            return encode_frames([frame[None]], self.schema.encoding)[0]
        return frame

    def value(self, data: memoryview) -> Any:
        """The value of one message."""
        assert self._reader is not None
        values = [self._reader.read(path, data) for path in self._paths]
        if self.schema.dtype == "string":
            return values[0]
        value = values[0] if len(values) == 1 else concatenate(values)
        if self._names is not None:
            value = self._select(value, tuple(self._reader.read(self._names, data)))
        if value.shape != self.schema.shape:
            raise BadMessage(
                f"{self.field.path} has {value.shape[0] if value.ndim else 1} values, but the first message has "
                f"{(self.schema.shape or (1,))[0]}"
            )
        return value.astype(self.schema.numpy_dtype, copy=False)

    def _select(self, values: Array, names: tuple[bytes, ...]) -> Array:
        """The values of the wanted names, in the order of the mapping."""
        if len(names) != len(values):
            raise BadMessage(f"it has {len(values)} values of {self._paths[0].text}, but {len(names)} names")
        order = self._orders.get(names)
        if order is None:
            known = [name.decode("utf-8", "replace") for name in names]
            for name in self.field.names:
                if known.count(name) != 1:
                    many = "twice" if name in known else f"not{did_you_mean(name, known)}"
                    raise BadMessage(f"it has {name} {many}; its names: {shorten(', '.join(known))}")
            order = self._orders[names] = np.array([known.index(name) for name in self.field.names])
        return values[order]


def field_reader(field: TopicField, topic: Topic, definitions: Definitions, first: memoryview) -> FieldReader:
    """The reader of a field, by the first message of its topic.

    Raises:
      UsageError: the message has no such field, or its type cannot become a step field.
      BadMessage: the message cannot be read.
    """
    reader = Reader(definitions)
    if topic.type in IMAGES and not field.fields:
        if field.dtype:
            raise UsageError(f"{topic.name} has images, whose dtype stays; leave dtype out")
        image = image_reader(topic.type, definitions, field.path, first)
        return FieldReader(field, image.field, image)
    if not field.fields:
        names = ", ".join(name for name, _ in reader.fields(topic.type) if name != "header")
        raise UsageError(f"{field.path}: name the field of {topic.name} ({topic.type}): it has {names}")
    types = {(path := _find(reader, topic, text)).dtype: path for text in field.fields}
    if len(types) > 1 and not field.dtype:
        raise UsageError(f"{field.path}: its fields have the types {', '.join(sorted(types))}: choose one with dtype")
    if "strings" in types or ("string" in types and (len(field.fields) > 1 or field.dtype)):
        raise UsageError(f"{field.path}: text is one string, alone; {', '.join(field.fields)} is not")
    if "string" in types:
        return FieldReader(field, text_field(field.path))
    dtype = field.dtype or next(iter(types))
    values = [reader.read(_find(reader, topic, path), first) for path in field.fields]
    if field.names:
        names_path = _find(reader, topic, field.names_field)
        if names_path.dtype != "strings" or values[0].ndim != 1:
            raise UsageError(f"{field.path}: names selects by a list of names, but {field.names_field} is not one")
        shape: tuple[int, ...] = (len(field.names),)
    else:
        shape = values[0].shape if len(values) == 1 else concatenate(values).shape
    named = number_field(field.path, dtype, shape).with_names(field.names or field.fields)
    made = FieldReader(field, named)
    made.bound({topic.name: topic}, definitions).value(first)
    return made


def _find(reader: Reader, topic: Topic, path: str) -> ValuePath:
    try:
        return reader.find(topic.type, path)
    except UsageError as error:
        raise UsageError(f"{topic.name}: {error}") from error
