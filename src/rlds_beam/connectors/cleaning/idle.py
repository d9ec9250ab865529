"""Keeps the steps in which a robot moves, found by openpi's rule for DROID or listed in its file."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.steps import IDLE, MIN_IDLE_STEPS, idle_steps, runs
from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.cleaning.selection import decode_text, read_values, slice_steps, vectors
from rlds_beam.connectors.fields import StepFields, check_choices
from rlds_beam.encoding.metadata import parse_json
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import UsageError

Ranges = list[tuple[int, int]]
"""The kept steps, as [start, stop)."""

DROID_KEY = "{episode_metadata/recording_folderpath}--{episode_metadata/file_path}"
"""How openpi's file for DROID names an episode."""


@dataclasses.dataclass(frozen=True)
class DropIdleSteps(EpisodeConnector):
    """Keeps the parts of an episode in which the robot moves: splits them off as episodes, or marks them.

        idle            . i . . . . . i i i i i i i i i . . . . . . . . . . . . . . . . . . . . . . . . . . .
        kept            ├──── 7 steps ┤                 ├──────────────── 27 steps ────────────────────────┤
        min_moving=16   too short                       kept, except the last 10 steps

    This is openpi's rule for DROID (`compute_droid_nonidle_ranges.py`), with its constants. A part that ends before the
    recorded episode does is truncated. KeepRanges applies ranges from a file.

    Attributes:
      field: the commanded joint velocities.
      threshold: a step is idle if every velocity differs from the step before by less than this; the first is not.
      min_idle: drop runs of at least this many idle steps.
      min_moving: also drop runs of fewer moving steps between them.
      trim: the steps to cut from the end of each range, because most of an action chunk that starts there is idle.
      mode: `split` makes one episode per range; `mark` keeps whole episodes and adds a column `keep`, bool.
    """

    field: str = "action_dict/joint_velocity"
    threshold: float = IDLE
    min_idle: int = MIN_IDLE_STEPS
    min_moving: int = 16
    trim: int = 10
    mode: str = "split"

    def __post_init__(self) -> None:
        check_choices(self, mode=("split", "mark"))

    def edit(self, episode: Episode, fields: StepFields) -> Episode | Sequence[Episode]:
        idle = idle_steps(vectors(episode, self.field, "DropIdleSteps: field"), self.threshold)
        moving = np.ones(len(idle), bool)
        for start, stop in runs(idle):
            moving[start:stop] = stop - start < self.min_idle
        kept = [(start, stop) for start, stop in runs(moving).tolist() if stop - start >= self.min_moving]
        return _apply(episode, kept, self.trim, self.mode)


@dataclasses.dataclass(frozen=True)
class KeepRanges(EpisodeConnector):
    """Keeps the parts of each episode that a JSON file lists, for example openpi's file for DROID.

        {"keep_ranges": {"gs://…/folder--/nas/…/trajectory.h5": [[12, 80], [95, 140]]}, "metadata": {…}}
        steps           0 … 11   12 … 79   80 … 94   95 … 139   140 …
        kept                     part 0              part 1

    Both formats of the file work: with `metadata`, whose `filter_last_n_in_ranges` steps are cut from the end of each
    range; and the older one, which is only the mapping. The workers must be able to read the file.

    Attributes:
      ranges: the path of the JSON file, local or in a bucket.
      key: the name of an episode in the file: a template with its fields in braces.
      missing: what to do with an episode that is not in the file: `drop` (as openpi does), `keep`, or `fail`.
      mode: `split` makes one episode per range; `mark` keeps whole episodes and adds a column `keep`, bool.
    """

    ranges: str
    key: str = DROID_KEY
    missing: str = "drop"
    mode: str = "split"

    def __post_init__(self) -> None:
        check_choices(self, mode=("split", "mark"), missing=("drop", "keep", "fail"))
        object.__setattr__(self, "digest", _read(self.ranges)[2])  # the plan changes when the file does

    def edit(self, episode: Episode, fields: StepFields) -> Episode | Sequence[Episode]:
        name, (listed, trim, digest) = episode_name(episode, self.key), _read(self.ranges)
        if digest != vars(self)["digest"]:
            raise UsageError(f"KeepRanges: {self.ranges} has changed since the job was planned")
        if name in listed:
            ranges = [(start, min(stop, len(episode))) for start, stop in listed[name]]
            return _apply(episode, ranges, trim, self.mode)
        if self.missing == "fail" and not episode.key.of_probe:
            raise UsageError(f"KeepRanges: {self.ranges} has no episode {name!r} ({episode.key})")
        return _apply(episode, [] if self.missing == "drop" else [(0, len(episode))], 0, self.mode)


def episode_name(episode: Episode, key: str) -> str:
    """Formats an episode's name: a template with episode fields in braces; `{key}` is where the episode was read."""

    def value(match: re.Match[str]) -> str:
        known = str(episode.key) if match[1] == "key" else read_values(episode, match[1], "the name of an episode")[0]
        return decode_text(known)

    return re.sub(r"\{([^{}]+)\}", value, key)


def _apply(episode: Episode, ranges: Ranges, trim: int, mode: str) -> Episode | list[Episode]:
    kept = [(start, stop - trim) for start, stop in ranges if stop - trim > start]
    if mode == "split":
        return [slice_steps(episode, start, stop) for start, stop in kept]
    keep = np.zeros(len(episode), bool)
    for start, stop in kept:
        keep[start:stop] = True
    return episode.with_columns({"keep": keep})


@functools.lru_cache(maxsize=4)  # large: one entry per episode
def _read(path: str) -> tuple[Mapping[str, Ranges], int, str]:
    """The ranges by episode, how many steps to cut from each, and a digest of the file."""
    text = storage.read_given(path, f"KeepRanges: ranges={path}")
    try:
        content = parse_json(text, path)
        listed = content["keep_ranges"] if isinstance(content.get("keep_ranges"), dict) else content
        trim = int(content.get("metadata", {}).get("filter_last_n_in_ranges", 0)) if listed is not content else 0
        ranges = {name: [(int(start), int(stop)) for start, stop in pairs] for name, pairs in listed.items()}
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"KeepRanges: ranges={path}: expected openpi's JSON format, episode -> [[start, stop], ...]: {error}"
        ) from error
    return ranges, trim, hashlib.sha256(text.encode()).hexdigest()
