"""The view of one episode, for the browser and reports: cameras, curves, texts, and marks, also as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rlds_beam.checking.signals import SIGNALS, Finding
from rlds_beam.episodes.columns import is_text
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import shown_dimensions
from rlds_beam.errors import Violation
from rlds_beam.images.headers import UndecodableImageError, read_image_header
from rlds_beam.images.thumbnails import find_image, spread, thumbnail
from rlds_beam.terminal.tables import thin
from rlds_beam.text import printable
from rlds_beam.typing import Array
from rlds_beam.viewing.facts import MAX_TEXT_CHARACTERS, Curve, compute_return, find_curves, stored_instruction
from rlds_beam.viewing.json_values import json_value
from rlds_beam.viewing.pictures import find_cameras

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Mark:
    """A place in an episode: the step that broke a rule, or the worst place of a signal.

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

    @classmethod
    def of_rule(cls, violation: Violation) -> Mark:
        """The step that broke a rule."""
        step = violation.step
        detail = printable(violation.detail, MAX_TEXT_CHARACTERS)
        return cls("rule", violation.rule, violation.field or "", step, None if step is None else step + 1, detail)

    @classmethod
    def of_signal(cls, finding: Finding) -> Mark:
        """The place of a signal that is beyond its threshold."""
        signal = SIGNALS[finding.signal]
        unit = f" ({signal.unit})" if signal.unit else ""
        detail = f"{finding.value:.4g}{unit}: {signal.summary}"
        return cls("signal", finding.signal, finding.field or "", finding.step, finding.stop, detail)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A thumbnail.

    Attributes:
      jpeg: the JPEG file.
      step: the step of the episode.
      fault: why the stored image cannot be decoded; the thumbnail is then a gray placeholder. Empty otherwise.
    """

    jpeg: bytes
    step: int
    fault: str = ""


@dataclasses.dataclass(frozen=True)
class Camera:
    """A camera.

    Attributes:
      path: the field.
      frames: the number of its frames.
      kind: `image`, or `video` for a file that the browser plays.
      height, width: in pixels; None if unknown.
      span: the seconds of a video file that show the episode.
      pictures: the thumbnails of a report, evenly spaced from the first step to the last.
    """

    path: str
    frames: int
    kind: Literal["image", "video"] = "image"
    height: int | None = None
    width: int | None = None
    span: tuple[float, float] | None = None
    pictures: tuple[Picture, ...] = ()

    def to_json(self) -> Json:
        """The camera without its pictures."""
        content: Json = {
            "path": self.path,
            "kind": self.kind,
            "frames": self.frames,
            "width": self.width,
            "height": self.height,
        }
        return content if self.span is None else {**content, "from": self.span[0], "to": self.span[1]}


@dataclasses.dataclass(frozen=True)
class Series:
    """The curves of one numeric field, thinned; minima and maxima are kept.

    Attributes:
      path: the field: `action`.
      labels: the name of each dimension: `x`, `y`, or `0`, `1`.
      steps: the x axis: the step of each point, ascending.
      values: for each dimension, a value per point; None if it is NaN or infinite.
      left_out: the number of dimensions that are not shown.
      whole: whether each step has a point.
    """

    path: str
    labels: tuple[str, ...]
    steps: tuple[int, ...]
    values: tuple[tuple[float | None, ...], ...]
    left_out: int = 0
    whole: bool = True

    def to_json(self) -> Json:
        return {
            "path": self.path,
            "labels": [label or self.path for label in self.labels],
            "steps": None if self.whole else self.steps,
            "values": self.values,
            "left_out": self.left_out,
        }


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on what a view has.

    Attributes:
      frames, height: pictures per camera, and their rows.
      cameras: cameras.
      curves: fields with curves.
      points: points of a curve.
      digits: digits of a value relative to the range of its dimension: a plot is about 100 pixels high.
      dimensions: whether fields of many dimensions have only the first ones (`shown_dimensions`).
      characters: characters of a text.
      runs: texts of a field of texts.
    """

    frames: int = 8
    height: int = 112
    cameras: int = 3
    curves: int = 10
    points: int = 240
    digits: int = 3
    dimensions: bool = False
    characters: int = MAX_TEXT_CHARACTERS
    runs: int = 100

    def without(self, *, pictures: bool, curves: bool) -> Limits:
        """These limits without pictures or curves."""
        limits = dataclasses.replace(self, cameras=0) if pictures else self
        return dataclasses.replace(limits, curves=0) if curves else limits


