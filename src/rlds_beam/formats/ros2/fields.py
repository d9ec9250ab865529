"""Reads the columns of step fields from messages."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.schema import Field, text_field
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import encode_frames, number_field
from rlds_beam.formats.ros2.images import IMAGES, ImageReader, image_reader
from rlds_beam.formats.ros2.mapping import TopicField
from rlds_beam.formats.ros2.messages import BadMessage, MessageType, concatenate
from rlds_beam.text import did_you_mean, shorten
from rlds_beam.typing import Array


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

    def column(self, messages: Sequence[bytes], chosen: Array, kind: MessageType) -> Array:
        """The values of these messages, [T, ...]. A message that counts for several steps is read once.

        Raises:
          BadMessage: a message does not fit; names the topic.
        """
        if self.image is not None and kind.name != self.image.kind:
            raise BadMessage(f"{kind.topic} is a {kind.name}, but in the first bag a {self.image.kind}")
        unique, inverse = np.unique(chosen, return_inverse=True)
        values: list[Any] = []
        try:
            for i in unique.tolist():
                values.append(self._image(messages[i], kind) if self.image else self.value(messages[i], kind))
        except (AttributeError, BadMessage, UsageError) as error:
            raise BadMessage(f"{self.field.topic}: message {len(values)} of the episode: {error}") from error
        if self.schema.dtype == "string" or self.schema.holds_image_files:
            column = np.empty(len(values), object)
            column[:] = values
        else:
            column = np.stack(values)
        return column if len(unique) == len(chosen) else column[inverse]

    def _image(self, data: bytes, kind: MessageType) -> Any:
        """An image as it was encoded, or pixels; pixels as a PNG or JPEG if the schema says so."""
        assert self.image is not None
        frame = self.image.read(kind.decode(data))
        if isinstance(frame, np.ndarray) and self.schema.holds_image_files:
            return encode_frames([frame[None]], self.schema.encoding)[0]
        return frame

    def value(self, data: bytes, kind: MessageType) -> Any:
        """The value of one message."""
        message = kind.decode(data)
        values = [kind.find(path).read(message) for path in self.field.fields]
        if self.schema.dtype == "string":
            return values[0]
        value = values[0] if len(values) == 1 else concatenate(values)
        if self.field.names:
            names = kind.find(self.field.names_field).read(message)
            if len(names) != len(value):
                raise BadMessage(f"it has {len(value)} values of {self.field.fields[0]}, but {len(names)} names")
            value = value[_order(tuple(names), self.field.names)]
        if value.shape != self.schema.shape:
            raise BadMessage(
                f"{self.field.path} has {value.shape[0] if value.ndim else 1} values, but the first message has "
                f"{(self.schema.shape or (1,))[0]}"
            )
        return value.astype(self.schema.numpy_dtype, copy=False)


@functools.lru_cache(maxsize=1024)
def _order(recorded: tuple[bytes, ...], names: tuple[str, ...]) -> Array:
    """The indices of the wanted names among those of a message. Raises BadMessage."""
    known = [name.decode() for name in recorded]
    for name in names:
        if known.count(name) != 1:
            many = "twice" if name in known else f"not{did_you_mean(name, known)}"
            raise BadMessage(f"it has {name} {many}; its names: {shorten(', '.join(known))}")
    return np.array([known.index(name) for name in names])


def field_reader(field: TopicField, kind: MessageType, first: bytes) -> FieldReader:
    """The reader of a field, by the first message of its topic.

    Raises:
      UsageError: the message has no such field, or its type cannot become a step field.
      BadMessage: the message cannot be read.
    """
    if not field.fields and kind.name in IMAGES:
        if field.dtype:
            raise UsageError(f"{kind.topic} has images, whose dtype stays; leave dtype out")
        image = image_reader(kind.name, field.path, kind.decode(first))
        return FieldReader(field, image.field, image)
    if not field.fields:
        names = ", ".join(name for name in kind.fields() if name != "header")
        raise UsageError(f"{field.path}: name the field of {kind.topic} ({kind.name}): it has {names}")
    dtypes = {kind.find(path).dtype for path in field.fields}
    if len(dtypes) > 1 and not field.dtype:
        raise UsageError(f"{field.path}: its fields have the types {', '.join(sorted(dtypes))}: choose one with dtype")
    if "strings" in dtypes or ("string" in dtypes and (len(field.fields) > 1 or field.dtype)):
        raise UsageError(f"{field.path}: text is one string, alone; {', '.join(field.fields)} is not")
    if "string" in dtypes:
        return FieldReader(field, text_field(field.path))
    message = kind.decode(first)
    values = [kind.find(path).read(message) for path in field.fields]
    if field.names and (kind.find(field.names_field).dtype != "strings" or values[0].ndim != 1):
        raise UsageError(f"{field.path}: names selects by a list of names, but {field.names_field} is not one")
    whole = values[0] if len(values) == 1 else concatenate(values)
    shape = (len(field.names),) if field.names else whole.shape
    schema = number_field(field.path, field.dtype or dtypes.pop(), shape).with_names(field.names or field.fields)
    reader = FieldReader(field, schema)
    reader.value(first, kind)
    return reader
