"""Chooses the episodes that a report shows, from the table of all episodes.

The choice depends on the keys alone, not on the order of the rows, so it is the same for any number of workers.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlds_beam.episodes.keys import EpisodeKey

if TYPE_CHECKING:
    import pyarrow as pa


def sampled(keys: Iterable[str], count: int) -> list[str]:
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
