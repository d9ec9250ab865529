"""The layout of a trajectory item as a tf.Example that both TF-Agents and TFDS can read.

Both expect leaf paths joined with `/`, float32 as a float list, int64 as an int64 list, and every other dtype as raw
little-endian bytes (for TFDS a `Tensor` with encoding `bytes`). The rest depends on the item's leading axis:

- items of L frames: leaves are [L, ...].
- single frames: no leading axis, as in TF-Agents' TFRecordObserver.
- whole episodes: [None, ...]. TFDS reads this directly. TF-Agents' own decoder rejects unknown dimensions
  (`Dimension 0 is invalid`); pass it another one:
  `load_tfrecord_dataset(files, decoder=rlds_beam.formats.trajectories.loaders.decoder(path))`.

With `images=jpeg`: TF-Agents' `compress_image=True` reads every uint8 leaf of rank 3, and no other, as one JPEG. So a
leaf of L images becomes a tuple of L leaves (`observation/camera/0`, `/1`, ...) with one JPEG each. Both readers read
it, a frame is encoded once for all its items, and JPEGs of the input are written unchanged. Stack the leaves to get
[L, H, W, C], as `rlds_beam.load_trajectories` does. In whole episodes the leaf is a list of JPEGs; for TFDS, a
`Sequence` of images.

A record may carry fields besides its trajectory (`--keep`): text, episode metadata, and the episode's key.

They are not in the `.spec`, so TF-Agents ignores them; TFDS and `load_trajectories(kept=True)` read them. A step field
has one value per frame of an item. An episode field has one value per item: with `across_episodes`, the value of its
first frame's episode.
"""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.encoding.example.rows import BYTES_LIST, FLOAT_LIST, INT64_LIST, bytes_entry, entry_head
from rlds_beam.encoding.wire import packed_varints
from rlds_beam.episodes.columns import all_below, below, text_bytes
from rlds_beam.episodes.episode import EPISODE_KEY, Column, Episode
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages, StoredImages
from rlds_beam.images.headers import JPEG_END, jpeg_start
from rlds_beam.text import did_you_mean
from rlds_beam.trajectories.options import CASTS, Images
from rlds_beam.typing import Array

if TYPE_CHECKING:
    from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec

LISTS = {"float32": FLOAT_LIST, "int64": INT64_LIST}
"""dtype -> field of tf.train.Feature; other dtypes that TF-Agents reads (`CASTS`) are raw bytes."""

_CASTS = {"bool": "uint8", "uint32": "int64", "uint64": "int64", "bfloat16": "float32"}

_IMAGE_CHANNELS = (1, 3)
"""The numbers of channels that a JPEG can hold."""


def record_fields(spec: TrajectorySpec, images: Images = "raw") -> tuple[Field, ...]:
    """The fields of one record, in the spec's order.

    Returns:
      Fields whose `shape` is that of a whole item (with the leading axis, None if unknown) and whose `encoding` is
      `none` (a list of numbers), `bytes`, or `jpeg`.

    Raises:
      UsageError: the format cannot hold a leaf's dtype or shape; the message suggests a cast.
    """
    _check(spec.leaves)
    fields: list[Field] = []
    for leaf in spec.leaves:
        fields += _leaf_fields(leaf, spec.item_shape, images)
    return tuple(fields)


def is_jpeg(leaf: SpecLeaf, images: Images) -> bool:
    """Whether a leaf is written as JPEG."""
    return images == "jpeg" and leaf.dtype == "uint8" and len(leaf.shape) == 3


def _leaf_fields(leaf: SpecLeaf, item_shape: tuple[int | None, ...], images: Images) -> list[Field]:
    shape = (*item_shape, *leaf.shape)
    if is_jpeg(leaf, images):
        if leaf.shape[-1] not in _IMAGE_CHANNELS:
            raise UsageError(f"{_text(leaf)}: a JPEG holds 1 or 3 channels; write it with --images=raw")
        if item_shape in ((), (None,)):
            return [Field(leaf.path, leaf.dtype, shape, "jpeg", "Image")]
        return [Field(f"{leaf.path}/{i}", leaf.dtype, leaf.shape, "jpeg", "Image") for i in range(item_shape[0] or 0)]
    if images == "jpeg" and leaf.dtype == "uint8" and len(shape) == 3 and item_shape != (None,):
        raise UsageError(
            f"{_text(leaf)}: TF-Agents' compress_image=True would read items of shape {list(shape)} as JPEGs; write "
            f"the dataset with --images=raw{_or_leave_out([leaf])}"
        )
    return [Field(leaf.path, leaf.dtype, shape, "none" if leaf.dtype in LISTS else "bytes")]


