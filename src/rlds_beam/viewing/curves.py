"""The numeric fields of an episode as curves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from rlds_beam.episodes.columns import is_text
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.flags import FLAGS
from rlds_beam.episodes.schema import MAX_UNFOLDED, Schema, dimension_labels
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.images.thumbnails import is_image
from rlds_beam.typing import Array

MOST_DIMENSIONS = 64
"""Maximum dimensions of a curve."""

_STATE_WORDS = ("state", "proprio", "joint", "pose", "position", "qpos")


@dataclasses.dataclass(frozen=True)
class Curve:
    """A numeric step field.

    Attributes:
      path: the field's path.
      labels: the label of each dimension (`dimension_labels`); empty for a scalar.
      values: float64 [T, D]; may contain NaN and infinity.
      left_out: the number of dimensions beyond `MOST_DIMENSIONS`.
    """

    path: str
    labels: tuple[str, ...]
    values: Array
    left_out: int = 0

    @property
    def is_embedding(self) -> bool:
        """Whether it has so many dimensions that single ones mean little; such fields are shown last."""
        return self.values.shape[1] + self.left_out > MAX_UNFOLDED


def curves_of(episode: Episode, schema: Schema | None = None, names: Mapping[str, Sequence[str]] = {}) -> list[Curve]:
    """The numeric step fields, except flags, images, and text.

    Order: states, other observations, actions, rewards, the rest; embeddings last.

    Args:
      schema: if given, only fields in it.
      names: the names of the values of fields, by path, for the labels.
    """
    steps = episode.steps if schema is None else {p: c for p, c in episode.steps.items() if p in schema.steps}
    curves = [
        _curve(path, np.asarray(column), names.get(path, ()))
        for path, column in steps.items()
        if path not in FLAGS and not isinstance(column, EncodedImages) and _is_curve(column)
    ]
    return sorted(curves, key=_rank)


def _is_curve(column: Array) -> bool:
    number = column.dtype.kind in "biuf" or column.dtype.name == "bfloat16"
    return number and not is_text(column) and not is_image(column) and 0 not in column.shape[1:]


def _curve(path: str, column: Array, names: Sequence[str]) -> Curve:
    shape = column.shape[1:]
    flat = column.reshape(len(column), int(np.prod(shape)))
    kept = min(flat.shape[1], MOST_DIMENSIONS)
    labels = dimension_labels(shape, kept, names) if shape else []
    return Curve(path, tuple(labels), flat[:, :kept].astype(np.float64), flat.shape[1] - kept)


def _rank(curve: Curve) -> tuple[int, str]:
    path = curve.path
    if curve.is_embedding:
        return 5, path
    for rank, group in enumerate(("observation", "action", "reward"), 1):
        if path == group or path.startswith(f"{group}/"):
            state = rank == 1 and any(word in path for word in _STATE_WORDS)
            return 0 if state else rank, path
    return 4, path
