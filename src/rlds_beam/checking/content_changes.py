"""Episodes that were added, removed, or changed between two versions of a dataset, by the digests of their records."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rlds_beam.episodes.episode import EpisodeKey


@dataclasses.dataclass(frozen=True)
class ContentChanges:
    """The differences between the episodes of two versions, each with the keys that name them.

    Attributes:
      equal: the number of episodes in both versions, with equal bytes, in one split.
      added: the keys of episodes of the second version only.
      removed: the keys of episodes of the first version only.
      changed: the keys before and after of episodes that differ, but have the same neighbor before them.
      moved: the keys before and after of equal episodes that are in another split.
    """

    equal: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[tuple[str, str], ...]
    moved: tuple[tuple[str, str], ...]

    @property
    def number(self) -> int:
        """The number of differences."""
        return sum(map(len, (self.added, self.removed, self.changed, self.moved)))


class _Rest(NamedTuple):
    """An episode that the other version lacks, and the last equal episode before it in its split."""

    before: tuple[str, str, int]
    key: str
    digest: str


def compare_contents(first: Sequence[tuple[str, str]], second: Sequence[tuple[str, str]]) -> ContentChanges:
    """Compares two versions of a dataset.

    Equal episodes are matched wherever they are in a split, so other shards and another order are no difference. Time
    and memory grow linearly.

    Args:
      first, second: the key and the digest of each episode, in order (`FindingLog.contents`).
    """
    splits = [[EpisodeKey.parse(key).split for key, _ in version] for version in (first, second)]
    counts = [
        Counter((split, digest) for split, (_, digest) in zip(of, version, strict=True))
        for of, version in zip(splits, (first, second), strict=True)
    ]
    common = counts[0] & counts[1]
    rests = [_rest(of, version, common) for of, version in zip(splits, (first, second), strict=True)]
    others: defaultdict[str, deque[_Rest]] = defaultdict(deque)
    for rest in rests[1]:
        others[rest.digest].append(rest)
    moved = [(rest, others[rest.digest].popleft()) for rest in rests[0] if others.get(rest.digest)]
    gone = {rest.key for rest, _ in moved}, {rest.key for _, rest in moved}
    places: dict[tuple[str, str, int], tuple[list[str], list[str]]] = {}
    for side, rest_of_side in enumerate(rests):
        for rest in rest_of_side:
            if rest.key not in gone[side]:
                places.setdefault(rest.before, ([], []))[side].append(rest.key)
    pairs = [pair for olds, news in places.values() for pair in itertools.zip_longest(olds, news)]
    return ContentChanges(
        common.total(),
        tuple(new for old, new in pairs if old is None),
        tuple(old for old, new in pairs if new is None),
        tuple((old, new) for old, new in pairs if old is not None and new is not None),
        tuple((old.key, new.key) for old, new in moved),
    )


def _rest(splits: Iterable[str], version: Iterable[tuple[str, str]], common: Counter[tuple[str, str]]) -> list[_Rest]:
    """The episodes of a version that the other one lacks."""
    seen: Counter[tuple[str, str]] = Counter()
    before: dict[str, tuple[str, str, int]] = {}
    rest = []
    for split, (key, digest) in zip(splits, version, strict=True):
        if seen[split, digest] < common[split, digest]:
            before[split] = (split, digest, seen[split, digest])
            seen[split, digest] += 1
        else:
            rest.append(_Rest(before.get(split, (split, "", 0)), key, digest))
    return rest
