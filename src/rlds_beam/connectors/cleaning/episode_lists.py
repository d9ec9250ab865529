"""Drops, keeps, and splits episodes by their keys or names, and keeps the steps in which a robot moves."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Self

import numpy as np

from rlds_beam import storage
from rlds_beam.checking.steps import IDLE, MIN_IDLE_STEPS, idle_steps, runs
from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.cleaning.selection import decode_text, read_values, slice_steps, vectors
from rlds_beam.connectors.fields import OUTPUT_SPLIT, StepFields, check_choices
from rlds_beam.encoding.metadata import parse_json
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.naming import is_file_name
from rlds_beam.reading.base import Source
from rlds_beam.text import shorten

Ranges = list[tuple[int, int]]
"""The kept steps, as [start, stop)."""

DROID_KEY = "{episode_metadata/recording_folderpath}--{episode_metadata/file_path}"
"""How openpi's file for DROID names an episode."""

_REMARK = re.compile(r"\t|(?:^|\s)#")

EXPECTED_KEY = "expected dataset/version:split:shard@position, for example toy/1.0.0:train:00000@12345"


def parse_keys(texts: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Episode keys in one spelling: the key of a record, or that of one of its episodes, which ends in `.0`, `.1`, ...

    Args:
      texts: the place of each key, for messages, and the key.

    Raises:
      UsageError: a text is not a key.
    """
    keys = set()
    for where, text in texts:
        try:
            key = EpisodeKey.parse(text if len(text) < 1000 and text.isprintable() else "")
        except ValueError:
            raise UsageError(f"{where}: {shorten(text, 80)!r} is not the key of an episode; {EXPECTED_KEY}") from None
        part = f".{key.part}" if "." in text.rpartition("@")[2] else ""
        keys.add(f"{dataclasses.replace(key, part=0)}{part}")
    return frozenset(keys)


def check_dataset(keys: Iterable[str], dataset: str, file: str) -> None:
    """Raises UsageError if a key names another dataset."""
    for key in sorted(keys):
        if not key.startswith(f"{dataset}:"):
            raise UsageError(f"{file} lists episodes of {shorten(key.partition(':')[0])}, but the input is {dataset}")


class _ListConnector(EpisodeConnector, reads_values=False):
    """Reads a list of episode keys once, so that workers need not read the file."""

    keeps: ClassVar[bool]

    def __init__(self, file: str):
        lines = enumerate(storage.read_text(file).split("\n"), 1)
        texts = ((f"{file}, line {i:,}", _REMARK.split(line, maxsplit=1)[0].strip()) for i, line in lines)
        self._file, self._keys = file, parse_keys((where, text) for where, text in texts if text)
        self.listed_keys = len(self._keys)  # shown with what was found
        self.digest = hashlib.sha256("\n".join(sorted(self._keys)).encode()).hexdigest()  # the plan has not the path

    def for_source(self, source: Source) -> Self:
        """The connector itself; raises UsageError if the list is of another dataset."""
        check_dataset(self._keys, source.dataset, self._file)
        return self

    def edit(self, episode: Episode, fields: StepFields) -> Episode | Sequence[Episode]:
        record = str(dataclasses.replace(episode.key, part=0))
        listed = record in self._keys or f"{record}.{episode.key.part}" in self._keys
        return episode if listed == self.keeps else []


class DropListedEpisodes(_ListConnector, reads_images=False, reads_values=False):
    """Drops the episodes that a file lists by key, for example the bad ones that `rlds-beam check` found.

        # a comment
        bridge_dataset/1.0.0:train:00000@12345          the whole record
        bridge_dataset/1.0.0:train:00000@67890.1        one episode of a record that a repair splits: .0, .1, ...

    Text after a tab is a remark. `--exclude=FILE` runs this connector before all others.

    Attributes:
      file: the path of the list, local or in a bucket. It is read once, by the command.
    """

    keeps = False


class KeepListedEpisodes(_ListConnector, reads_images=False, reads_values=False):
    """Keeps only the episodes that a file lists by key; the format is that of DropListedEpisodes.

        listed in the file       bridge_dataset/1.0.0:train:00000@12345        kept
        not listed               bridge_dataset/1.0.0:train:00000@67890        dropped

    `--only=FILE` runs this connector before all others (except `--exclude`).

    Attributes:
      file: the path of the list, local or in a bucket. It is read once, by the command.
    """

    keeps = True


_TOP = 1 << 64
Names = Mapping[str, Sequence[str]]


@dataclasses.dataclass(frozen=True)
class SplitEpisodes(EpisodeConnector, reads_images=False):
    """Assigns episodes to splits, for `convert --to=rlds`.

        fractions={train: 0.9, val: 0.1}                   about 9 of 10 episodes, chosen by the seed
        episodes={val: ["toy/1.0.0:train:00000@0"]}        the listed episodes; all others go to `rest`

    The split depends only on an episode's name and the seed, so it is the same in every run, with any number of
    workers. Episodes with equal names (`key={episode_metadata/file_path}`) stay together.

    Attributes:
      fractions: split -> its fraction of the episodes; they must add up to 1.
      episodes: split -> the names of its episodes, or the path of a JSON file with this mapping.
      rest: the split of the episodes that are not listed.
      key: the name of an episode: a template with episode fields in braces; `{key}` is where it was read.
      seed: seeds the assignment.
    """

    fractions: Mapping[str, float] | None = None
    episodes: str | Names | None = None
    rest: str = "train"
    key: str = "{key}"
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.fractions is None) == (self.episodes is None):
            raise UsageError("SplitEpisodes: give fractions or episodes")
        if isinstance(self.episodes, str):
            where = f"SplitEpisodes: episodes={self.episodes}"
            content = parse_json(storage.read_text(self.episodes), where)
            lists = content.values() if isinstance(content, dict) else [None]
            if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists):
                raise UsageError(f"{where}: expected a JSON object of split -> list of names")
            object.__setattr__(self, "episodes", content)
        for name in self.splits:
            if not is_file_name(name) or not name.replace("_", "").isalnum():
                raise UsageError(f"SplitEpisodes: {name!r} is not a valid split name: use letters, digits, and _")
        if self.fractions is not None:
            parts = self.fractions.values()
            if any(part < 0 for part in parts) or abs(sum(parts) - 1) > 1e-9:
                raise UsageError(f"SplitEpisodes: fractions={dict(self.fractions)}: they must add up to 1")
        elif isinstance(self.episodes, Mapping):
            named = [(name, split) for split, names in self.episodes.items() for name in names]
            object.__setattr__(self, "_of", dict(named))
            if len(vars(self)["_of"]) < len(named):
                raise UsageError("SplitEpisodes: an episode is listed twice")

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        if self.fractions is not None:
            return tuple(self.fractions)
        assert isinstance(self.episodes, Mapping)
        return tuple(dict.fromkeys([*self.episodes, self.rest]))

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        name = episode_name(episode.replace(key=dataclasses.replace(episode.key, part=0)), self.key)
        if self.fractions is None:
            of: Mapping[str, str] = vars(self)["_of"]
            split = of.get(name, self.rest)
        else:
            digest = hashlib.blake2b(f"{self.seed}:{name}".encode(), digest_size=8).digest()
            ends = [round(end * _TOP) for end in itertools.accumulate(self.fractions.values())]
            split = self.splits[bisect.bisect_right(ends[:-1], int.from_bytes(digest, "big"))]
        return episode.replace(metadata={**episode.metadata, OUTPUT_SPLIT: split.encode()})


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
    text = storage.read_text(path)
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
