"""Dataset-level findings that no single episode shows."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.checking.signals.repeats import Repeats, count_others
from rlds_beam.checking.signals.rows import SignalRows
from rlds_beam.checking.signals.scores import group_scales
from rlds_beam.episodes.schema import dimension_labels, shown_dimensions
from rlds_beam.text import count, shorten
from rlds_beam.typing import Array

DATASET_CHECKS: dict[str, str] = {
    "split_leakage": "episodes of one split repeat those of another, or have the same rare start and instruction",
    "near_duplicate": "episodes repeat the motion of others, up to noise and small changes of the length",
    "scale_mismatch": "datasets that were merged, or splits, use different scales or units",
    "normalized": "values look normalized already, to [-1, 1] or to mean 0 and standard deviation 1",
    "repeated_id": "an id of the episodes occurs more than once",
    "constant_dimension": "a dimension never changes, in any step of any episode",
    "mixed_metadata": "a field of the episodes is a number in some and a text in others",
    "constant_metadata": "a field of the episodes has the same value in all of them",
}
"""Check of the whole dataset -> its meaning; the most serious first."""

REMEDIES = {
    "split_leakage": "leave them out of one split: check --reject=split_leakage --write_exclude=FILE",
    "near_duplicate": "keep one of them: check --signal=near_duplicate lists them",
    "constant_metadata": "check where the value comes from; the connector DropFields removes the field",
    "repeated_id": "check for episodes that were recorded or copied twice",
    "mixed_metadata": "write it in one type",
    "constant_dimension": "a broken sensor, or a dimension that is not used: leave it out",
    "normalized": "do not normalize again, and keep the statistics that turn actions back",
    "scale_mismatch": "convert the units of one of them before merging",
}
_MIN_EPISODES = 10
_ID = re.compile(r"metadata/(.*[/_])?(episode_id|episode_index|uuid|uid|id)")
_MAX_RATIO = 5.0


@dataclasses.dataclass(frozen=True)
class DatasetFinding:
    """A finding about the whole dataset.

    Attributes:
      check: one of `DATASET_CHECKS`.
      field: the field that it is about.
      detail: what was found.
      remedy: what to do about it.
    """

    check: str
    field: str
    detail: str
    remedy: str


def find_findings(rows: SignalRows, repeats: Repeats, names: Mapping[str, Sequence[str]] = {}) -> list[DatasetFinding]:
    """All findings, in the order of `DATASET_CHECKS`; none for fewer than 10 episodes.

    Args:
      repeats: the result of `find_repeats`.
      names: the names of the values of fields, by path.
    """
    if len(rows) < _MIN_EPISODES:
        return []
    found = [*_of_repeats(rows, repeats), *_of_metadata(rows), *_of_motion(rows, names), *_of_groups(rows)]
    order = list(DATASET_CHECKS)
    return sorted(found, key=lambda finding: (order.index(finding.check), finding.field))


def _finding(check: str, field: str, detail: str) -> DatasetFinding:
    return DatasetFinding(check, field, detail, REMEDIES[check])


def _of_repeats(rows: SignalRows, repeats: Repeats) -> Iterator[DatasetFinding]:
    """Names the first pair; `check --signal=NAME` lists more."""
    splits, split_of = rows.splits
    split_of = split_of[rows.order]
    sizes = np.bincount(split_of, minlength=len(splits)).tolist()
    others = np.fmin.reduce([count_others(group, split_of)[1] for group in repeats])
    for split in sorted(range(len(splits)), key=lambda number: (-sizes[number], splits[number]))[1:]:
        if len(found := np.flatnonzero((split_of == split) & ~np.isnan(others))):
            pair = _pair(rows, int(found[0]), int(others[found[0]]))
            of = count(sizes[split], "episode")
            yield _finding("split_leakage", splits[split], f"{len(found):,} of {of}: {pair}")
    if len(found := np.flatnonzero(repeats.motion < np.arange(len(rows)))):
        pair = _pair(rows, int(found[0]), int(repeats.motion[found[0]]))
        yield _finding("near_duplicate", "", f"{count(len(found), 'episode')}: {pair}")


def _pair(rows: SignalRows, one: int, other: int) -> str:
    """`val:00000@3 repeats train:00001@7`, and both instructions if they differ."""
    places = rows.order[[one, other]]
    pair = " repeats ".join(str(key).partition(":")[2] for key in rows.keys(places))
    texts, codes = rows.codes("instruction")
    said = [texts[code] for code in codes[places]]
    return (
        pair
        if said[0] == said[1]
        else f"{pair}, but says {shorten(repr(said[0]), 40)}, not {shorten(repr(said[1]), 40)}"
    )


def _of_metadata(rows: SignalRows) -> Iterator[DatasetFinding]:
    """A constant field may be right, but one was `building` in all 27.6 million rows (lerobot issue 4402)."""
    for name in rows.values:
        if not name.startswith("metadata/"):
            continue
        known = texts = 0
        kinds: dict[Any, str] = {}
        for values in rows.each(name):
            for value in values:
                if value is not None:
                    known, texts, kind = known + 1, texts + isinstance(value, str), type(value).__name__
                    kinds[value] = min(kinds.get(value, kind), kind)
        if known < _MIN_EPISODES:
            continue
        field, different = name.partition("/")[2], len(kinds)
        if different == 1:
            ((value, kind),) = kinds.items()
            if kind != "bool":
                yield _finding(
                    "constant_metadata", field, f"{shorten(repr(value), 60)} in all {count(known, 'episode')}"
                )
        if 1 < different < known and _ID.fullmatch(name):
            yield _finding("repeated_id", field, f"{different:,} values in {count(known, 'episode')}")
        if 0 < texts < known:
            yield _finding("mixed_metadata", field, f"{texts:,} of {known:,} texts")


def _of_motion(rows: SignalRows, names: Mapping[str, Sequence[str]]) -> Iterator[DatasetFinding]:
    for path in rows.fields:
        known = rows.map(lambda place, low: ~np.isnan(low).any(axis=1), (path, "low"))
        if known.sum() < _MIN_EPISODES:
            continue
        low = rows.reduce(lambda low, known=known: low[known].min(axis=0), (path, "low"))
        high = rows.reduce(lambda high, known=known: high[known].max(axis=0), (path, "high"))
        constant = np.flatnonzero(low == high)
        if len(constant):
            labels = dimension_labels((len(low),), len(low), names.get(path, ()))
            number = shown_dimensions(len(constant))
            shown = ", ".join(f"{labels[d]} (always {low[d]:g})" for d in constant[:number].tolist())
            more = f" and {len(constant) - number} more" if len(constant) > number else ""
            yield _finding("constant_dimension", path, f"of {len(low)} dimensions: {shown}{more}")
        detail = _normalize(rows, path, known, low, high)
        if detail:
            yield _finding("normalized", path, detail)


def _normalize(rows: SignalRows, path: str, known: Array, low: Array, high: Array) -> str:
    """The apparent normalization of a field; empty if there is none.

    More than half of the dimensions that move, and at least two, have the bounds -1 and 1; or at least three have
    mean 0 and standard deviation 1.
    """
    moves = high > low
    places = rows.order[known[rows.order]]  # sums depend on the order
    steps = rows.numbers["steps"][places, None]
    weights = steps / steps.sum()
    mean, square = (
        rows.reduce(lambda values: (values[places] * weights).sum(axis=0), (path, name)) for name in ("mean", "square")
    )
    deviation = np.sqrt(np.maximum(square - mean**2, 0))
    bounded = moves & (np.abs(low + 1) < 1e-6) & (np.abs(high - 1) < 1e-6)
    standard = moves & (np.abs(mean) < 0.05) & (np.abs(deviation - 1) < 0.05)
    for matching, least, detail in ((bounded, 2, "from -1 to 1"), (standard, 3, "mean 0 and standard deviation 1")):
        if matching.sum() >= least and matching.sum() > moves.sum() / 2:
            return f"{detail} in {matching.sum()} of {count(int(moves.sum()), 'moving dimension')}"
    return ""


def _of_groups(rows: SignalRows) -> Iterator[DatasetFinding]:
    groups, _, scales = group_scales(rows)
    for path, ratios in scales.items():
        for group, ratio in zip(groups, ratios.tolist(), strict=True):
            if ratio > _MAX_RATIO:
                others = "the others" if len(groups) > 2 else next(name for name in groups if name != group)
                detail = f"{shorten(repr(group), 60)}: {ratio:.3g} times larger or smaller than {shorten(others, 60)}"
                yield _finding("scale_mismatch", path, detail)
