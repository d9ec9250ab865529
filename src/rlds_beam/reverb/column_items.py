"""Converts the columns that connectors add to items: one per row, without a time axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.connectors.base import Batch, by_module
from rlds_beam.connectors.dry_run import Probed
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.text import did_you_mean
from rlds_beam.trajectories.converter import WindowItemConversion, WindowItemConverter
from rlds_beam.trajectories.frames import Frames
from rlds_beam.trajectories.items import Items, UnusedSteps, Windows
from rlds_beam.trajectories.options import ItemOptions
from rlds_beam.trajectories.spec import SpecLeaf, TrajectorySpec

T = TypeVar("T")

_FLAG = "--columns"


@dataclasses.dataclass(frozen=True)
class ColumnItemConversion:
    """Converts rows of columns to items, with the members of `WindowItemConversion`. Picklable.

        obs (2, 20, 3), seq_lens (2,), state_in/h (2, 64)   ->   two items: [(20, 3), (), (64,)]

    Attributes:
      module: the module whose columns are used.
      spec: the spec of an item: the columns in the order of `tf.nest`.
    """

    module: str
    spec: TrajectorySpec

    @classmethod
    def from_probe(cls, probed: Probed, module: str | None) -> ColumnItemConversion:
        """The items of a module's columns.

        Raises:
          UsageError: there are no columns, there is no such module, or a table cannot hold a column.
        """
        modules = probed.modules
        if not modules:
            raise UsageError(f"{_FLAG}: no connector adds columns: name some with --connectors=FILE")
        if module is None and len(modules) > 1:
            raise UsageError(
                f"{_FLAG}: the connectors have columns for {', '.join(modules)}: choose one with --module=NAME"
            )
        chosen = next(iter(modules)) if module is None else module
        if chosen not in modules:
            raise UsageError(
                f"--module={chosen}: connectors have columns for {', '.join(modules)}{did_you_mean(chosen, modules)}"
            )
        left_out = {f"module {name}": f"{_FLAG} pushes one module" for name in modules if name != chosen}
        fields = sorted(modules[chosen].items(), key=lambda item: item[0].split("/"))
        numeric = [field for _, field in fields if field.dtype != "string"]
        left_out |= {path: "text, which a table cannot hold" for path, f in fields if f.dtype == "string"}
        return cls(chosen, TrajectorySpec(tuple(map(_leaf, numeric)), (), left_out))

    @property
    def items(self) -> ItemOptions:
        """The item options: a row is written like a single frame."""
        return ItemOptions(items="frames")

    @property
    def ignored_values(self) -> IgnoredValues:
        return IgnoredValues()

    def salt(self) -> dict[str, Any]:
        """The inputs of the items' keys besides their episodes."""
        return {"module": self.module}

    def count(self, batch: Batch) -> tuple[int, int]:
        """The number of rows of the module, and no frames."""
        columns = by_module(batch).get(self.module, {})
        return len(next(iter(columns.values()))) if columns else 0, 0

    def converter(self, encode: Callable[[Items], T]) -> ColumnItemConverter[T]:
        return ColumnItemConverter(self, encode)


class ColumnItemConverter(Generic[T]):
    """Converts the batches of one range of a dataset for a sink (like `trajectories.converter.WindowItemConverter`).

    Args:
      conversion: the columns to convert.
      encode: encodes items for the sink.

    Attributes:
      predicted: the number of rows so far.
      unused_steps: always empty, because connectors choose the steps of a row.
    """

    unused_steps: Mapping[str, UnusedSteps]

    def __init__(self, conversion: ColumnItemConversion, encode: Callable[[Items], T]):
        self._conversion, self._encode = conversion, encode
        self.predicted = 0
        self.unused_steps = {}

    def encode_batch(self, batch: Batch) -> list[T]:
        """Encodes the rows of a batch, all of them or none. Raises BadEpisode if an image cannot be decoded."""
        count, _ = self._conversion.count(batch)
        if not count:
            return []
        columns = by_module(batch)[self._conversion.module]
        rows = {leaf.path: _values(columns[leaf.path], leaf) for leaf in self._conversion.spec.leaves}
        encoded = self._encode(Items(Frames(rows, batch.episodes[0].key), Windows(0, count, 1, 1, count)))
        self.predicted += count
        return [encoded]

    def encode_items(self, items: Items) -> T:
        """Encodes rows that are items already."""
        encoded = self._encode(items)
        self.predicted += len(items)
        return encoded

    def finish(self) -> list[T]:
        """Returns nothing: no items remain between batches."""
        return []


ItemConversion: TypeAlias = WindowItemConversion | ColumnItemConversion
"""How the batches of one dataset become items."""

ItemConverter: TypeAlias = WindowItemConverter[T] | ColumnItemConverter[T]
"""Converts the batches of an ordered range."""


def _leaf(field: Field) -> SpecLeaf:
    shape = tuple(d for d in field.shape if d is not None)
    if len(shape) < len(field.shape):
        raise UsageError(
            f"{_FLAG}: {field}: its shape differs from row to row, but a table needs one shape: pad it "
            "(AddTimeDimToBatchAndZeroPad), or remove it"
        )
    return SpecLeaf(field.path, field.dtype, shape)


def _values(column: Column, leaf: SpecLeaf) -> Column:
    if not isinstance(column, EncodedImages):
        return column
    flat = column.with_data(column.data.reshape(-1))
    pixels = flat.decode_all(leaf.path, leaf.shape[column.data.ndim - 1 :])
    return np.ascontiguousarray(pixels.reshape(len(column), *leaf.shape))
