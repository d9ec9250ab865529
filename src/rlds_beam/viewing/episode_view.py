"""The view of one episode, for the browser and reports: cameras, curves, texts, and marks, as JSON."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

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
from rlds_beam.viewing.facts import (
    MAX_TEXT_CHARACTERS,
    Curve,
    compute_return,
    find_curves,
    json_value,
    stored_instruction,
)
from rlds_beam.viewing.pictures import find_cameras

Json = dict[str, Any]


def rule_mark(violation: Violation) -> Json:
    """The step that broke a rule, as {kind, name, field, step, stop, detail}; the steps may be None."""
    step = violation.step
    return {
        "kind": "rule",
        "name": violation.rule,
        "field": violation.field or "",
        "step": step,
        "stop": None if step is None else step + 1,
        "detail": printable(violation.detail, MAX_TEXT_CHARACTERS),
    }


def signal_mark(finding: Finding) -> Json:
    """The place of a signal that is beyond its threshold, as `rule_mark`."""
    signal = SIGNALS[finding.signal]
    unit = f" ({signal.unit})" if signal.unit else ""
    return {
        "kind": "signal",
        "name": finding.signal,
        "field": finding.field or "",
        "step": finding.step,
        "stop": finding.stop,
        "detail": f"{finding.value:.4g}{unit}: {signal.summary}",
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


def make_view(
    episode: Episode,
    limits: Limits = Limits(),
    marks: Sequence[Json] = (),
    *,
    fps: float | None = None,
    names: Mapping[str, Sequence[str]] = {},
    cameras: Sequence[Json] | None = None,
) -> Json:
    """An episode as read, as the page shows it.

    A record that cannot be read has a note instead of curves.

    Args:
      marks: `rule_mark` and `signal_mark` of what is wrong with it.
      names: the names of the values of fields, by path.
      cameras: its cameras; None for those of the episode, with pictures.
    """
    view: Json = {
        "key": str(episode.key),
        "split": episode.key.split,
        "steps": len(episode),
        "fps": fps,
        "total": None,
        "instruction": None,
        "metadata": {},
        "cameras": [],
        "curves": [],
        "texts": [],
        "marks": sorted(marks, key=lambda mark: math.inf if mark["step"] is None else mark["step"]),
        "readable": not episode.faults,
        "note": "",
    }
    if not len(episode) and not cameras:
        faults = "; ".join(f"{fault}" for fault in episode.faults) or "the episode has no steps"
        return {**view, "note": printable(faults, MAX_TEXT_CHARACTERS)}
    marked = {mark["field"] for mark in marks if mark["field"]}
    curves = sorted(find_curves(episode, names=names), key=lambda curve: curve.path not in marked)
    paths = find_cameras(episode) if cameras is None else ()
    own = [make_camera(episode, path, limits) for path in paths[: limits.cameras]]
    more = ((len(paths) - limits.cameras, "cameras"), (len(curves) - limits.curves, "fields"))
    left_out = [f"{number} more {what}" for number, what in more if number > 0]
    return {
        **view,
        "total": compute_return(episode),
        "instruction": json_value(stored_instruction(episode), limits.characters)[0] or None,
        "metadata": {path: _value(value, limits) for path, value in sorted(episode.metadata.items())},
        "cameras": own if cameras is None else list(cameras),
        "curves": [thin_curve(curve, limits) for curve in curves[: limits.curves]],
        "texts": [
            {"path": path, "runs": _runs(column, limits)} for path, column in episode.steps.items() if is_text(column)
        ],
        "note": f"not shown: {' and '.join(left_out)}" if left_out else "",
    }


def make_camera(episode: Episode, path: str, limits: Limits) -> Json:
    """A camera with pictures, evenly spaced over the episode."""
    steps = spread(len(episode), limits.frames)
    height, width = _size(find_image(episode.steps[path], steps[0])) if steps else (None, None)
    pictures = [make_picture(episode, path, step, limits.height) for step in steps]
    return {
        "path": path,
        "kind": "image",
        "frames": len(episode),
        "width": width,
        "height": height,
        "pictures": pictures,
    }


def _size(image: bytes | Array) -> tuple[int | None, int | None]:
    """The height and width of an image; None for a damaged one."""
    if not isinstance(image, bytes):
        return image.shape[0], image.shape[1]
    try:
        header = read_image_header(image)
    except UndecodableImageError:
        return None, None
    return header.height, header.width


def make_picture(episode: Episode, path: str, step: int, height: int) -> Json:
    """The frame of a step as a thumbnail; its `fault` says why it is a gray placeholder."""
    made = thumbnail(find_image(episode.steps[path], step), height)
    return {"jpeg": base64.b64encode(made).decode("ascii"), "step": step, "fault": made.fault or ""}


def thin_curve(curve: Curve, limits: Limits = Limits()) -> Json:
    """A curve, thinned to the points and digits of the limits; `steps` is None if each step has a point."""
    size = curve.values.shape[1]
    kept = curve.values[:, : size if limits.dimensions else shown_dimensions(size + curve.left_out)]
    with np.errstate(invalid="ignore"):
        steps, values = thin(kept, limits.points)
    return {
        "path": curve.path,
        "labels": [label or curve.path for label in curve.labels[: kept.shape[1]] or ("",)],
        "steps": None if len(steps) == len(curve.values) else steps.tolist(),
        "values": [_round_values(column, limits.digits) for column in np.asarray(values, np.float64).T],
        "left_out": curve.left_out + size - kept.shape[1],
    }


def _round_values(values: Array, digits: int) -> list[float | int | None]:
    """Numbers with so many digits relative to their range; None for NaN and infinity."""
    finite = values[np.isfinite(values)]
    if finite.size:
        spread = float(finite.max() / 2 - finite.min() / 2) or float(np.abs(finite).max())
        if spread:
            decimals = digits - math.floor(math.log10(spread))
            rounded = [round(value, decimals) if math.isfinite(value) else None for value in values.tolist()]
            return [int(v) if v is not None and abs(v) < 1e15 and v == int(v) else v for v in rounded]
    return [int(value) if math.isfinite(value) else None for value in values.tolist()]


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
