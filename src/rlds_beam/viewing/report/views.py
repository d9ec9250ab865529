"""Parts of a report that show episodes: frames, curves, and marks."""

from __future__ import annotations

import base64
import dataclasses
from typing import Literal

Facts = tuple[tuple[str, str], ...]
"""Names and texts, in order."""


@dataclasses.dataclass(frozen=True)
class Picture:
    """A thumbnail.

    Attributes:
      jpeg: the JPEG file.
      step: the step of the episode.
      damaged: whether the stored image cannot be decoded; the thumbnail is then a gray placeholder.
    """

    jpeg: bytes
    step: int
    damaged: bool = False

    @property
    def uri(self) -> str:
        """The thumbnail as a `data:` URI."""
        return f"data:image/jpeg;base64,{base64.b64encode(self.jpeg).decode()}"


@dataclasses.dataclass(frozen=True)
class CameraStrip:
    """Frames of one camera, evenly spaced over the episode, with the first and the last."""

    path: str
    frames: tuple[Picture, ...]


@dataclasses.dataclass(frozen=True)
class Series:
    """The curves of one numeric field, thinned; minima and maxima are kept.

    Attributes:
      path: the field: `action`.
      labels: the name of each dimension: `x`, `y`, or `0`, `1`.
      steps: the x axis: the step of each point, ascending.
      values: for each dimension, a value per point; None if it is NaN or infinite.
      left_out: the number of dimensions that are not shown.
    """

    path: str
    labels: tuple[str, ...]
    steps: tuple[int, ...]
    values: tuple[tuple[float | None, ...], ...]
    left_out: int = 0


@dataclasses.dataclass(frozen=True)
class Mark:
    """A place in an episode, drawn on its curves: the step that broke a rule, or the worst place of a signal.

    Attributes:
      kind: `rule` or `signal`.
      name: the rule or signal.
      field: the step field; empty if it is about the whole episode.
      step, stop: the steps [step, stop); both None if the mark has no place in time.
      detail: `NaN at step 17`, or the value of the signal.
    """

    kind: Literal["rule", "signal"]
    name: str
    field: str = ""
    step: int | None = None
    stop: int | None = None
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class EpisodeView:
    """One episode: frames above curves that share an x axis (the step), with marks.

    Attributes:
      key: the episode's key.
      steps: the number of steps; 0 if the record cannot be read.
      total: the return; None without rewards.
      instruction: the instruction or task; empty if there is none.
      metadata: the episode's fields.
      cameras: the frames.
      curves: observations first, then the action, the reward, and the rest.
      marks: rules broken and signals beyond their thresholds.
      note: why frames or curves are missing, for example that the record cannot be read; empty if none is.
      excerpt: the first bytes of a record that cannot be read, as a hex dump; empty otherwise.
    """

    key: str
    steps: int
    total: float | None = None
    instruction: str = ""
    metadata: Facts = ()
    cameras: tuple[CameraStrip, ...] = ()
    curves: tuple[Series, ...] = ()
    marks: tuple[Mark, ...] = ()
    note: str = ""
    excerpt: str = ""


@dataclasses.dataclass(frozen=True)
class GridCell:
    """The first and last frame of one episode by one camera; it may have an `EpisodeView`."""

    key: str
    steps: int
    camera: str
    first: Picture
    last: Picture
    instruction: str = ""


@dataclasses.dataclass(frozen=True)
class BeforeAfter:
    """A frame or a field of one episode before and after the connectors.

    Attributes:
      key: the episode's key.
      field: the field.
      before, after: the frames of the same step, if the field is an image; None if it was added or removed.
      curves_before, curves_after: the curves, if the field is numeric; None if it was added or removed.
    """

    key: str
    field: str
    before: Picture | None = None
    after: Picture | None = None
    curves_before: Series | None = None
    curves_after: Series | None = None
