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
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.encoded_images import ZERO_IMAGE, EncodedImages, StoredImages
from rlds_beam.images.headers import JPEG_END, jpeg_start
from rlds_beam.trajectories.frames import LISTS
from rlds_beam.trajectories.options import CASTS, Images

if TYPE_CHECKING:
    from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec

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
    _check_dtypes(spec.leaves)
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
            raise UsageError(f"{_describe_leaf(leaf)}: a JPEG holds 1 or 3 channels; write it with --images=raw")
        if item_shape in ((), (None,)):
            return [Field(leaf.path, leaf.dtype, shape, "jpeg", "Image")]
        return [Field(f"{leaf.path}/{i}", leaf.dtype, leaf.shape, "jpeg", "Image") for i in range(item_shape[0] or 0)]
    if images == "jpeg" and leaf.dtype == "uint8" and len(shape) == 3 and item_shape != (None,):
        raise UsageError(
            f"{_describe_leaf(leaf)}: TF-Agents' compress_image=True would read items of shape {list(shape)} as JPEGs; "
            f"write the dataset with --images=raw{_or_leave_out([leaf])}"
        )
    return [Field(leaf.path, leaf.dtype, shape, "none" if leaf.dtype in LISTS else "bytes")]


def _check_dtypes(leaves: Sequence[SpecLeaf]) -> None:
    """Raises UsageError that lists every leaf that TF-Agents cannot read."""
    refused = [leaf for leaf in leaves if leaf.dtype not in CASTS]
    if refused:
        casts = ",".join(f"{leaf.path}={_CASTS.get(leaf.dtype, 'float32')}" for leaf in refused)
        dtypes = " and ".join(dict.fromkeys(leaf.dtype for leaf in refused))
        raise UsageError(
            f"{', '.join(map(_describe_leaf, refused))}: TF-Agents cannot read {dtypes} from a TFRecord; cast it: "
            f"--cast={shlex.quote(casts)}{_or_leave_out(refused)}"
        )
    empty = [leaf for leaf in leaves if 0 in leaf.shape]
    if empty:
        remedy = _or_leave_out(empty) or ", or remove it before converting"
        raise UsageError(f"{', '.join(map(_describe_leaf, empty))}: a dimension of size 0 holds nothing{remedy}")


def _or_leave_out(leaves: Sequence[SpecLeaf]) -> str:
    """How to leave out the leaves, if they are in the observation or policy_info."""
    groups = {leaf.path.split("/")[0] for leaf in leaves if "/" in leaf.path}
    flags = {"observation": "--observation_fields", "policy_info": "--policy_info_fields, or policy_info_fn"}
    where = [flags[group] for group in flags if group in groups]
    return f", or leave it out ({'; '.join(where)})" if where else ""


def _describe_leaf(leaf: SpecLeaf) -> str:
    return f"{leaf.path}: {leaf.dtype}{list(leaf.shape)}"


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
        for step, jpeg in zip(
            others, encode_jpeg(column[others].decode_all(leaf.path, leaf.shape), quality), strict=True
        ):
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
