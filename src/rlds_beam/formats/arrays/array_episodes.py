"""Shared by formats of arrays: fields, windows, record formats, decoders, and an episode's arrays as safetensors bytes.

The bytes are the payload of such an episode: `safetensors.numpy.load(payload)` reads it, also from `rejected/`.
A window is what a step holds of a signal that is faster than the steps, with a count and times beside it.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np

from rlds_beam.encoding.base import Damage, Headers, Record, RecordFormat
from rlds_beam.encoding.metadata import parsing
from rlds_beam.encoding.tfds.features import DTYPES
from rlds_beam.episodes.columns import exact_cast, zeros_like
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import FLAGS, SAMPLE_TIMES, SAMPLES, Field, Schema
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.formats.splits import selected_splits, slice_split
from rlds_beam.images.codecs import encode_jpeg, encode_png
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.headers import UndecodableImageError, read_image_header, read_pixel_format
from rlds_beam.reading.base import Decoder, Details, Shard, Source, Split
from rlds_beam.reading.meaning import UNKNOWN, Meaning
from rlds_beam.text import shorten
from rlds_beam.typing import Array

Arrays: TypeAlias = "Mapping[str, Array]"

UNREADABLE = (OSError, KeyError, RuntimeError, ValueError, TypeError)  # what libraries raise for damaged files


def number_field(path: str, dtype: str, shape: tuple[int, ...] = ()) -> Field:
    """The field of an array of numbers. Values that a tf.Example would round are stored in it as bytes.

    Raises:
      UsageError: fields cannot have this dtype (complex numbers, records).
    """
    if dtype not in DTYPES:
        raise UsageError(f"{path} holds {dtype} values, which cannot be read; supported: {', '.join(sorted(DTYPES))}")
    return Field(path, dtype, shape, "bytes" if dtype in ("float64", "uint64") else "none")


NO_REWARD = "no reward is recorded: it is 0"  # the note of sources whose data lacks rewards

FLAG_FIELDS = {name: Field(name, "bool") for name in FLAGS}


class ArrayFormat(abc.ABC):
    """Files whose episodes are arrays (`encoding.base.RecordFormat`). Positions are episode numbers.

    A record's payload is the episode's arrays in the safetensors format.
    """

    unit = "episodes"

    @property
    @abc.abstractmethod
    def name(self) -> str: ...

    @abc.abstractmethod
    def count(self, path: str) -> int:
        """The number of episodes in a file. Raises OSError if the file cannot be read."""

    @abc.abstractmethod
    def episodes(self, path: str, start: int, stop: int) -> Iterator[Arrays | Damage]:
        """The arrays of each of these episodes. Raises OSError if it cannot continue."""

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[Record | Damage]:
        try:
            last = self.count(path)
        except OSError as error:
            if start == 0 and stop != 0:
                yield Damage(0, 0, f"the file cannot be read: {error}", b"")
            return
        last = last if stop is None else min(stop, last)
        position = start
        try:
            for episode in self.episodes(path, start, last):
                record: Record | Damage
                try:
                    record = episode if isinstance(episode, Damage) else Record(position, pack(episode))
                except (TypeError, ValueError) as error:
                    record = Damage(position, position + 1, f"the episode cannot be read: {shorten(error)}", b"")
                del episode  # an episode may have a gigabyte: only its record is kept
                yield record
                del record
                position += 1
        except (*UNREADABLE, AttributeError, OverflowError) as error:
            yield from (Damage(i, i + 1, f"the file cannot be read: {error}", b"") for i in range(position, last))

    def scan(self, path: str, start: int = 0, stop: int | None = None) -> Headers:
        return Headers.from_records(self.read(path, start, stop))

    def is_splittable(self, path: str) -> bool:
        return True

    def end(self, path: str, size: int) -> int:
        try:
            return self.count(path)
        except OSError:
            return 1  # one record reports that the file cannot be read

    def positions(self, path: str, low: int, high: int) -> tuple[int, int | None]:
        return low, high


@dataclasses.dataclass(frozen=True)
class SourceOfFiles(Source):
    """Files that are read record by record, and have no TFDS metadata. Attributes: see `Source`."""

    dataset: str
    schema: Schema
    decoder: Decoder
    splits: tuple[Split, ...]
    files: RecordFormat
    meaning: Meaning = UNKNOWN
    details: Details = dataclasses.field(default_factory=Details)


def make_shard(files: ArrayFormat, index: int, path: str, size: int) -> Shard:
    """A file of this size as a shard, with its episode count (unknown if it cannot be read)."""
    try:
        return Shard(index, path, size, files.count(path))
    except OSError:
        return Shard(index, path, size, None)


def select_splits(splits: Mapping[str, tuple[Shard, ...]], split: str | None, dataset: str) -> tuple[Split, ...]:
    """The splits (or slices of them) that `--split` selects."""
    chosen = selected_splits(split, splits, dataset)
    return tuple(slice_split(Split(name, splits[name]), start, stop) for name, start, stop in chosen)


def no_features(source: str, features: str | None) -> None:
    """Raises UsageError if `--features` is given."""
    if features is not None:
        raise UsageError(f"--features={features}: --from={source} takes no features.json; the files have it all")


@dataclasses.dataclass(frozen=True)
class ArrayDecoder(abc.ABC):
    """Decodes packed arrays into episodes (`reading.base.Decoder`).

    Attributes:
      schema: the fields of an episode.
    """

    schema: Schema

    @abc.abstractmethod
    def convert_arrays(self, arrays: Arrays) -> tuple[Mapping[str, Column], Mapping[str, Any]]:
        """The step columns and the episode's own fields. May raise KeyError, ValueError, or BadEpisode."""

    def decode(self, payload: bytes, key: EpisodeKey) -> Episode:
        try:
            arrays = unpack(payload)
        except ValueError as error:
            raise BadEpisode(Violation("not_an_example", str(error))) from None
        try:
            steps, metadata = self.convert_arrays(arrays)
        except KeyError as error:
            name = error.args[0] if error.args else ""
            raise BadEpisode(Violation("missing_field", f"the episode has no {name}", str(name))) from None
        except (AttributeError, IndexError, OverflowError, TypeError, ValueError) as error:
            raise BadEpisode(Violation("wrong_dtype_or_shape", str(error))) from None
        steps = {path: steps[path] for path in self.schema.steps if path in steps}
        return Episode(key, steps, metadata, payload)


