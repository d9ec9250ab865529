"""Fields that a record carries besides its trajectory (`--keep`): text, episode metadata, and the episode's key.

They are not in the `.spec`, so TF-Agents ignores them; TFDS and `load_trajectories(kept=True)` read them. A step field
has one value per frame of an item. An episode field has one value per item: with `across_episodes`, the value of its
first frame's episode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.encoding.example.rows import BYTES_LIST, FLOAT_LIST, INT64_LIST, bytes_entry, entry_head
from rlds_beam.encoding.wire import packed_varints
from rlds_beam.episodes.columns import all_below, below, text_bytes
from rlds_beam.episodes.episode import EPISODE_KEY, Column, Episode
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean
from rlds_beam.trajectories.options import CASTS

_LISTS = {"float32": FLOAT_LIST, "int64": INT64_LIST}
_DTYPES = (*CASTS, "bool", "string")


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
        encoding = "none" if self.field.dtype in (*_LISTS, "string") else "bytes"
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
        return entry_head(path, _LISTS.get(dtype, BYTES_LIST), len(packed)) + packed


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
        if chosen.field.dtype not in _DTYPES or chosen.field.holds_image_files or None in chosen.field.shape:
            raise UsageError(f"--keep={path}: only text and numbers of a fixed shape can be kept, not {chosen.field}")
    return tuple(kept.values())


def kept_entries(kept: Sequence[Kept], columns: Mapping[str, Column], index: np.ndarray[Any, Any]) -> bytes:
    """The entries of one item with frames `index` (negative: padding)."""
    return b"".join(member.entry(_values(member, np.asarray(columns[member.field.path]), index)) for member in kept)


def _values(entry: Kept, column: np.ndarray[Any, Any], index: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not entry.of_step:
        return np.asarray(column[index[:1]])
    values: np.ndarray[Any, Any] = column[index]
    if (padding := index < 0).any():
        values[padding] = b"" if entry.field.dtype == "string" else 0
    return values
