"""Drops or keeps the episodes that a file lists by their keys: `--exclude=FILE` and `--only=FILE`."""

from __future__ import annotations

import bisect
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.counts import Listed, Run
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.text import shorten

_REMARK = re.compile(r"\t|(?:^|\s)#")

EXPECTED_KEY = "expected dataset/version:split:shard@position, for example toy/1.0.0:train:00000@12345"

_WHOLE = -1
"""The part of a key without a part: the whole record."""

_Entry = tuple[str, str, int, int, int]
"""A key as (dataset, split, shard, position, part)."""


class EpisodeList:
    """A list of episode keys, from a text file with one in each line. Picklable; 16 bytes for each key.

    `#` begins a comment, and text after a tab is a remark.

    Args:
      file: the file.
      keys: the keys, if they are known; then the file is not read.

    Raises:
      UsageError: the file cannot be read, or a line is not a key.
    """

    def __init__(self, file: str, keys: Iterable[str] | None = None):
        entries = sorted({*(_entries(file) if keys is None else (_entry(key, file) for key in keys))})
        self.file = file
        self.keys = len(entries)
        self.digest = hashlib.sha256("\n".join(map(_text, entries)).encode()).hexdigest()
        self.datasets = tuple(sorted({entry[0] for entry in entries}))
        self._positions = np.array([entry[3:] for entry in entries], np.int64).reshape(-1, 2)
        self._starts = [i for i, entry in enumerate(entries) if i == 0 or entry[:3] != entries[i - 1][:3]]
        self._shards = {entries[start][:3]: i for i, start in enumerate(self._starts)}
        self._names = list(self._shards)
        self._starts.append(self.keys)

    def find(self, key: EpisodeKey) -> list[int]:
        """The positions in the sorted list of the keys that name this episode: its own, and its record's."""
        return [i for i, part in self._of_record(key) if part in (_WHOLE, key.part)]

    def check_dataset(self, dataset: str) -> None:
        """Raises UsageError if a key names another dataset."""
        others = [name for name in self.datasets if name != dataset]
        if others:
            raise UsageError(
                f"{self.file} lists episodes of {shorten(others[0])}, but the input is {dataset}: its keys are those "
                "of another dataset or version"
            )

    def counts(self, keys: Iterable[EpisodeKey], rejected: bool = False) -> Listed:
        """Counts the listed keys that these episodes have.

        Args:
          keys: the episodes of one record.
          rejected: the record is rejected; a key of any part of it is found.
        """
        found = sorted({i for key in keys for i in (dict(self._of_record(key)) if rejected else self.find(key))})
        return Listed(self.keys, self._at(0), tuple(Run(i, i + 1, self._at(i + 1)) for i in found))

    def _of_record(self, key: EpisodeKey) -> list[tuple[int, int]]:
        """The position in the list, and the part, of each listed key of a record."""
        shard = self._shards.get((key.dataset, key.split, key.shard))
        if shard is None:
            return []
        start, stop = self._starts[shard : shard + 2]
        low, high = np.searchsorted(self._positions[start:stop, 0], [key.position, key.position + 1]).tolist()
        return [(i, int(self._positions[i, 1])) for i in range(start + low, start + high)]

    def _at(self, index: int) -> str:
        """The text of a key; empty after the last."""
        if index >= self.keys:
            return ""
        names = self._names[bisect.bisect_right(self._starts, index) - 1]
        return _text((*names, *self._positions[index].tolist()))


class _ListConnector(EpisodeConnector):
    """A connector that has an `EpisodeList`."""

    def __init__(self, file: str):
        self._listed = EpisodeList(file)
        self.keys, self.digest = self._listed.keys, self._listed.digest  # what the plan depends on: not the path

    @property
    def listed(self) -> EpisodeList:
        """The list."""
        return self._listed


class DropListedEpisodes(_ListConnector):
    """Drops the episodes that a file lists by key, for example the bad ones that `rlds-beam check` found.

        # a comment
        bridge_dataset/1.0.0:train:00000@12345          the whole record
        bridge_dataset/1.0.0:train:00000@67890.1        one episode of a record that a repair splits: .0, .1, ...

    Text after a tab is a remark. `--exclude=FILE` runs this connector before all others. Keys that no record has are
    counted in the report.

    Attributes:
      file: the path of the list, local or in a bucket. It is read once, by the command.
    """

    reads_images = False

    def edit(self, episode: Episode, fields: StepFields) -> Episode | Sequence[Episode]:
        return [] if self._listed.find(episode.key) else episode


class KeepListedEpisodes(_ListConnector):
    """Keeps only the episodes that a file lists by key; the format is that of DropListedEpisodes.

        listed in the file       bridge_dataset/1.0.0:train:00000@12345        kept
        not listed               bridge_dataset/1.0.0:train:00000@67890        dropped

    `--only=FILE` runs this connector before all others (except `--exclude`).

    Attributes:
      file: the path of the list, local or in a bucket. It is read once, by the command.
    """

    reads_images = False

    def edit(self, episode: Episode, fields: StepFields) -> Episode | Sequence[Episode]:
        return episode if self._listed.find(episode.key) else []


def find_list(connector: object) -> EpisodeList | None:
    """The list of a connector that has one, and reads nothing else of an episode."""
    listed = getattr(connector, "listed", None)
    return listed if isinstance(listed, EpisodeList) else None


def check_lists(connectors: Iterable[object], dataset: str) -> None:
    """Raises UsageError if a list names another dataset than the one that is read."""
    for connector in connectors:
        if (listed := find_list(connector)) is not None:
            listed.check_dataset(dataset)


def _entries(file: str) -> Iterator[_Entry]:
    text = storage.read_given(file, f"the list of episodes {file} cannot be read")
    for number, line in enumerate(text.split("\n"), 1):
        if key := _REMARK.split(line, maxsplit=1)[0].strip():
            yield _entry(key, f"{file}, line {number:,}")


def _entry(text: str, where: str) -> _Entry:
    try:
        key = EpisodeKey.parse(text if len(text) < 1000 and text.isprintable() else "")
        if max(key.shard, key.position, key.part) >= 1 << 62:
            raise ValueError
    except ValueError:
        raise UsageError(f"{where}: {shorten(text, 80)!r} is not the key of an episode; {EXPECTED_KEY}") from None
    part = key.part if "." in text.rpartition("@")[2] else _WHOLE
    return key.dataset, key.split, key.shard, key.position, part


def _text(entry: _Entry) -> str:
    """The key as text; a key of the first part ends in `.0`, that of a record has no part."""
    whole = str(EpisodeKey(*entry[:4]))
    return whole if entry[4] == _WHOLE else f"{whole}.{entry[4]}"