def with_last(column: Column) -> Column:
    """A column of transitions with zeros added for the last step."""
    last = zeros_like(column, 1)
    if isinstance(column, EncodedImages):
        return column.with_data(np.append(column.data, last.data))
    return np.concatenate([column, last])


def discounts(terminal: Array, *, real: bool = False) -> Array:
    """float32: 1, but 0 at the step before a terminal one, and at a terminal last step.

    Args:
      real: whether the last action is real: then it leads to the terminal state, and the one before does not.
    """
    return np.where(terminal if real else np.append(terminal[1:], terminal[-1:]), 0, 1).astype(np.float32)


def as_images(field: Field, raw_images: str) -> Field:
    """The field of frames of pixels (uint8 or uint16 [H, W, C], stored as bytes) as images, unless they stay `raw`.

    What a JPEG cannot hold, for example depth, becomes PNGs.
    """
    is_raw = field.dtype in ("uint8", "uint16") and field.encoding == "bytes" and len(field.shape) == 3
    if not is_raw or raw_images == "raw":
        return field
    is_color = field.dtype == "uint8" and field.shape[-1] in (1, 3)
    return dataclasses.replace(field, encoding="jpeg" if raw_images == "jpeg" and is_color else "png", feature="Image")


def image_field(path: str, data: bytes) -> Field | None:
    """The field of images like this PNG or JPEG; None if it is neither. A damaged one leaves the size open."""
    if not data.startswith((b"\xff\xd8", b"\x89PNG")):
        return None
    encoding, dtype, channels = "jpeg", "uint8", 3
    if data[:2] != b"\xff\xd8":
        encoding, dtype = "png", "uint16" if data[24:25] == b"\x10" else "uint8"
        channels = {0: 1, 4: 2, 6: 4}.get(data[25] if len(data) > 25 else 2, 3)
    try:
        header = read_image_header(data)
        channels = channels if encoding == "png" else read_pixel_format(data).channels
    except UndecodableImageError:
        return Field(path, dtype, (None, None, channels), encoding, "Image")
    return Field(path, dtype, (header.height, header.width, channels), encoding, "Image")


