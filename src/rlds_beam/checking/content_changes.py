"""Episodes that were added, removed, or changed between two versions of a dataset, by the digests of their records."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from rlds_beam.episodes.episode import EpisodeKey

Digest: TypeAlias = tuple[EpisodeKey, int]
"""The key of a record, and the digest of its bytes."""


Changes: TypeAlias = tuple[int, list[str], list[str], list[list[str]]]
"""How many records are equal; the keys of those added, removed, and changed (before and after)."""


def compare_contents(first: Sequence[Digest], second: Sequence[Digest]) -> Changes:
    """Compares two versions of a dataset, each sorted by key.

    Equal records match wherever they are in a split. A record is changed if the one before it is equal in both.
    """
    counts = [Counter((key.split, digest) for key, digest in version) for version in (first, second)]
    common = counts[0] & counts[1]
    rests: dict[tuple[str, int, int], tuple[list[str], list[str]]] = {}  # by the last equal record before them
    for side, version in enumerate((first, second)):
        seen: Counter[tuple[str, int]] = Counter()
        before: dict[str, tuple[str, int, int]] = {}
        for key, digest in version:
            if seen[key.split, digest] < common[key.split, digest]:
                seen[key.split, digest] += 1
                before[key.split] = key.split, digest, seen[key.split, digest]
            else:
                rests.setdefault(before.get(key.split, (key.split, 0, 0)), ([], []))[side].append(str(key))
    pairs = [pair for olds, news in rests.values() for pair in itertools.zip_longest(olds, news)]
    added = [new for old, new in pairs if old is None]
    removed = [old for old, new in pairs if new is None]
    return common.total(), added, removed, [[old, new] for old, new in pairs if old is not None and new is not None]
