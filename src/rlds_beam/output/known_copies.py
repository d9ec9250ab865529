"""Digests of the episodes of an output, which its commits hold, so that an append finds copies in any format."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlds_beam.checking.copies import ComparedFields, DigestGatherer
from rlds_beam.encoding.checked_json import parsing
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import Violation
from rlds_beam.processing.report import Processed
from rlds_beam.text import count
from rlds_beam.typing import Array

if TYPE_CHECKING:
    from rlds_beam.output.commits import RangeCommit


@dataclasses.dataclass(frozen=True)
class KnownCopies:
    """The digests of an output's episodes (24 bytes per episode). Picklable.

    Attributes:
      digests: the digests of all episodes, ascending, uint64 (N,).
      owners: the number of the episode of each, int64 (N,).
      ranges: the ranges, in order.
      starts: the number of the first episode of each range, int64 (R,).
      unknown: the ranges without digests, because another version or another command wrote them.
    """

    digests: Array
    owners: Array
    ranges: tuple[str, ...]
    starts: Array
    unknown: tuple[str, ...]

    @classmethod
    def of(cls, commits: Iterable[RangeCommit]) -> KnownCopies:
        """The digests in commits. Raises UsageError if a commit is damaged."""
        commits = [*commits]
        having = [commit for commit in commits if commit.digests is not None]
        pairs = [_decode(commit.digests or "", commit.range) for commit in having]
        starts = np.cumsum([0, *map(len, pairs)])[:-1]
        every = np.concatenate([np.zeros((0, 2), np.uint64), *pairs])
        owners, digests = np.repeat(np.arange(len(every)), 2), every.ravel()
        order = np.lexsort((owners, digests))[np.count_nonzero(digests == 0) :]
        unknown = tuple(commit.range for commit in commits if commit.digests is None)
        return cls(digests[order], owners[order], tuple(c.range for c in having), starts, unknown)

    def find(self, digests: Sequence[int]) -> str | None:
        """Names the first episode of the output that has one of these digests; None if none has."""
        owners = []
        for digest in np.array([d for d in digests if d], np.uint64):
            at = int(np.searchsorted(self.digests, digest))
            if at < len(self.digests) and self.digests[at] == digest:
                owners.append(int(self.owners[at]))
        if not owners:
            return None
        which = int(np.searchsorted(self.starts, min(owners), side="right")) - 1
        return f"episode {min(owners) - int(self.starts[which]):,} of {self.ranges[which]}"


class RangeCopies:
    """The digests of a range's episodes: finds copies of those that the output has, and collects those it writes.

    Args:
      compared: the fields to compare.
      known: the digests of the output that is appended to; None if there is none, or copies are accepted.
    """

    def __init__(self, compared: ComparedFields, known: KnownCopies | None):
        self._gatherer, self._known = DigestGatherer(compared), known
        self._written: list[bool] = []

    def mark(self, episode: Episode) -> Episode:
        """Adds the fault `duplicate_episode` to a copy of an episode that the output has."""
        self._gatherer.add(episode)
        found = None if self._known is None else self._known.find(self._gatherer.last())
        if found is None:
            return episode
        said = f"the output has the same actions and observations already: {found}"
        return episode.replace(faults=(*episode.faults, Violation("duplicate_episode", said)))

    def add(self, record: Processed) -> None:
        """Keeps the digests of the marked episode if it was written."""
        self._written.append(record.verdict.rejected is None and record.written)

    def encode(self) -> str:
        """The digests of the written episodes as text (22 characters per episode)."""
        return encode_digests(self._gatherer.finish()[np.array(self._written, bool)])


def encode_digests(digests: Array) -> str:
    """Digests (N, 2) as text, in order."""
    return base64.b64encode(digests.astype("<u8").tobytes()).decode()


def _decode(text: str, where: str) -> Array:
    with parsing(f"_commits/{where}.json"):
        try:
            return np.frombuffer(base64.b64decode(text, validate=True), "<u8").reshape(-1, 2).astype(np.uint64)
        except binascii.Error as error:
            raise ValueError(f"its digests: {error}") from error


def describe_unknown(known: KnownCopies) -> list[str]:
    """A note on the ranges whose episodes cannot be compared."""
    if not known.unknown:
        return []
    return [
        f"note      {count(len(known.unknown), 'range')} of the output have no digests, because another version or "
        "another command wrote them: copies of their episodes are not found"
    ]