def encode_frames(pieces: Iterable[Array], encoding: str) -> Array:
    """Frames as PNGs, fast rather than small, or JPEGs. Holds the pixels of one piece at a time.

    Args:
      pieces: uint8 or uint16 [any, H, W, C], one after the other.
      encoding: `png` or `jpeg`.

    Returns:
      object [T], bytes.
    """
    encoded = (encode_jpeg(piece) if encoding == "jpeg" else encode_png(piece, level=1) for piece in pieces)
    rows = [image for images in encoded for image in images]
    return np.fromiter(rows, object, len(rows))


_LENGTHS = " lengths"  # ends the name of the array with the lengths of texts
_DTYPES = {"BOOL": np.dtype(bool)}
_DTYPES |= {f"{kind.upper()}{8 * size}": np.dtype(f"<{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)}
_DTYPES |= {f"F{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def pack(arrays: Mapping[str, Array]) -> bytes:
    """The arrays as safetensors bytes. Text, an object array of bytes of any shape, is stored as its bytes and their
    lengths.

    Raises:
      ValueError: an array has another dtype, or an object is not text.
    """
    plain: dict[str, Array] = {}
    for name, array in arrays.items():
        if array.dtype != object:
            plain[name] = array
            continue
        texts = [value.encode() if isinstance(value, str) else value for value in array.reshape(-1)]
        for text in texts:
            if not isinstance(text, bytes):
                raise ValueError(f"{name} holds a {type(text).__name__}, expected text")
        plain[name] = np.frombuffer(b"".join(texts), np.uint8)
        plain[name + _LENGTHS] = np.array([len(text) for text in texts], np.int64).reshape(array.shape)
    header, buffers, at = {}, [], 0
    for name, array in plain.items():
        dtype = array.dtype.newbyteorder("<")
        if dtype not in _NAMES:
            raise ValueError(f"{name} holds {array.dtype} values")
        data = array.astype(dtype, "C", copy=False).reshape(-1).view(np.uint8).data
        header[name] = {"dtype": _NAMES[dtype], "shape": array.shape, "data_offsets": (at, at + len(data))}
        buffers.append(data)
        at += len(data)
    text = msgspec.json.encode(header)
    return b"".join([struct.pack("<Q", len(text)), text, *buffers])


def unpack(payload: bytes) -> dict[str, Array]:
    """The packed arrays, as views of the payload. Raises ValueError if the payload was not written by `pack`."""
    plain: dict[str, Array] = {}
    try:
        (size,) = struct.unpack_from("<Q", payload)
        for name, about in msgspec.json.decode(payload[8 : 8 + size]).items():
            dtype, shape = _DTYPES[about["dtype"]], about["shape"]
            start = 8 + size + about["data_offsets"][0]
            plain[name] = np.frombuffer(payload, dtype, math.prod(shape), start).reshape(shape)
    except (struct.error, AttributeError, IndexError, KeyError, TypeError, msgspec.DecodeError) as error:
        raise ValueError(f"not the arrays of an episode ({error})") from None
    arrays = {name: array for name, array in plain.items() if not name.endswith(_LENGTHS)}
    for name in arrays:
        if (lengths := plain.get(name + _LENGTHS)) is not None:
            data, ends = plain[name].tobytes(), np.cumsum(lengths).tolist()
            texts = (data[start:end] for start, end in itertools.pairwise([0, *ends]))
            arrays[name] = np.fromiter(texts, object, len(ends)).reshape(lengths.shape)
    return arrays


def fields_of_numbers(fields: Iterable[Field], left_out: dict[str, str]) -> list[Field]:
    """The fields of numbers and images of a fixed shape; the others go to `left_out`, with the reasons.

    Raises:
      UsageError: an image field has no fixed size.
    """
    kept = []
    for field in fields:
        if field.dtype == "string":
            left_out[field.path] = "text"
        elif None in field.shape and field.holds_image_files:
            raise UsageError(f"{field} has no fixed size, but arrays of images do: resize the images with --connectors")
        elif None in field.shape:
            left_out[field.path] = "its shape is not the same at all steps"
        else:
            kept.append(field)
    return kept


def is_text(field: Field) -> bool:
    """Whether a field is one string per step, or per episode."""
    return field.dtype == "string" and not field.shape


def stored_dtype(field: Field) -> np.dtype[Any]:
    """The dtype of a field's written numbers: bfloat16, which other formats lack, becomes float32."""
    return np.dtype(np.float32) if field.dtype == "bfloat16" else field.numpy_dtype


def read_numbers(field: Field, episode: Episode, stop: int | None = None) -> Array:
    """The values of the first `stop` steps, (steps, *shape) in C order; images are decoded.

    Raises:
      BadEpisode: an image cannot be decoded, or is of another size.
    """
    column = episode.steps[field.path][:stop]
    if isinstance(column, EncodedImages):
        column = column.decode_all(field.path, field.closed_shape)
    return np.ascontiguousarray(column.reshape(len(column), *field.closed_shape), stored_dtype(field))


def representable(values: Array, dtype: Any, path: str) -> Array:
    """The values in the dtype that a format stores. Raises BadEpisode (not_representable) if a value would change."""
    return exact_cast(values, np.dtype(dtype), path, "not_representable")


def not_representable(detail: str, field: str | None = None) -> BadEpisode:
    """The error for an episode that the format cannot hold."""
    return BadEpisode(Violation("not_representable", detail, field))


def field_json(field: Field) -> dict[str, Any]:
    """A field as JSON, stored in outputs so that they can be read back."""
    return {"path": field.path, **field.to_json()}


def field_from_json(content: Any, where: str) -> Field:
    """The inverse of `field_json`. Raises UsageError, with the file (`where`), if it is not a field."""
    with parsing(where):
        path, dtype, encoding, feature = (content[name] for name in ("path", "dtype", "encoding", "feature"))
        if not all(isinstance(text, str) for text in (path, dtype, encoding, feature)) or dtype not in DTYPES:
            raise ValueError(f"no field has the dtype {dtype!r} and the encoding {encoding!r}")
        return Field(path, dtype, tuple(content["shape"]), encoding, feature).with_meaning(content)


def window_fields(sample: Field, size: int) -> tuple[Field, ...]:
    """The fields of a window of up to `size` samples, of their number, and of their times; the sample's if 0."""
    if not size:
        return (sample,)
    path = sample.path
    samples = number_field(path, sample.dtype, (size, *sample.closed_shape)).with_names(sample.names)
    times = number_field(f"{path}{SAMPLE_TIMES}", "float32", (size,))
    return samples, number_field(f"{path}{SAMPLES}", "int64"), times


def cut_windows(
    sample: Field, size: int, times: Array, steps: Array, read: Callable[[Array], Array]
) -> dict[str, Array]:
    """The columns of `window_fields`.

    Args:
      sample: the field of a sample.
      size: the most samples of a step.
      times: the times of the samples, int64 nanoseconds, ascending.
      steps: the times of the steps, int64 nanoseconds, [T]. Step t has the samples since the step before; the first has
        those of a usual interval.
      read: the samples at some indices.

    Raises:
      ValueError: a step has more samples.
    """
    path, edges = sample.path, np.zeros(len(steps) + 1, np.int64)
    if len(steps) and len(times):
        before = times[0] - 1 if len(steps) < 2 else steps[0] - int(np.median(np.diff(steps)))
        edges = np.searchsorted(times, np.concatenate([[before], steps]), side="right")
    counts = np.diff(edges)
    if counts.max(initial=0) > size:
        raise ValueError(f"{path}: {counts.max():,} samples of a step, more than window: {size:,}")
    inside = np.arange(size) < counts[:, None]
    values = np.zeros((len(steps), size, *sample.closed_shape), sample.numpy_dtype)
    since = np.zeros((len(steps), size), np.float32)
    if len(chosen := np.arange(edges[0], edges[-1])):
        values[inside] = read(chosen)
        since[inside] = (times[chosen] - np.repeat(steps, counts)) / 1e9
    return {path: values, f"{path}{SAMPLES}": counts, f"{path}{SAMPLE_TIMES}": since}
