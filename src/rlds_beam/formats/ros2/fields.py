"""Reads the columns of step fields from messages.

A CompressedImage is copied byte for byte. The pixels of an Image keep their type; BGR becomes RGB.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.schema import Field, text_field
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.array_episodes import encode_frames, image_field, number_field
from rlds_beam.formats.ros2.mapping import TopicField
from rlds_beam.formats.ros2.messages import BadMessage, MessageType, concatenate
from rlds_beam.text import did_you_mean, shorten
from rlds_beam.typing import Array

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
IMAGES = (IMAGE, COMPRESSED)

_DEPTH_HEADER = 12
"""Bytes before the PNG of compressed_depth_image_transport: its format and two parameters of the quantization."""
_PNG, _JPEG = b"\x89PNG", b"\xff\xd8\xff"


ENCODINGS = {
    "rgb8": ("uint8", 3),
    "bgr8": ("uint8", 3),
    "rgba8": ("uint8", 4),
    "bgra8": ("uint8", 4),
    "mono8": ("uint8", 1),
    "8UC1": ("uint8", 1),
    "mono16": ("uint16", 1),
    "16UC1": ("uint16", 1),
    "32FC1": ("float32", 1),
}
"""The dtype and the number of channels of each encoding of an Image; the pixels of `bgr` become RGB."""


def read_image(message: Any, kind: str) -> tuple[str, bytes | Array]:
    """The encoding of an image, and the image as it was encoded, or its pixels [height, width, channels].

    The encoding is that of an Image; `jpeg`, `png`, or `depth png` of a CompressedImage.

    Raises:
      UsageError: the encoding is not supported.
      BadMessage: the data are not pixels of the size.
    """
    if kind == IMAGE:
        return message.encoding, _pixels(message)
    label, image = str(message.format), message.data.tobytes()
    if "compressedDepth" in label:
        if label.partition(";")[0].strip() not in ("16UC1", "mono16") or not image[_DEPTH_HEADER:].startswith(_PNG):
            raise UsageError(
                f"CompressedImage in the format {shorten(label, 60)!r}: of compressed depth, only 16-bit PNG "
                "(16UC1) can be copied; record the raw Image of 32FC1, or publish 16UC1"
            )
        return "depth png", image[_DEPTH_HEADER:]
    if image.startswith(_JPEG):
        return "jpeg", image
    if image.startswith(_PNG):
        return "png", image
    raise UsageError(f"CompressedImage in the format {shorten(label, 60)!r}: only JPEG and PNG can be copied")


def _pixels(message: Any) -> Array:
    """The pixels of an Image, [height, width, channels], with RGB for BGR."""
    if message.encoding not in ENCODINGS:
        raise UsageError(
            f"Image with the encoding {shorten(message.encoding, 40)!r}; supported: {', '.join(ENCODINGS)}. "
            "Record a CompressedImage instead, or convert it with image_proc"
        )
    name, channels = ENCODINGS[message.encoding]
    dtype, shape, step = np.dtype(name), (message.height, message.width, channels), message.step
    row = message.width * channels * dtype.itemsize
    try:
        if not message.height or not row or step < row:
            raise ValueError("they are too short")
        stored = dtype.newbyteorder(">" if message.is_bigendian else "<")
        strides = (step, channels * dtype.itemsize, dtype.itemsize)
        pixels: Array = np.ndarray(shape, stored, message.data, 0, strides)
    except (TypeError, ValueError) as error:
        raise BadMessage(f"no pixels of shape {shape} in rows of {step} bytes: {error}") from error
    values = pixels.astype(dtype, "C", copy=False)
    return values[..., [2, 1, 0, 3][:channels]] if message.encoding.startswith("bgr") else values


def image_like(path: str, image: bytes | Array) -> Field:
    """The field of images like this one. Raises BadMessage if its size cannot be read."""
    if isinstance(image, np.ndarray):
        return Field(path, image.dtype.name, image.shape, "bytes")
    field = image_field(path, image)
    if field is None or None in field.shape:
        raise BadMessage("the size of its first image cannot be read")
    return field


@dataclasses.dataclass(frozen=True)
class FieldReader:
    """Reads a step field from the messages of a topic.

    Attributes:
      field: what the mapping says.
      schema: the field of the schema.
      encoding: the encoding of the first image, and of all others; empty for other fields.
    """

    field: TopicField
    schema: Field
    encoding: str = ""

    def column(self, messages: Sequence[bytes], chosen: Array, kind: MessageType) -> Array:
        """The values of these messages, [T, ...]. A message that counts for several steps is read once.

        Raises:
          BadMessage: a message does not fit; names the topic.
        """
        unique, inverse = np.unique(chosen, return_inverse=True)
        values: list[Any] = []
        try:
            for i in unique.tolist():
                values.append(self._image(messages[i], kind) if self.encoding else self.value(messages[i], kind))
        except (AttributeError, BadMessage, UsageError) as error:
            raise BadMessage(f"{self.field.topic}: message {len(values)} of the episode: {error}") from error
        if self.schema.dtype == "string" or self.schema.holds_image_files:
            column = np.empty(len(values), object)
            column[:] = values
        else:
            column = np.stack(values)
        return column if len(unique) == len(chosen) else column[inverse]

    def _image(self, data: bytes, kind: MessageType) -> bytes | Array:
        """An image as it was encoded, or pixels; pixels as a PNG or JPEG if the schema says so."""
        encoding, image = read_image(kind.decode(data), kind.name)
        if encoding != self.encoding:
            raise BadMessage(f"a {shorten(encoding, 40)} image, but the first one is {self.encoding}")
        if isinstance(image, np.ndarray) and image.shape != self.schema.shape:
            raise BadMessage(f"an image of shape {image.shape}, but the first one has {self.schema.shape}")
        if isinstance(image, np.ndarray) and self.schema.holds_image_files:
            return bytes(encode_frames([image[None]], self.schema.encoding)[0])
        return image

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
    if field.frame:
        kind.find("transforms[0].child_frame_id")  # raises UsageError if it is no TFMessage
        return FieldReader(field, number_field(field.path, "float64", (4, 4)))
    if not field.fields and kind.name in IMAGES:
        if field.dtype:
            raise UsageError(f"{kind.topic} has images, whose dtype stays; leave dtype out")
        encoding, image = read_image(kind.decode(first), kind.name)
        return FieldReader(field, image_like(field.path, image), encoding)
    if not field.fields:
        names = ", ".join(name for name in kind.fields() if name != "header")
        raise UsageError(f"{field.path}: name the field of {kind.topic} ({kind.name}): it has {names}")
    dtypes = {kind.find(path).dtype for path in field.fields}
    if dtypes & {"string", "strings"}:
        if dtypes != {"string"} or len(field.fields) > 1 or field.dtype or field.window:
            raise UsageError(
                f"{field.path}: text is one string, without dtype and window; {', '.join(field.fields)} is not"
            )
        return FieldReader(field, text_field(field.path))
    if len(dtypes) > 1 and not field.dtype:
        raise UsageError(f"{field.path}: its fields have the types {', '.join(sorted(dtypes))}: choose one with dtype")
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


def find_pose(frame: str, transforms: Sequence[Any]) -> tuple[Array, str]:
    """The pose [4, 4] of a frame in the base of its tree, in meters, and the base's name: p is `pose @ [p, 1]` there.

    The transforms are TransformStamped, as in /tf_static. Raises BadMessage if none has this frame, or one changes.
    """
    parents: dict[str, tuple[str, Array]] = {}
    for one in transforms:
        turn, shift = one.transform.rotation, one.transform.translation
        x, y, z, w = np.array([turn.x, turn.y, turn.z, turn.w]) / np.linalg.norm([turn.x, turn.y, turn.z, turn.w])
        cross, matrix = np.cross(np.eye(3), [x, y, z]), np.eye(4)
        matrix[:3, :3] += 2 * (w * cross + cross @ cross)
        matrix[:3, 3] = shift.x, shift.y, shift.z
        known = parents.setdefault(one.child_frame_id, (one.header.frame_id, matrix))
        if known[0] != one.header.frame_id or not np.array_equal(known[1], matrix):
            raise BadMessage(f"the transform of the frame {one.child_frame_id} changes: frame is for static ones")
    if frame not in parents:
        raise BadMessage(f"no transform has the frame {frame}{did_you_mean(frame, parents)}")
    pose = np.eye(4)
    while frame in parents:
        frame, matrix = parents.pop(frame)
        pose = matrix @ pose
    return pose, frame