def _check(leaves: Sequence[SpecLeaf]) -> None:
    """Raises UsageError that lists every leaf that TF-Agents cannot read."""
    refused = [leaf for leaf in leaves if leaf.dtype not in CASTS]
    if refused:
        casts = ",".join(f"{leaf.path}={_CASTS.get(leaf.dtype, 'float32')}" for leaf in refused)
        dtypes = " and ".join(dict.fromkeys(leaf.dtype for leaf in refused))
        raise UsageError(
            f"{', '.join(map(_text, refused))}: TF-Agents cannot read {dtypes} from a TFRecord; cast it: "
            f"--cast={shlex.quote(casts)}{_or_leave_out(refused)}"
        )
    empty = [leaf for leaf in leaves if 0 in leaf.shape]
    if empty:
        remedy = _or_leave_out(empty) or ", or remove it before converting"
        raise UsageError(f"{', '.join(map(_text, empty))}: a dimension of size 0 holds nothing{remedy}")


def _or_leave_out(leaves: Sequence[SpecLeaf]) -> str:
    """How to leave out the leaves, if they are in the observation or policy_info."""
    groups = {leaf.path.split("/")[0] for leaf in leaves if "/" in leaf.path}
    flags = {"observation": "--observation_fields", "policy_info": "--policy_info_fields, or policy_info_fn"}
    where = [flags[group] for group in flags if group in groups]
    return f", or leave it out ({'; '.join(where)})" if where else ""


def _text(leaf: SpecLeaf) -> str:
    return f"{leaf.path}: {leaf.dtype}{list(leaf.shape)}"


def decode_pixels(images: EncodedImages, leaf: SpecLeaf) -> Array:
    """Decodes images to [n, H, W, C] in the leaf's dtype; an empty image becomes zeros.

    Raises:
      BadEpisode: an image cannot be decoded, or its size is not the leaf's.
    """
    there = images.data != ZERO_IMAGE
    if there.all():
        return images.decode(leaf.path)
    pixels = np.zeros((len(images), *leaf.shape), leaf.dtype)
    if there.any():
        pixels[there] = images[there].decode(leaf.path)
    return pixels


def encode_jpegs(column: Column, leaf: SpecLeaf, quality: int) -> list[bytes | memoryview]:
    """Converts the images of a column to JPEGs; JPEGs of the leaf's shape are passed on without a copy.

    Args:
      column: uint8 [n, H, W, C], or encoded images.
      leaf: the leaf, of shape (H, W, C) with 1 or 3 channels.
      quality: the quality, 0 to 100, of images that are not JPEGs already.

    Raises:
      BadEpisode: an image cannot be decoded, or its size is not the leaf's.
    """
    if not isinstance(column, EncodedImages):
        return [*encode_jpeg(column, quality)]
    jpegs: list[Any] = column.pieces() if isinstance(column, StoredImages) else column.data.tolist()
    others = []
    for step in _not_known(column, leaf.shape):
        image = column.image(step)
        if image == ZERO_IMAGE:
            jpegs[step] = zero_jpeg(leaf.shape, quality)
        elif not _is_jpeg_with_shape(image, leaf.shape):
            others.append(step)
    if others:
        for step, jpeg in zip(others, encode_jpeg(decode_pixels(column[others], leaf), quality), strict=True):
            jpegs[step] = jpeg
    return jpegs


def _not_known(images: EncodedImages, shape: tuple[int, ...]) -> Sequence[int]:
    """The steps whose images may not be JPEGs of the shape: those that start differently from the first one, or all."""
    if not len(images):
        return ()
    first, start = images.image(0), _starts.get(shape, b"")
    if not (start and first.startswith(start)):
        start = jpeg_start(first) if _is_jpeg_with_shape(first, shape) else b""
        _starts[shape] = start
    return images.unlike(start, JPEG_END) if start else range(len(images))


_starts: dict[tuple[int, ...], bytes] = {}
"""The first bytes of the last JPEG of each shape; a camera's JPEGs start alike."""


