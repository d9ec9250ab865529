"""A column of a Minari episode: a dataset in its group."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from rlds_beam.episodes.columns import text_bytes
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Field
from rlds_beam.formats.arrays.array_episodes import split_bytes
from rlds_beam.formats.arrays.hdf5_writer import EpisodeDataset
from rlds_beam.formats.arrays.leaves import JPEG_QUALITY, LeafColumn, not_representable, representable, text_values
from rlds_beam.formats.arrays.parts import sized_rows
from rlds_beam.formats.minari import gym_spaces
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.typing import Array

EPISODE = "episode_{}"
"""The group of an episode, with its number to fill in."""


@dataclasses.dataclass(frozen=True)
class MinariColumn:
    """The place of a field in the file.

    Attributes:
      field: a field of the steps, or of the episode.
      place: the path in the episode's group: `observations/state`.
      of: whether it has a value for each step, for each transition (all steps but the last), or for the episode.
      jpeg: whether its values are JPEGs.
    """

    field: Field
    place: str
    of: Literal["step", "transition", "episode"]
    jpeg: bool = False

    @property
    def is_text(self) -> bool:
        return self.field.dtype == "string"

    @functools.cached_property
    def dataset(self) -> EpisodeDataset:
        """The dataset in a file."""
        path = f"{EPISODE}/{self.place}"
        if self.is_text or self.jpeg:
            return EpisodeDataset(path, "text" if self.is_text else "bytes")
        return EpisodeDataset(path, self._stored, self.field.closed_shape)

    @functools.cached_property
    def width(self) -> int:
        """The number of columns in a part."""
        return len(self.dataset.part_columns)

    @property
    def _stored(self) -> np.dtype[Any]:
        dtype = LeafColumn(self.field).dtype
        is_space = dtype.kind == "b" and self.place.startswith(("observations", "actions"))
        return np.dtype(np.int8) if is_space else dtype  # Gymnasium has no bool Box

    @property
    def is_discrete(self) -> bool:
        """Whether it is one integer per step, in a space with the recorded range."""
        is_space = self.place.startswith(("observations", "actions"))
        return is_space and not self.is_text and self._stored.kind in "iu" and not self.field.shape

    def rows(self, episode: Episode) -> Sequence[Array]:
        """The rows of each of its part columns. Raises BadEpisode if an image cannot be decoded."""
        stop = len(episode) if self.of == "step" else len(episode) - 1
        if self.is_text:
            if self.of == "episode":
                return sized_rows(self._check([text_bytes(episode.metadata[self.field.path], self.field.path)]))
            return sized_rows(self._check(text_values(episode.steps[self.field.path][:stop], self.field.path)))
        if self.of == "episode":
            value = np.asarray(episode.metadata[self.field.path], self._stored)
            return [np.ascontiguousarray(value.reshape(1, *self.field.closed_shape))]
        leaf = LeafColumn(self.field)
        if not self.jpeg:
            return [representable(leaf.values(episode, stop), self._stored, self.field.path)]
        if len(leaf.shape) == 2:
            return sized_rows(encode_jpeg(leaf.values(episode, stop)[..., None], JPEG_QUALITY))
        return sized_rows(leaf.jpegs(episode)[:stop])

    def extend_range(self, known: Any, rows: Sequence[Array]) -> Any:
        """Extends the range of values so far (`known`, None at first) with more rows, for `space`."""
        if self.is_discrete:
            low, high = int(rows[0].min()), int(rows[0].max())
            return [min(low, known[0]), max(high, known[1])] if known else [low, high]
        if self.is_text:
            data, lengths = rows
            return text_range(split_bytes(data.tobytes(), lengths), known)
        return None

    def space(self, about: Sequence[Any]) -> gym_spaces.JsonSpace:
        """The space of the values, given their range in each part (`about`)."""
        known = [info for info in about if info is not None]
        if self.is_discrete:
            return gym_spaces.discrete(min(low for low, _ in known), max(high for _, high in known))
        if self.is_text:
            characters = {character for _, some in known for character in some}
            return gym_spaces.text(max(longest for longest, _ in known), sorted(characters))
        return gym_spaces.box(self._stored, self.field.closed_shape)

    def _check(self, texts: list[bytes]) -> list[bytes]:
        """The texts; raises BadEpisode for one with a zero byte, at which texts in HDF5 end, or that is not UTF-8."""
        for i, text in enumerate(texts):
            where = "" if self.of == "episode" else f" at step {i}"
            if b"\0" in text:
                raise not_representable(f"the text{where} has a zero byte, which HDF5 does not keep", self.field.path)
            try:
                text.decode()
            except UnicodeDecodeError:
                detail = f"the text{where} is not UTF-8, without which Minari cannot read it"
                raise not_representable(detail, self.field.path) from None
        return texts


def text_range(rows: Iterable[bytes], known: list[Any] | None) -> list[Any]:
    """The length of the longest text so far, and all characters used."""
    longest, characters = known or (0, "")
    texts = [row.decode("utf-8", "replace") for row in {*rows}]
    return [max(longest, *map(len, texts)), "".join(sorted({*characters}.union(*texts)))]
