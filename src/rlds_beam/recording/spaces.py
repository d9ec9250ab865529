"""Observations and actions as leaves, from gymnasium's and gym's spaces and dm_env's specs.

Spaces and specs are recognized by their class names, so none of these packages is imported.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.episodes.schema import Field, text_field
from rlds_beam.errors import UsageError


@dataclasses.dataclass(frozen=True)
class SpaceLeaf:
    """One value of an observation or an action.

    Attributes:
      path: the names below the observation or action, joined by `/`; empty for a single value.
      kind: `box` (numbers between bounds), `discrete` (one choice), `multi_discrete` (several), or `text`.
      dtype: numpy's name of the dtype; `string` for text.
      shape: the shape of one value.
      low, high: the bounds of a box, in its shape; infinite if unbounded.
      sizes: the number of choices: a scalar for one choice, else an array of the leaf's shape.
      start: the number of the first choice.
      names: the names of the values of a vector; empty if unknown.
    """

    path: str
    kind: str
    dtype: str
    shape: tuple[int, ...] = ()
    low: Any = None
    high: Any = None
    sizes: Any = None
    start: Any = 0
    names: tuple[str, ...] = ()

    @property
    def choices(self) -> int:
        """The number of choices of a discrete leaf."""
        return int(self.sizes)

    @property
    def size(self) -> int:
        """The number of elements in one value."""
        return math.prod(self.shape)

    def field(self, name: str, images: bool = False) -> Field:
        """The step field of this leaf.

        Args:
          name: `observation` or `action`.
          images: stores arrays as PNG if possible.
        """
        path = f"{name}/{self.path}" if self.path else name
        if self.kind == "text":
            return text_field(path)
        if images and self.dtype == "uint8" and len(self.shape) == 3 and self.shape[-1] in (1, 3, 4):
            return Field(path, self.dtype, self.shape, "png", "Image")
        return number_field(path, self.dtype, self.shape).with_names(self.names)


def number_field(path: str, dtype: str, shape: tuple[int, ...] = ()) -> Field:
    """A field of numbers, stored exactly: a tf.Example holds floats only as float32, so wider ones become bytes."""
    encoding = "bytes" if dtype in ("float64", "uint64") else "none"
    return Field(path, dtype, shape, encoding, "Tensor" if shape else "Scalar")


@dataclasses.dataclass(frozen=True)
class Structure:
    """The tree of leaves of an observation or action.

    Attributes:
      tree: a leaf, or a dict or tuple of trees.
      leaves: the leaves, in the order of the tree.
    """

    tree: Any
    leaves: tuple[SpaceLeaf, ...]

    @classmethod
    def from_tree(cls, tree: Any) -> Structure:
        """Creates the structure of a tree, and sets the paths of its leaves."""
        named = _with_name(tree, ())
        return cls(named, tuple(_leaves(named)))

    @property
    def alone(self) -> SpaceLeaf | None:
        """The only leaf, if the tree is a leaf; else None."""
        return self.tree if isinstance(self.tree, SpaceLeaf) else None

    def with_dtypes(self, dtypes: Sequence[str]) -> Structure:
        """A copy with these dtypes of the leaves, in order."""
        changed = [dataclasses.replace(leaf, dtype=d) for leaf, d in zip(self.leaves, dtypes, strict=True)]
        return Structure(self.build(changed), tuple(changed))

    def with_names(self, names: Sequence[str]) -> Structure:
        """A copy whose only leaf has these names of its values; the structure itself if it has several leaves."""
        return self if self.alone is None else Structure.from_tree(dataclasses.replace(self.alone, names=tuple(names)))

    def flatten(self, value: Any) -> tuple[Any, ...]:
        """The values of the leaves, in order."""
        if isinstance(self.tree, SpaceLeaf):
            return (value,)
        return tuple(_values(self.tree, value))

    def build(self, values: Sequence[Any]) -> Any:
        """The nested value with these values of the leaves; the inverse of `flatten`."""
        if isinstance(self.tree, SpaceLeaf):
            return values[0]
        return _build(self.tree, iter(values))


def _with_name(tree: Any, path: tuple[str, ...]) -> Any:
    if isinstance(tree, SpaceLeaf):
        return dataclasses.replace(tree, path="/".join(path))
    if isinstance(tree, Mapping):
        return {name: _with_name(part, (*path, str(name).replace("/", "_"))) for name, part in tree.items()}
    return tuple(_with_name(part, (*path, str(i))) for i, part in enumerate(tree))


def _leaves(tree: Any) -> list[SpaceLeaf]:
    if isinstance(tree, SpaceLeaf):
        return [tree]
    return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in _leaves(part)]


def _values(tree: Any, value: Any) -> list[Any]:
    if isinstance(tree, SpaceLeaf):
        return [value]
    parts = [(part, value[name]) for name, part in tree.items()] if isinstance(tree, dict) else zip(tree, value)  # noqa: B905
    return [leaf for part, of in parts for leaf in _values(part, of)]


def _build(tree: Any, values: Any) -> Any:
    if isinstance(tree, SpaceLeaf):
        return next(values)
    if isinstance(tree, dict):
        return {name: _build(part, values) for name, part in tree.items()}
    return tuple(_build(part, values) for part in tree)


def from_space(space: Any, what: str) -> Structure:
    """The structure of a space of gymnasium or of the old gym.

    Args:
      space: the space.
      what: `observation_space`, for messages.

    Raises:
      UsageError: the space cannot be recorded.
    """
    return Structure.from_tree(_space_tree(space, what))


def _space_tree(space: Any, what: str) -> Any:
    names = {base.__name__ for base in type(space).__mro__}
    if "Dict" in names:
        return {name: _space_tree(part, f"{what}[{name!r}]") for name, part in space.spaces.items()}
    if "Tuple" in names:
        return tuple(_space_tree(part, f"{what}[{i}]") for i, part in enumerate(space.spaces))
    for name, make in _SPACES.items():
        if name in names:
            return make(space)
    raise UsageError(
        f"{what} is a {type(space).__name__}, which cannot be recorded; supported are Box, Discrete, MultiDiscrete, "
        "MultiBinary, Text, and Dict and Tuple of these"
    )


def _box(space: Any) -> SpaceLeaf:
    dtype, shape = np.dtype(space.dtype), tuple(map(int, space.shape))
    if dtype.kind in "iu":
        low, high = (np.broadcast_to(np.asarray(bound), shape) for bound in (space.low, space.high))
    else:
        low, high = (np.broadcast_to(np.asarray(bound, np.float64), shape) for bound in (space.low, space.high))
    return SpaceLeaf("", "box", dtype.name, shape, low, high)


def _discrete(space: Any) -> SpaceLeaf:
    return SpaceLeaf(
        "", "discrete", np.dtype(space.dtype).name, (), sizes=int(space.n), start=int(getattr(space, "start", 0))
    )


def _multi_discrete(space: Any) -> SpaceLeaf:
    sizes = np.asarray(space.nvec, np.int64)
    start = np.asarray(getattr(space, "start", 0), np.int64)
    return SpaceLeaf("", "multi_discrete", np.dtype(space.dtype).name, sizes.shape, sizes=sizes, start=start)


def _multi_binary(space: Any) -> SpaceLeaf:
    shape = tuple(map(int, space.shape))
    return SpaceLeaf("", "multi_discrete", np.dtype(space.dtype).name, shape, sizes=np.full(shape, 2, np.int64))


def _text_space(space: Any) -> SpaceLeaf:
    return SpaceLeaf("", "text", "string")


_SPACES: dict[str, Callable[[Any], SpaceLeaf]] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Text": _text_space,
}


def from_spec(spec: Any, what: str) -> Structure:
    """The structure of a dm_env spec: an array, or dicts, tuples, and lists of arrays.

    Args:
      spec: the spec.
      what: `observation_spec`, for messages.

    Raises:
      UsageError: the spec cannot be recorded.
    """
    return Structure.from_tree(_spec_tree(spec, what))


def _spec_tree(spec: Any, what: str) -> Any:
    if isinstance(spec, Mapping):
        return {name: _spec_tree(part, f"{what}[{name!r}]") for name, part in spec.items()}
    if isinstance(spec, (list, tuple)):
        return tuple(_spec_tree(part, f"{what}[{i}]") for i, part in enumerate(spec))
    leaf = _spec_leaf(spec, what)
    values = str(spec.name or "").split("\t")  # the names of a vector's values, as dm_control's composer stores them
    return dataclasses.replace(leaf, names=tuple(values)) if len(values) > 1 else leaf


def _spec_leaf(spec: Any, what: str) -> SpaceLeaf:
    names = {base.__name__ for base in type(spec).__mro__}
    if "Array" not in names:
        raise UsageError(f"{what} is a {type(spec).__name__}, which cannot be recorded; expected dm_env specs")
    dtype, shape = np.dtype(spec.dtype), tuple(map(int, spec.shape))
    if "StringArray" in names and not shape:
        return SpaceLeaf("", "text", "string")
    if "DiscreteArray" in names:
        return SpaceLeaf("", "discrete", dtype.name, (), sizes=int(spec.num_values))
    if "BoundedArray" in names:
        kind = np.int64 if dtype.kind in "iu" else np.float64
        low, high = (np.broadcast_to(np.asarray(b, kind), shape) for b in (spec.minimum, spec.maximum))
        return SpaceLeaf("", "box", dtype.name, shape, low, high)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return SpaceLeaf("", "box", dtype.name, shape, np.full(shape, limits.min), np.full(shape, limits.max))
    if dtype.kind not in "fb":
        raise UsageError(f"{what} has dtype {dtype}, which cannot be recorded")
    return SpaceLeaf("", "box", dtype.name, shape, np.full(shape, -np.inf), np.full(shape, np.inf))