BROWSED = Limits(curves=1 << 30, points=4000, digits=6, dimensions=True, characters=10_000, runs=10_000)
"""The limits of the browser, which fetches images by itself."""


@dataclasses.dataclass(frozen=True)
class EpisodeView:
    """One episode: cameras and curves that share an x axis (the step), with marks.

    Attributes:
      key: the episode's key.
      steps: the number of steps; 0 if the record cannot be read.
      fps: frames per second; None if unknown.
      total: the return; None without rewards.
      instruction: the instruction or task; empty if there is none.
      metadata: the episode's fields, as JSON.
      cameras: the cameras.
      curves: observations first, then the action, the reward, and the rest; fields with marks before all.
      texts: the text fields of the steps: path -> the runs of equal texts, as (first step, text).
      marks: rules broken and signals beyond their thresholds.
      rejected: the rule that rejects the episode; None if it is accepted, or the view does not say.
      readable: whether the record can be read.
      note: why frames or curves are missing, for example that the record cannot be read; empty if none is.
      excerpt: the first bytes of a record that cannot be read, as a hex dump; empty otherwise.
    """

    key: str
    steps: int
    fps: float | None = None
    total: float | None = None
    instruction: str = ""
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    cameras: tuple[Camera, ...] = ()
    curves: tuple[Series, ...] = ()
    texts: Mapping[str, Sequence[tuple[int, Any]]] = dataclasses.field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    rejected: str | None = None
    readable: bool = True
    note: str = ""
    excerpt: str = ""

    def to_json(self) -> Json:
        """What the page shows of the episode, without its pictures."""
        return {
            "key": self.key,
            "split": ["", "", *self.key.split(":")][-2],
            "steps": self.steps,
            "fps": self.fps,
            "instruction": self.instruction or None,
            "metadata": dict(self.metadata),
            "curves": [series.to_json() for series in self.curves],
            "cameras": [camera.to_json() for camera in self.cameras],
            "texts": [{"path": path, "runs": runs} for path, runs in self.texts.items()],
            "marks": [dataclasses.asdict(mark) for mark in self.marks],
            "rejected": self.rejected,
            "readable": self.readable,
        }


_EXCERPT = 256
"""Bytes of an unreadable record that are shown."""


def make_view(
    episode: Episode,
    limits: Limits = Limits(),
    marks: Sequence[Mark] = (),
    *,
    fps: float | None = None,
    names: Mapping[str, Sequence[str]] = {},
    cameras: Sequence[Camera] | None = None,
) -> EpisodeView:
    """The view of an episode as read.

    A record that cannot be read has a note and the record's first bytes instead of curves.

    Args:
      names: the names of the values of fields, by path.
      cameras: its cameras; None for those of the episode, with pictures.
    """
    if not len(episode) and not cameras:
        faults = "; ".join(f"{fault}" for fault in episode.faults) or "the episode has no steps"
        return EpisodeView(
            str(episode.key),
            0,
            fps,
            marks=tuple(marks),
            readable=not episode.faults,
            note=printable(faults, MAX_TEXT_CHARACTERS),
            excerpt=hex_dump(episode.payload[:_EXCERPT]),
        )
    marked = {mark.field for mark in marks if mark.field}
    curves = sorted(find_curves(episode, names=names), key=lambda curve: curve.path not in marked)
    paths = find_cameras(episode) if cameras is None else ()
    own = tuple(make_camera(episode, path, limits) for path in paths[: limits.cameras])
    return EpisodeView(
        str(episode.key),
        len(episode),
        fps,
        total=compute_return(episode),
        instruction=json_value(stored_instruction(episode), limits.characters)[0] or "",
        metadata={path: _value(value, limits) for path, value in sorted(episode.metadata.items())},
        cameras=own if cameras is None else tuple(cameras),
        curves=tuple(thin_curve(curve, limits) for curve in curves[: limits.curves]),
        texts={path: _runs(column, limits) for path, column in episode.steps.items() if is_text(column)},
        marks=tuple(sorted(marks, key=lambda mark: math.inf if mark.step is None else mark.step)),
        readable=not episode.faults,
        note=_left_out_text(len(paths) - limits.cameras, len(curves) - limits.curves),
    )