@functools.cache
def zero_jpeg(shape: tuple[int, ...], quality: int) -> bytes:
    """A JPEG of zeros."""
    return encode_jpeg(np.zeros((1, *shape), np.uint8), quality)[0]


def _is_jpeg_with_shape(data: bytes, shape: tuple[int, ...]) -> bool:
    if not data.startswith(b"\xff\xd8\xff"):
        return False
    import simplejpeg

    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return False
    channels = {"Gray": 1, "RGB": 3, "YCbCr": 3}.get(colorspace)
    return (height, width, channels) == shape


@dataclasses.dataclass(frozen=True)
class Kept:
    """A kept field.

    Attributes:
      field: the path in a record, and the dtype and shape of one value.
      of_step: whether each frame has a value.
    """

    field: Field
    of_step: bool

    def record_field(self, item_shape: tuple[int | None, ...]) -> Field:
        """The field in a record: encoding `none` (a list of values, including text) or `bytes`."""
        shape = (*item_shape, *self.field.shape) if self.of_step else self.field.shape
        encoding = "none" if self.field.dtype in (*LISTS, "string") else "bytes"
        return Field(self.field.path, self.field.dtype, shape, encoding)

    def column(self, episode: Episode, steps: Mapping[str, Column], frames: int) -> np.ndarray[Any, Any]:
        """The values [frames, ...]; an episode field is repeated for each frame."""
        if self.of_step:
            return np.asarray(steps[self.field.path])
        key = self.field.path == EPISODE_KEY
        value = str(episode.key).encode() if key else episode.metadata[self.field.path]
        if self.field.dtype == "string" and not self.field.shape:
            column = np.empty(frames, object)
            column[:] = [value] * frames
            return column
        array = np.asarray(value, self.field.numpy_dtype)
        return np.broadcast_to(array, (frames, *array.shape))

    def entry(self, values: np.ndarray[Any, Any]) -> bytes:
        """The entry of Features.feature for the values of one item."""
        path, dtype = self.field.path, self.field.dtype
        if dtype == "string":
            return bytes_entry(path, [text_bytes(value, path) for value in values.reshape(-1)])
        packed = packed_varints(values.reshape(-1)) if dtype == "int64" else np.ascontiguousarray(values).tobytes()
        return entry_head(path, LISTS.get(dtype, BYTES_LIST), len(packed)) + packed


def keep_fields(names: Iterable[str], schema: Schema, leaves: Iterable[str]) -> tuple[Kept, ...]:
    """Resolves `--keep`: step fields, episode fields, groups of either, or `episode_key`.

    Args:
      leaves: the paths of the trajectory.

    Raises:
      UsageError: a field does not exist, is already in the trajectory, or cannot be stored in a record.
    """
    kept: dict[str, Kept] = {}
    for name in names:
        matching = [Kept(schema.steps[path], True) for path in all_below(schema.steps, name)]
        matching += [Kept(schema.metadata[path], False) for path in all_below(schema.metadata, name)]
        if name == EPISODE_KEY and not matching:
            matching = [Kept(Field(EPISODE_KEY, "string"), False)]
        if not matching:
            known = [EPISODE_KEY, *schema.steps, *schema.metadata]
            longer = [path for path in known if path.endswith(f"/{name}")]
            hint = f"; did you mean {longer[0]}?" if longer else did_you_mean(name, known, most=3) or "."
            raise UsageError(f"--keep={name}: there is no such field{hint} The fields are: {', '.join(known)}")
        kept |= {entry.field.path: entry for entry in matching}
    taken = {*leaves}
    for path, chosen in kept.items():
        if any(below(leaf, path) or below(path, leaf) for leaf in taken):
            raise UsageError(f"--keep={path}: the trajectory already has a leaf of that name")
        field = chosen.field
        if field.dtype not in (*CASTS, "bool", "string") or field.holds_image_files or None in field.shape:
            raise UsageError(f"--keep={path}: only text and numbers of a fixed shape can be kept, not {field}")
    return tuple(kept.values())


def kept_entries(kept: Sequence[Kept], columns: Mapping[str, Column], index: np.ndarray[Any, Any]) -> bytes:
    """The entries of one item with frames `index` (negative: padding)."""
    entries = []
    for member in kept:
        column = np.asarray(columns[member.field.path])
        values = column[index if member.of_step else index[:1]]
        if member.of_step:
            values[index < 0] = b"" if member.field.dtype == "string" else 0
        entries.append(member.entry(values))
    return b"".join(entries)
