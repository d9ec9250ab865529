"""The episodes that a report shows: chosen within a budget of bytes, as frames and curves with marks."""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import shown_dimensions
from rlds_beam.errors import Violation
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.resizing import resize_colors
from rlds_beam.images.thumbnails import QUALITY, Thumbnail, find_image, small_pixels, spread, thumbnail
from rlds_beam.terminal.tables import thin
from rlds_beam.text import printable
from rlds_beam.viewing.facts import MAX_TEXT_CHARACTERS, Curve, find_curves, find_instruction
from rlds_beam.viewing.pictures import find_cameras
from rlds_beam.viewing.report.sections import (
    FILM_FRAMES,
    CameraStrip,
    EpisodeView,
    Facts,
    GridCell,
    Mark,
    Picture,
    Series,
)

if TYPE_CHECKING:
    import pyarrow as pa


_EXCERPT = 256
"""Bytes of an unreadable record that are shown."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on the cameras, frames, and curves that are shown.

    Attributes:
      frames: frames per camera.
      height: rows of a frame.
      cameras: cameras.
      points: points of a curve.
      curves: fields with curves.
    """

    frames: int = 8
    height: int = 112
    cameras: int = 3
    points: int = 240
    curves: int = 10

    def without(self, *, pictures: bool, curves: bool) -> Limits:
        """These limits without pictures or curves."""
        limits = dataclasses.replace(self, cameras=0) if pictures else self
        return dataclasses.replace(limits, curves=0) if curves else limits


def make_view(
    episode: Episode,
    limits: Limits,
    marks: Sequence[Mark] = (),
    instruction: str = "",
    names: Mapping[str, Sequence[str]] = {},
) -> EpisodeView:
    """An episode as read, with the places to mark, and the names of the values of fields.

    A record that cannot be read has a note and the record's first bytes instead of curves.
    """
    if not len(episode):
        faults = "; ".join(f"{fault}" for fault in episode.faults) or "the episode has no steps"
        note = printable(faults, MAX_TEXT_CHARACTERS)
        return EpisodeView(
            str(episode.key), 0, marks=tuple(marks), note=note, excerpt=hex_dump(episode.payload[:_EXCERPT])
        )
    cameras, curves = find_cameras(episode), _sort_marked_first(find_curves(episode, names=names), marks)
    shown = tuple(make_strip(episode, path, limits) for path in cameras[: limits.cameras])
    return EpisodeView(
        str(episode.key),
        len(episode),
        total=_total(episode),
        instruction=instruction,
        metadata=format_metadata(episode),
        cameras=shown,
        curves=tuple(thin_curve(curve, limits) for curve in curves[: limits.curves]),
        marks=tuple(marks),
        note=_left_out_text(len(cameras) - limits.cameras, len(curves) - limits.curves),
    )


def make_cell(episode: Episode, height: int, instruction: str = "", marks: Sequence[Mark] = ()) -> GridCell | None:
    """The film of the first camera; None without a camera."""
    cameras = find_cameras(episode) if len(episode) else []
    if not cameras:
        return None
    steps = np.linspace(0, len(episode) - 1, FILM_FRAMES).round().astype(int).tolist()
    made = [small_pixels(find_image(episode.steps[cameras[0]], step), height) for step in steps]
    rows, width = made[0][0].shape[:2]
    frames = [p if p.shape[:2] == (rows, width) else resize_colors(p[None], rows, width)[0] for p, _ in made]
    film = Picture(encode_jpeg(np.concatenate(frames, axis=1)[None], QUALITY)[0], 0, any(fault for _, fault in made))
    return GridCell(str(episode.key), len(episode), cameras[0], film, instruction, tuple(marks))


def make_strip(episode: Episode, path: str, limits: Limits) -> CameraStrip:
    """Frames of one camera, evenly spaced."""
    steps = spread(len(episode), limits.frames)
    return CameraStrip(path, tuple(make_picture(episode, path, step, limits.height) for step in steps))


def thin_curve(curve: Curve, limits: Limits) -> Series:
    """A curve, thinned to the points of the limits."""
    kept = curve.values[:, : shown_dimensions(curve.values.shape[1] + curve.left_out)]
    with np.errstate(invalid="ignore"):
        steps, values = thin(kept, limits.points)
    return Series(
        curve.path,
        curve.labels[: kept.shape[1]] or ("",),
        tuple(steps.tolist()),
        tuple(tuple(map(_short, column)) for column in np.asarray(values, np.float64).T.tolist()),
        curve.left_out + curve.values.shape[1] - kept.shape[1],
    )


def format_metadata(episode: Episode) -> Facts:
    """The episode's fields as text."""
    return tuple((path, _as_text(value)) for path, value in sorted(episode.metadata.items()))


def hex_dump(data: bytes) -> str:
    """Bytes in hex and ASCII, 16 a line."""
    lines = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:04x}  {part.hex(' '):<47}  {text}")
    return "\n".join(lines)


