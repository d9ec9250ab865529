"""Makes actions of the states that follow, for data without actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages


@dataclasses.dataclass(frozen=True)
class NextStateAsAction(EpisodeConnector):
    """Sets the action of each step to the state of the next step, as for UMI's data: the pose to reach.

        state      s0       s1       s2 (last)
        action     s1       s2       s2 (void)

    The last action repeats the last state: the pose is held. Several fields are joined along their last axis, in the
    given order, and must have the same dtype. The states remain as they are.

    Attributes:
      fields: the state fields: `observation/robot0_eef_pos`.
      name: the action field to write.
    """

    fields: Sequence[str]
    name: str = "action"

    def __post_init__(self) -> None:
        names = (self.fields,) if isinstance(self.fields, str) else tuple(self.fields)
        if not names:
            raise UsageError("NextStateAsAction: fields is empty; name the state fields that the action consists of")
        object.__setattr__(self, "fields", names)

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        parts = [_numbers(episode, path) for path in self.fields]
        dtypes = {part.dtype.name for part in parts}
        if len(dtypes) > 1:
            raise UsageError(
                f"NextStateAsAction: the fields have the dtypes {', '.join(sorted(dtypes))}; choose fields of one dtype"
            )
        state = parts[0]
        if len(parts) > 1:
            rows = [part[:, None] if part.ndim == 1 else part for part in parts]
            if len({row.shape[:-1] for row in rows}) > 1:
                shapes = ", ".join(str(list(part.shape[1:])) for part in parts)
                raise UsageError(f"NextStateAsAction: the fields have the shapes {shapes}, which cannot be joined")
            state = np.concatenate(rows, axis=-1)
        return episode.with_columns({self.name: np.concatenate([state[1:], state[-1:]])})


def _numbers(episode: Episode, path: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    column: Column | None = episode.steps.get(path)
    if column is None:
        known = ", ".join(sorted(episode.steps))
        raise UsageError(f"NextStateAsAction: the episode has no field {path}; it has {known}")
    if isinstance(column, EncodedImages) or not (is_numeric(column) or column.dtype == np.bool_):
        raise UsageError(f"NextStateAsAction: {path} does not hold numbers")
    return column
