"""A column of a Minari episode: a dataset of its group."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rlds_beam.episodes.columns import text_bytes
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.formats.arrays.hdf5_objects import datatype
from rlds_beam.formats.arrays.leaves import JPEG_QUALITY, LeafColumn, representable, text_values
from rlds_beam.formats.arrays.parts import Values
from rlds_beam.formats.minari import gym_spaces
from rlds_beam.images.encoding import encode_jpeg


@dataclasses.dataclass(frozen=True)
class MinariColumn:
    """Where a field goes.

    Attributes:
      field: of a step, or of the episode.
      place: in the group of an episode: `observations/state`.
      of: whether it has a value for each step, each transition (all steps but the last), or one for the episode.
      jpeg: whether its values are JPEGs.
    """

    field: Field
    place: str
    of: Literal["step", "transition", "episode"]
    jpeg: bool = False

    def __post_init__(self) -> None:
        datatype(self.dtype)  # raises where HDF5 has no such type

    @property
    def is_text(self) -> bool:
        return self.field.dtype == "string"

    @property
    def dtype(self) -> Any:
        """Of its dataset (`hdf5_tree.Leaf`)."""
        if self.is_text:
            return "text"
        return "bytes" if self.jpeg else self._stored

    @property
    def _stored(self) -> np.dtype[Any]:
        dtype = LeafColumn(self.field).dtype
        is_space = dtype.kind == "b" and self.place.startswith(("observations", "actions"))
        return np.dtype(np.int8) if is_space else dtype  # Gymnasium has no Box of bools

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a row of its dataset."""
        return () if self.is_text or self.jpeg else self.field.closed_shape

    @property
    def is_discrete(self) -> bool:
        """Whether it is one integer a step, of a space whose size is that of what was recorded."""
        is_space = self.place.startswith(("observations", "actions"))
        return is_space and not self.is_text and self._stored.kind in "iu" and not self.field.shape

    def values(self, episode: Episode) -> Values:
        """Its rows.

        Raises:
          BadEpisode: an image cannot be decoded.
        """
        if self.of == "episode":
            return self._value(episode.metadata[self.field.path])
        stop = len(episode) if self.of == "step" else len(episode) - 1
        if self.is_text:
            return text_values(episode.steps[self.field.path][:stop], self.field.path)
        leaf = LeafColumn(self.field)
        if not self.jpeg:
            return representable(leaf.values(episode, stop), self._stored, self.field.path)
        if len(leaf.shape) == 2:
            return encode_jpeg(leaf.values(episode, stop)[..., None], JPEG_QUALITY)
        return leaf.jpegs(episode)[:stop]

    def _value(self, value: Any) -> Values:
        if self.is_text:
            return [text_bytes(value, self.field.path)]
        return np.ascontiguousarray(np.asarray(value, self._stored).reshape(1, *self.shape))

    def space(self, about: Sequence[Any]) -> gym_spaces.JsonSpace:
        """Its space; `about` is what was found of its values in each part."""
        known = [one for one in about if one is not None]
        if self.is_discrete:
            return gym_spaces.discrete(min(low for low, _ in known), max(high for _, high in known))
        if self.is_text:
            characters = {character for _, some in known for character in some}
            return gym_spaces.text(max(longest for longest, _ in known), sorted(characters))
        return gym_spaces.box(self._stored, self.field.closed_shape)


def text_range(rows: Sequence[bytes], known: list[Any] | None) -> list[Any]:
    """The length of the longest text so far, and the characters of all of them."""
    longest, characters = known or (0, "")
    found = [row.decode("utf-8", "replace") for row in {*rows}]
    return [max(longest, *map(len, found)), "".join(sorted({*characters}.union(*found)))]