def estimate_size(view: EpisodeView) -> int:
    """The bytes that a view takes in a page, about."""
    pictures = sum(len(frame.jpeg) for camera in view.cameras for frame in camera.frames) * 4 // 3
    numbers = sum(len(series.steps) * (1 + len(series.values)) for series in view.curves) * 9
    texts = len(view.excerpt) + len(view.instruction) + sum(len(name) + len(text) for name, text in view.metadata)
    return pictures + numbers + texts


def make_picture(episode: Episode, path: str, step: int, height: int) -> Picture:
    """The frame of a step as a thumbnail."""
    made: Thumbnail = thumbnail(find_image(episode.steps[path], step), height)
    return Picture(bytes(made), step, made.fault is not None)


def _sort_marked_first(curves: list[Curve], marks: Iterable[Mark]) -> list[Curve]:
    """The curves, those with marks first."""
    fields = {mark.field for mark in marks if mark.field}
    return sorted(curves, key=lambda curve: curve.path not in fields)


def _left_out_text(cameras: int, curves: int) -> str:
    parts = [f"{more} more {what}" for more, what in ((cameras, "cameras"), (curves, "fields")) if more > 0]
    return f"not shown: {' and '.join(parts)}" if parts else ""


def _total(episode: Episode) -> float | None:
    """The return, without the void reward of the last step."""
    from rlds_beam.connectors.fields import transitions

    rewards = episode.steps.get("reward")
    if not isinstance(rewards, np.ndarray) or rewards.dtype.kind not in "fiub":
        return None
    return _short(float(np.sum(rewards[: transitions(episode)], dtype=np.float64)))


def _short(value: float) -> float | None:
    """A number with 5 significant digits; None if it is not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _as_text(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size > 64:
        return f"{value.dtype.name}{list(value.shape)}"
    if isinstance(value, Mapping):
        value = dict(value)
    return printable(value, MAX_TEXT_CHARACTERS)


_GRID_HEIGHT = 120


@dataclasses.dataclass
class Shelf:
    """Reads episodes and keeps their views, within the budget.

    Attributes:
      read: reads the record at a key.
      broken: the rules that an episode breaks.
      budget: bytes for frames and curves; pictures stop at three quarters of it.
      marks: key -> the places of signals in an episode.
      names: the names of the values of fields, by path.
      views: key -> the view.
      steps: (key, rule) -> the step that broke the rule.
    """

    read: Callable[[EpisodeKey], Episode]
    broken: Callable[[Episode], Sequence[Violation]]
    budget: int
    marks: Mapping[str, Sequence[Mark]] = dataclasses.field(default_factory=dict)
    names: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    views: dict[str, EpisodeView] = dataclasses.field(default_factory=dict)
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
        marks = (*map(_mark, broken), *self.marks.get(key, ()))
        view = make_view(episode, cut, marks, find_instruction(episode), self.names)
        self.views[key] = view
        self._used += estimate_size(view)

    def grid(self, keys: Iterable[str], count: int) -> tuple[GridCell, ...]:
        """Up to `count` of these episodes as moving thumbnails; empty without cameras."""
        cells: list[GridCell] = []
        for key in itertools.islice(dict.fromkeys(keys), 2 * count):
            episode = self.read(EpisodeKey.parse(key))
            marks = (*map(_mark, self.broken(episode)), *self.marks.get(key, ()))
            cell = make_cell(episode, _GRID_HEIGHT, find_instruction(episode), marks)
            if cell is not None and len(cells) < count:
                cells.append(cell)
            elif len(episode):  # no cameras
                break
        self._used += sum(len(cell.film.jpeg) for cell in cells) * 4 // 3
        return tuple(cells)

    def notes(self) -> tuple[str, ...]:
        """The views left out to keep the report small."""
        note = f"{self._cut} episodes are shown without frames or curves, to keep the report small"
        return (note,) if self._cut else ()


def _mark(violation: Violation) -> Mark:
    step = violation.step
    detail = printable(violation.detail, MAX_TEXT_CHARACTERS)
    return Mark("rule", violation.rule, violation.field or "", step, None if step is None else step + 1, detail)


def sample_keys(keys: Iterable[str], count: int) -> list[str]:
    """Up to `count` keys, chosen as if at random: those with the smallest hashes."""
    return heapq.nsmallest(count, keys, lambda key: (hashlib.blake2b(key.encode(), digest_size=8).digest(), key))


def accepted_keys(table: pa.Table) -> list[str]:
    """The keys of accepted records."""
    import pyarrow.compute as pc

    keys: list[str] = table["key"].filter(pc.is_null(table["rule"])).to_pylist()
    return keys


def worst_rows(values: np.ndarray[Any, Any], keys: Sequence[str], count: int, *, below: bool) -> list[int]:
    """The rows with the largest (or smallest) values, worst first; equal ones by key. NaN is no value."""
    known = np.flatnonzero(~np.isnan(values))
    sign = 1.0 if below else -1.0
    if len(known) > count:  # keep all rows that are as bad as the last one
        limit = np.partition(sign * values[known], count - 1)[count - 1]
        known = known[sign * values[known] <= limit]
    return sorted(known.tolist(), key=lambda row: (sign * values[row], EpisodeKey.parse(keys[row])))[:count]
