"""Views of episodes as JSON, for the browser and reports; and the episodes that a report shows."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import heapq
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.checking.signals import SIGNALS, Finding
from rlds_beam.episodes.columns import is_text
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import shown_dimensions
from rlds_beam.errors import Violation
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.headers import UndecodableImageError, read_image_header
from rlds_beam.images.resizing import resize_colors
from rlds_beam.images.thumbnails import QUALITY, find_image, small_pixels, spread, thumbnail
from rlds_beam.terminal.tables import thin
from rlds_beam.text import printable
from rlds_beam.typing import Array
from rlds_beam.viewing.facts import (
    MAX_TEXT_CHARACTERS,
    Curve,
    compute_return,
    find_curves,
    find_instruction,
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


FILM_FRAMES = 10
"""The number of frames of a film: viewer.css moves by as many steps."""


def make_cell(episode: Episode, height: int, marks: Sequence[Json] = ()) -> Json | None:
    """A film of the first camera: `FILM_FRAMES` frames side by side, evenly spaced. None without a camera."""
    cameras = find_cameras(episode) if len(episode) else []
    if not cameras:
        return None
    steps = np.linspace(0, len(episode) - 1, FILM_FRAMES).round().astype(int).tolist()
    made = [small_pixels(find_image(episode.steps[cameras[0]], step), height) for step in steps]
    rows, width = made[0][0].shape[:2]
    frames = [p if p.shape[:2] == (rows, width) else resize_colors(p[None], rows, width)[0] for p, _ in made]
    fault = next((fault for _, fault in made if fault), "")
    film = np.concatenate(frames, axis=1)
    jpeg = base64.b64encode(encode_jpeg(film[None], QUALITY)[0]).decode("ascii")
    return {
        "key": str(episode.key),
        "steps": len(episode),
        "camera": cameras[0],
        "film": {"jpeg": jpeg, "step": 0, "fault": fault},
        "size": [film.shape[1], film.shape[0]],
        "instruction": find_instruction(episode),
        "marks": list(marks),
    }


_GRID_HEIGHT = 120


@dataclasses.dataclass
class EpisodeViews:
    """Reads episodes and keeps their views, within the budget.

    Attributes:
      read: reads the record at a key.
      broken: the rules that an episode breaks.
      budget: bytes for frames and curves; pictures stop at three quarters of it.
      marks: key -> the places of signals in an episode.
      names: the names of the values of fields, by path.
      fps: frames per second; None if unknown.
      views: key -> the view.
      steps: (key, rule) -> the step that broke the rule.
    """

    read: Callable[[EpisodeKey], Episode]
    broken: Callable[[Episode], Sequence[Violation]]
    budget: int
    marks: Mapping[str, Sequence[Json]] = dataclasses.field(default_factory=dict)
    names: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    fps: float | None = None
    views: dict[str, Json] = dataclasses.field(default_factory=dict)
    steps: dict[tuple[str, str], int | None] = dataclasses.field(default_factory=dict)
    _used: int = 0
    _cut: int = 0

    def show(self, key: str, limits: Limits) -> None:
        """Adds the view of an episode, without frames or curves if the budget is used up."""
        if key in self.views:
            return
        left = self.budget - self._used
        cut = limits.without(pictures=left < self.budget // 4, curves=left <= 0)
        self._cut += cut != limits
        episode = self.read(EpisodeKey.parse(key))
        broken = self.broken(episode)
        for violation in broken:
            self.steps.setdefault((key, violation.rule), violation.step)
        marks = (*map(rule_mark, broken), *self.marks.get(key, ()))
        view = make_view(episode, cut, marks, fps=self.fps, names=self.names)
        self.views[key] = view
        self._used += len(json.dumps(view))

    def grid(self, keys: Iterable[str], count: int) -> list[Json]:
        """Up to `count` of these episodes as moving thumbnails; empty without cameras."""
        cells: list[Json] = []
        for key in itertools.islice(dict.fromkeys(keys), 2 * count):
            episode = self.read(EpisodeKey.parse(key))
            marks = (*map(rule_mark, self.broken(episode)), *self.marks.get(key, ()))
            cell = make_cell(episode, _GRID_HEIGHT, marks)
            if cell is not None and len(cells) < count:
                cells.append(cell)
            elif len(episode):  # no cameras
                break
        self._used += sum(len(cell["film"]["jpeg"]) for cell in cells)
        return cells

    def notes(self) -> list[str]:
        """The views left out to keep the report small."""
        note = f"{self._cut} episodes are shown without frames or curves, to keep the report small"
        return [note] if self._cut else []


def sample_keys(keys: Iterable[str], count: int) -> list[str]:
    """Up to `count` keys, chosen as if at random: those with the smallest hashes."""
    return heapq.nsmallest(count, keys, lambda key: (hashlib.blake2b(key.encode(), digest_size=8).digest(), key))
