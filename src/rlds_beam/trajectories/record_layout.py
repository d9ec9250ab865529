"""How a trajectory item is stored in a tf.Example, so that TF-Agents and TFDS both read it.

Both want the leaf paths joined with `/`, float32 as a float list, int64 as an int64 list and every
other dtype as raw little-endian bytes (for TFDS a `Tensor` of encoding `bytes`). What an item's
leading axis is decides the rest:

- items of L frames: leaves are [L, ...]; single frames: no leading axis, as TF-Agents'
  TFRecordObserver writes.
- whole episodes: [None, ...]. TFDS reads that as it is. TF-Agents' own decoder knows no unknown
  dimension and says so (`Dimension 0 is invalid`); hand it another,
  `load_tfrecord_dataset(files, decoder=rlds_beam.formats.trajectories.loading.decoder(path))`.

With `images=jpeg`, TF-Agents' `compress_image=True` takes every uint8 leaf of rank 3 for one JPEG,
and no other leaf. A leaf of L images cannot be one of those, so it becomes a tuple of L leaves
(`observation/camera/0`, `/1`, ...), each one JPEG: both readers read it, a frame is encoded once
however many items it is in, and a JPEG of the input is written unchanged. Stack them to have
[L, H, W, C], as `rlds_beam.load_trajectories` does. In whole episodes it is a list of JPEGs, for TFDS a
`Sequence` of images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.trajectories.options import CASTS, Images

if TYPE_CHECKING:
    from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec


_LISTS = ("float32", "int64")
"""The dtypes that are lists of numbers in a record; all others that TF-Agents reads (`CASTS`) are raw bytes."""

_CASTS = {"bool": "uint8", "uint32": "int64", "uint64": "int64", "bfloat16": "float32"}

_IMAGE_CHANNELS = (1, 3)
"""What a JPEG can hold."""


def record_fields(spec: TrajectorySpec, images: Images = "raw") -> tuple[Field, ...]:
    """The features of one record, in the spec's order.

    Returns:
      Fields whose `shape` is that of a whole item (leading axis included, None where unknown) and
      whose `encoding` is `none` (a list of numbers), `bytes` or `jpeg`.

    Raises:
      UsageError: a leaf is of a dtype or a shape that the format cannot hold; says which and what
        to cast it to.
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
            f"{_text(leaf)}: TF-Agents' compress_image=True would take items of shape {list(shape)} for JPEGs; write "
            f"the dataset with --images=raw{_or_leave_out([leaf])}"
        )
    return [Field(leaf.path, leaf.dtype, shape, "none" if leaf.dtype in _LISTS else "bytes")]


def _check(leaves: Sequence[SpecLeaf]) -> None:
    """Raises UsageError that names every leaf that TF-Agents cannot read."""
    refused = [leaf for leaf in leaves if leaf.dtype not in CASTS]
    if refused:
        casts = ",".join(f"{leaf.path}={_CASTS.get(leaf.dtype, 'float32')}" for leaf in refused)
        dtypes = " and ".join(dict.fromkeys(leaf.dtype for leaf in refused))
        raise UsageError(
            f"{', '.join(map(_text, refused))}: TF-Agents cannot read {dtypes} from a TFRecord; ask for a cast, "
            f"--cast={casts}{_or_leave_out(refused)}"
        )
    empty = [leaf for leaf in leaves if 0 in leaf.shape]
    if empty:
        remedy = _or_leave_out(empty) or ", or give it a value for each step before converting"
        raise UsageError(f"{', '.join(map(_text, empty))}: a dimension of 0 holds nothing{remedy}")


def _or_leave_out(leaves: Sequence[SpecLeaf]) -> str:
    """How leaves can be left out, where they can: the observation's and policy_info's."""
    groups = {leaf.path.split("/")[0] for leaf in leaves if "/" in leaf.path}
    flags = {"observation": "--observation_fields", "policy_info": "--policy_info_fields, or policy_info_fn"}
    where = [flags[group] for group in flags if group in groups]
    return f", or leave out what is not needed ({'; '.join(where)})" if where else ""


def _text(leaf: SpecLeaf) -> str:
    return f"{leaf.path}: {leaf.dtype}{list(leaf.shape)}"
