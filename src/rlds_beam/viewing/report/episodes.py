"""The episodes that a report shows: chosen within a budget of bytes, as frames and curves with marks."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import heapq
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import Violation
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.resizing import resize_colors
from rlds_beam.images.thumbnails import QUALITY, find_image, small_pixels
from rlds_beam.viewing.episode_view import Json, Limits, make_view, rule_mark
from rlds_beam.viewing.facts import find_instruction
from rlds_beam.viewing.pictures import find_cameras

if TYPE_CHECKING:
    pass


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


def worst_rows(values: np.ndarray[Any, Any], keys: Sequence[str], count: int) -> list[int]:
    """The rows with the largest values, worst first; equal ones by key. NaN is no value."""
    known = np.flatnonzero(~np.isnan(values))
    if len(known) > count:  # keep all rows that are as bad as the last one
        limit = np.partition(-values[known], count - 1)[count - 1]
        known = known[-values[known] <= limit]
    return sorted(known.tolist(), key=lambda row: (-values[row], EpisodeKey.parse(keys[row])))[:count]