def make_camera(episode: Episode, path: str, limits: Limits) -> Camera:
    """A camera with pictures, evenly spaced over the episode."""
    steps = spread(len(episode), limits.frames)
    height, width = _size(find_image(episode.steps[path], steps[0])) if steps else (None, None)
    pictures = tuple(make_picture(episode, path, step, limits.height) for step in steps)
    return Camera(path, len(episode), height=height, width=width, pictures=pictures)


def _size(image: bytes | Array) -> tuple[int | None, int | None]:
    """The height and width of an image; None for a damaged one."""
    if not isinstance(image, bytes):
        return image.shape[0], image.shape[1]
    try:
        header = read_image_header(image)
    except UndecodableImageError:
        return None, None
    return header.height, header.width


def make_picture(episode: Episode, path: str, step: int, height: int) -> Picture:
    """The frame of a step as a thumbnail."""
    made = thumbnail(find_image(episode.steps[path], step), height)
    return Picture(bytes(made), step, made.fault or "")


def thin_curve(curve: Curve, limits: Limits = Limits()) -> Series:
    """A curve, thinned to the points and digits of the limits."""
    size = curve.values.shape[1]
    kept = curve.values[:, : size if limits.dimensions else shown_dimensions(size + curve.left_out)]
    with np.errstate(invalid="ignore"):
        steps, values = thin(kept, limits.points)
    return Series(
        curve.path,
        curve.labels[: kept.shape[1]] or ("",),
        tuple(steps.tolist()),
        tuple(_round_values(column, limits.digits) for column in np.asarray(values, np.float64).T),
        curve.left_out + size - kept.shape[1],
        len(steps) == len(curve.values),
    )


def _round_values(values: Array, digits: int) -> tuple[float | int | None, ...]:
    """Numbers with so many digits relative to their range; None for NaN and infinity."""
    finite = values[np.isfinite(values)]
    if finite.size:
        spread = float(finite.max() / 2 - finite.min() / 2) or float(np.abs(finite).max())
        if spread:
            decimals = digits - math.floor(math.log10(spread))
            rounded = [round(value, decimals) if math.isfinite(value) else None for value in values.tolist()]
            return tuple(int(v) if v is not None and abs(v) < 1e15 and v == int(v) else v for v in rounded)
    return tuple(int(value) if math.isfinite(value) else None for value in values.tolist())


def _value(value: Any, limits: Limits) -> Any:
    """A value of the metadata as JSON; of an image, its kind and size."""
    if isinstance(value, bytes) and value.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n")):
        return {"image": "png" if value[:1] == b"\x89" else "jpeg", "bytes": len(value)}
    return json_value(value, limits.characters)[0]


def _runs(column: Any, limits: Limits) -> list[tuple[int, Any]]:
    """The texts of all steps as runs of equal ones."""
    runs: list[tuple[int, Any]] = []
    for step, value in enumerate(column):
        text = json_value(value, limits.characters)[0]
        if not runs or runs[-1][1] != text:
            if len(runs) == limits.runs:
                break
            runs.append((step, text))
    return runs


def estimate_size(view: EpisodeView) -> int:
    """The bytes that a view takes in a page, about."""
    pictures = sum(len(picture.jpeg) for camera in view.cameras for picture in camera.pictures) * 4 // 3
    numbers = sum(len(series.steps) * (1 + len(series.values)) for series in view.curves) * 8
    texts = sum(len(str(text)) for runs in view.texts.values() for _, text in runs)
    return pictures + numbers + texts + len(view.excerpt) + len(view.instruction) + len(str(view.metadata))


def hex_dump(data: bytes) -> str:
    """Bytes in hex and ASCII, 16 a line."""
    lines = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:04x}  {part.hex(' '):<47}  {text}")
    return "\n".join(lines)


def _left_out_text(cameras: int, curves: int) -> str:
    parts = [f"{more} more {what}" for more, what in ((cameras, "cameras"), (curves, "fields")) if more > 0]
    return f"not shown: {' and '.join(parts)}" if parts else ""
