"""Computes the spec of a dataset's trajectories before the first episode is read."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.encoding.wire import DATA_TYPES, encode_delimited, integer, text
from rlds_beam.episodes.columns import nest, nest_order, zeros_of
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.representations import Representation
from rlds_beam.episodes.schema import FLAGS, Field, Schema, episode_flags
from rlds_beam.errors import RldsBeamError, UsageError, needs
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.trajectories.frames import Frames, Kept, keep_fields, to_frames
from rlds_beam.trajectories.leaves import layout
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.user_functions import describe_error

Shape = tuple[int | None, ...]

_GROUPS = ("step_type", "observation", "action", "policy_info", "next_step_type", "reward", "discount")
"""The fields of tf_agents.trajectories.Trajectory, in its order."""


@dataclasses.dataclass(frozen=True)
class SpecLeaf:
    """One leaf of a trajectory.

    Attributes:
      path: the names joined with `/`: `observation/image_0`, `step_type`.
      dtype: the numpy dtype name of a value; for an image, of a pixel.
      shape: the shape of one frame, without the item's axis. All dimensions are known.
      encoding: `png` or `jpeg` for images that are encoded in the frames; `none` otherwise.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    encoding: str = "none"

    def __str__(self) -> str:
        encoded = "" if self.encoding == "none" else f" ({self.encoding} in the dataset)"
        return f"{self.path}: {self.dtype}({', '.join(map(str, self.shape))}){encoded}"

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype; bfloat16 comes from ml_dtypes."""
        return _numpy_dtype(self.dtype)


@dataclasses.dataclass(frozen=True)
class TrajectorySpec:
    """The leaves of an item.

    Attributes:
      leaves: the leaves, in the order in which `tf.nest` flattens a `Trajectory`.
      item_shape: the leading axes of an item: () for single frames, (L,) for pairs and sequences, (None,) for whole
        episodes.
      left_out: step and episode fields that are in no leaf -> a human-readable reason.
      frames, items: how episodes become these items; None if the items were not converted from episodes.
      keep: the fields that items carry besides their leaves.
      names, representations: those of the values of leaves, by path, if known.
    """

    leaves: tuple[SpecLeaf, ...]
    item_shape: Shape
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    frames: FrameOptions | None = None
    items: ItemOptions | None = None
    keep: tuple[Kept, ...] = ()
    names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, compare=False)
    representations: Mapping[str, Representation] = dataclasses.field(default_factory=dict, compare=False)

    def __getitem__(self, path: str) -> SpecLeaf:
        return self._by_path[path]

    def __contains__(self, path: str) -> bool:
        return path in self._by_path

    @functools.cached_property
    def _by_path(self) -> dict[str, SpecLeaf]:
        return {leaf.path: leaf for leaf in self.leaves}

    @functools.cached_property
    def _expected(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        return {leaf.path: (leaf.numpy_dtype, leaf.shape) for leaf in self.leaves}

    def with_columns(self, *fields: Field) -> TrajectorySpec:
        """Returns a spec with more leaves, for items to which columns were added; leaves of the same path are replaced.

        Args:
          fields: the path (`policy_info/speed`), dtype, shape, names, and representation of a frame's value.

        Raises:
          UsageError: a path is not one of a trajectory or is below another leaf, or a field is text or has an unknown
            dimension.
        """
        leaves = {leaf.path: leaf for leaf in self.leaves}
        added = Schema({field.path: field for field in fields})
        names = {path: own for path, own in self.names.items() if path not in added.steps}
        known = {path: own for path, own in self.representations.items() if path not in added.steps}
        for field in fields:
            if field.path.split("/")[0] not in _GROUPS or field.dtype == "string" or None in field.shape:
                raise UsageError(f"{field}: a trajectory holds numbers of a fixed shape below {', '.join(_GROUPS)}")
            shape = tuple(size for size in field.shape if size is not None)
            leaves[field.path] = SpecLeaf(field.path, field.dtype, shape, field.encoding)
        ordered = [path for group in _GROUPS for path in nest_order([p for p in leaves if p.split("/")[0] == group])]
        nest(dict.fromkeys(ordered))  # raises if a leaf is below another one
        made = tuple(leaves[path] for path in ordered)
        names, known = {**names, **added.names}, {**known, **added.representations}
        return dataclasses.replace(self, leaves=made, names=names, representations=known)

    def check(self, frames: Frames) -> None:
        """Raises UsageError if the frames do not match this spec (takes some microseconds).

        Frames of valid episodes match, unless `policy_info_fn` returns different things for different episodes.
        """
        actual = {path: _dtype_and_shape(column) for path, column in frames.columns.items()}
        if actual == self._expected:
            return
        for path in sorted(actual.keys() | self._expected.keys()):
            pairs = (actual.get(path), self._expected.get(path))
            got, expected = ("missing" if p is None else f"{p[0].name}{list(p[1])}" for p in pairs)
            if got != expected:
                raise UsageError(f"{frames.key}: {path} is {got}, but the dataset's trajectories have {expected}")

    def to_tf(self, *, per_frame: bool = False) -> Any:
        """Returns a TF-Agents `Trajectory` of `tf.TensorSpec` for an item (imports TensorFlow).

        Names, bounds, and nesting are those of TF-Agents' `create_trajectory_data_spec`. With `per_frame=True` the
        result equals it for flat data; otherwise each shape starts with `item_shape`.

        Raises:
          MissingExtraError: TensorFlow or TF-Agents is not installed.
        """
        with needs("agents", "a spec of TF-Agents needs TensorFlow and TF-Agents"):
            import tensorflow as tf
            from tf_agents.specs import tensor_spec
            from tf_agents.trajectories import trajectory

        specs: dict[str, Any] = {}
        outer: Shape = () if per_frame else self.item_shape
        for leaf in self.leaves:
            shape = (*outer, *leaf.shape)
            if leaf.path == "discount":
                specs[leaf.path] = tensor_spec.BoundedTensorSpec(shape, tf.float32, 0.0, 1.0, name="discount")
            else:
                name = "step_type" if leaf.path in ("step_type", "next_step_type") else None
                specs[leaf.path] = tf.TensorSpec(shape, tf.as_dtype(leaf.dtype), name=name)
        return trajectory.Trajectory(**{"policy_info": (), **nest(specs)})


def trajectory_spec(
    schema: Schema, frame_options: FrameOptions, item_options: ItemOptions, keep: Sequence[str] = ()
) -> TrajectorySpec:
    """Computes the spec of a dataset's items from its schema.

    Text in the observation is left out and listed in `left_out`, unless an option names it. A `policy_info_fn` is
    called with an episode of two steps of zeros (text is empty, images are black) to find its spec.

    Args:
      keep: the fields that items carry besides their leaves, as in `ConvertConfig`.

    Raises:
      UsageError: an option names a field that does not exist; the schema lacks a required field; a field cannot be in
        a trajectory (text, an unknown dimension, more than one discount per step); or `policy_info_fn` failed.
    """
    text = tuple(path for path, field in schema.steps.items() if field.dtype == "string")
    plan = layout(tuple(schema.steps), text, frame_options)
    sources = {path: path for path in (*plan.observation, *plan.action, *plan.reward)} | dict(plan.policy_info)
    for path in (*sources.values(), "discount"):
        _refuse_open(schema.steps[path], [p for p in plan.observation if None not in schema.steps[p].shape])
    if schema.steps["discount"].known_size != 1:
        raise UsageError(
            f"{schema.steps['discount']}: a trajectory has one discount per frame; store one per step, of shape () or "
            "(1,), before converting"
        )
    leaves = []
    for path, column in _zero_frames(schema, frame_options).columns.items():
        field = schema.steps.get(sources.get(path, ""))
        dtype, shape = _dtype_and_shape(column)
        encoding = field.encoding if field is not None and isinstance(column, EncodedImages) else "none"
        leaves.append(SpecLeaf(path, dtype.name, shape, encoding))
    item_shape: Shape = () if item_options.items == "frames" else (item_options.length,)
    left_out = _find_left_out(schema, set(sources.values()), frame_options)
    kept = keep_fields(keep, schema, (leaf.path for leaf in leaves))
    of_leaves = Schema({leaf.path: schema.steps[leaf.path] for leaf in leaves if leaf.path in schema.steps})
    known = of_leaves.names, of_leaves.representations
    return TrajectorySpec(tuple(leaves), item_shape, left_out, frame_options, item_options, kept, *known)


def _find_left_out(schema: Schema, used: Iterable[str], options: FrameOptions) -> dict[str, str]:
    """The fields that are in no trajectory, with reasons."""
    reasons = {}
    for path, field in sorted(schema.steps.items()):
        if path in used or path in (*FLAGS, "discount"):
            continue
        if field.dtype == "string":
            reasons[path] = "text; a trajectory can only hold numbers"
        elif path.startswith("observation/"):
            reasons[path] = "not in --observation_fields"
        else:
            reasons[path] = f"not a trajectory leaf; --policy_info_fields={shlex.quote(path)} adds it to policy_info"
    return reasons | dict.fromkeys(sorted(schema.metadata), "an episode field; not a trajectory leaf")


def _refuse_open(field: Field, usable: list[str]) -> None:
    if None not in field.shape:
        return
    remedy = "give it a fixed size before converting"
    if field.path.startswith("observation/") and usable:
        names = ",".join(path.removeprefix("observation/") for path in usable)
        remedy = f"leave it out: --observation_fields={shlex.quote(names)}"
    raise UsageError(f"{field}: its size is unknown, but a trajectory needs a fixed size; {remedy}")


def _zero_frames(schema: Schema, options: FrameOptions) -> Frames:
    """The frames of an episode of two zero steps, from which the spec is read; includes `policy_info_fn`."""
    steps = {path: zeros_of(field, 2) for path, field in schema.steps.items()}
    steps |= episode_flags(2, terminal=False)
    episode = Episode(EpisodeKey("zeros", "zeros", 0, 0), steps)
    try:
        return to_frames(episode, options)
    except UsageError:
        raise
    except RldsBeamError as error:
        raise UsageError(
            f"--policy_info_fn={options.policy_info_fn}: in a dry run on an episode of two zero steps, it "
            f"{describe_error(error.__cause__ or error)}"
        ) from error


def _dtype_and_shape(column: Column) -> tuple[np.dtype[Any], tuple[Any, ...]]:
    """The dtype and shape of one frame."""
    if isinstance(column, EncodedImages):
        return _numpy_dtype(column.dtype), column.shape
    return column.dtype, column.shape[1:]


@functools.cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    return Field("", name).numpy_dtype


_FLOAT = DATA_TYPES["float32"]

# Fields of StructuredValue.
_TENSOR_SPEC, _BOUNDED_SPEC, _TUPLE, _DICT, _NAMED_TUPLE = 33, 35, 52, 53, 54

# TF-Agents names these specs (ts.time_step_spec), and specs with different names are not equal.
_NAMES = {"step_type": "step_type", "next_step_type": "step_type", "discount": "discount"}

Tree = dict[str, "Tree | Field"]


def encode_spec(fields: Iterable[Field]) -> bytes:
    """Serializes the StructuredValue of a `Trajectory`, byte-identical to that of TF-Agents' `encode_spec_to_file`.

    Args:
      fields: the leaves (`observation/state` and so on), with the shape of a whole item, None if unknown. A group of
        leaves named `0`, `1`, ... is a tuple; other groups are dicts.

    Raises:
      UsageError: a leaf is in none of Trajectory's fields.
    """
    leaves = {field.path: field for field in fields}
    for path in leaves:
        if path.split("/")[0] not in _GROUPS:
            raise UsageError(f"{path} is not in a field of Trajectory; the fields are {', '.join(_GROUPS)}")
    tree: Tree = nest(leaves)
    # A field without leaves, usually policy_info, is the empty tuple.
    pairs = (text(1, name) + encode_delimited(2, _value(tree.get(name, {}))) for name in _GROUPS)
    return encode_delimited(_NAMED_TUPLE, text(1, "Trajectory") + b"".join(encode_delimited(2, pair) for pair in pairs))


def is_tuple(names: Iterable[str]) -> bool:
    """Whether a group of leaves with these names is a tuple."""
    names = set(names)
    return names == {str(i) for i in range(len(names))}


def _value(node: Mapping[str, Tree | Field] | Field) -> bytes:
    if isinstance(node, Field):
        return _tensor_spec(node)
    if is_tuple(node):
        items = (encode_delimited(1, _value(node[str(i)])) for i in range(len(node)))
        return encode_delimited(_TUPLE, b"".join(items))
    entries = (text(1, name) + encode_delimited(2, _value(child)) for name, child in sorted(node.items()))
    return encode_delimited(_DICT, b"".join(encode_delimited(1, entry) for entry in entries))


def _tensor_spec(field: Field) -> bytes:
    dims = (encode_delimited(2, integer(1, -1 if size is None else size)) for size in field.shape)
    spec = text(1, _NAMES.get(field.path)) + encode_delimited(2, b"".join(dims)) + integer(3, DATA_TYPES[field.dtype])
    if field.path != "discount":
        return encode_delimited(_TENSOR_SPEC, spec)
    return encode_delimited(_BOUNDED_SPEC, spec + encode_delimited(4, _scalar(0.0)) + encode_delimited(5, _scalar(1.0)))


def _scalar(value: float) -> bytes:
    """A float32 TensorProto of shape ()."""
    return integer(1, _FLOAT) + encode_delimited(2, b"") + encode_delimited(5, struct.pack("<f", value))
