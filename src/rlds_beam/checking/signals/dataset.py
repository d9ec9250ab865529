"""Dataset-level findings that no single episode shows."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rlds_beam.checking.signals.repeats import Repeats, count_others
from rlds_beam.checking.signals.rows import SignalRows
from rlds_beam.checking.signals.scores import group_scales, load_fields
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.episodes.schema import dimension_labels, shown_dimensions
from rlds_beam.text import count, shorten
from rlds_beam.typing import Array

DATASET_CHECKS: dict[str, str] = {
    "split_leakage": "episodes of one split repeat those of another, or have the same rare start and instruction",
    "contradictory_instruction": "episodes with the same motion have different instructions",
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
    "contradictory_instruction": "the connector RelabelLanguage corrects the instruction",
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
    splits, texts = [key[1] for key in rows.keys], rows.values.get("instruction", [None] * len(rows))
    sizes = Counter(splits)
    for split in sorted(sizes, key=lambda name: (-sizes[name], name))[1:]:
        own = np.array([name == split for name in splits])
        others = np.fmin.reduce([count_others(group, splits)[1] for group in repeats])
        if len(found := np.flatnonzero(own & ~np.isnan(others))):
            pair = _pair(rows, int(found[0]), int(others[found[0]]))
            yield _finding("split_leakage", split, f"{len(found):,} of {count(sizes[split], 'episode')}: {pair}")
    _, others = count_others(repeats.motion, texts)
    if len(found := np.flatnonzero(others < np.arange(len(rows)))):
        one, other = int(found[0]), int(others[found[0]])
        said = f"{shorten(repr(texts[one]), 40)} and {shorten(repr(texts[other]), 40)}"
        yield _finding(
            "contradictory_instruction", "", f"{count(len(found), 'episode')}: {_pair(rows, one, other)}: {said}"
        )
    _, others = count_others(repeats.motion, range(len(rows)))
    if len(found := np.flatnonzero(others < np.arange(len(rows)))):
        pair = _pair(rows, int(found[0]), int(others[found[0]]))
        yield _finding("near_duplicate", "", f"{count(len(found), 'episode')}: {pair}")


def _pair(rows: SignalRows, one: int, other: int) -> str:
    """`val:00000@3 repeats train:00001@7`."""
    names = [str(EpisodeKey(*rows.keys[row])).partition(":")[2] for row in (one, other)]
    return " repeats ".join(names)


def _of_metadata(rows: SignalRows) -> Iterator[DatasetFinding]:
    """A constant field may be right, but one was `building` in all 27.6 million rows (lerobot issue 4402)."""
    for name, values in rows.values.items():
        known = [value for value in values if value is not None]
        if not name.startswith("metadata/") or len(known) < _MIN_EPISODES:
            continue
        field, different = name.partition("/")[2], len(set(known))
        if different == 1 and not isinstance(known[0], bool):
            yield _finding(
                "constant_metadata", field, f"{shorten(repr(known[0]), 60)} in all {count(len(known), 'episode')}"
            )
        if 1 < different < len(known) and _ID.fullmatch(name):
            yield _finding("repeated_id", field, f"{different:,} values in {count(len(known), 'episode')}")
        if len({isinstance(value, str) for value in known}) == 2:
            yield _finding(
                "mixed_metadata", field, f"{sum(isinstance(v, str) for v in known):,} of {len(known):,} texts"
            )


def _of_motion(rows: SignalRows, names: Mapping[str, Sequence[str]]) -> Iterator[DatasetFinding]:
    for path, field in load_fields(rows).items():
        known = ~np.isnan(field["low"]).any(axis=1)
        if known.sum() < _MIN_EPISODES:
            continue
        low, high = field["low"][known].min(axis=0), field["high"][known].max(axis=0)
        constant = np.flatnonzero(low == high)
        if len(constant):
            labels = dimension_labels((len(low),), len(low), names.get(path, ()))
            number = shown_dimensions(len(constant))
            shown = ", ".join(f"{labels[d]} (always {low[d]:g})" for d in constant[:number].tolist())
            more = f" and {len(constant) - number} more" if len(constant) > number else ""
            yield _finding("constant_dimension", path, f"of {len(low)} dimensions: {shown}{more}")
        detail = _normalize(field, rows.numbers["steps"], known, low, high)
        if detail:
            yield _finding("normalized", path, detail)


def _normalize(field: Mapping[str, Array], steps: Array, known: Array, low: Array, high: Array) -> str:
    """The apparent normalization of a field; empty if there is none.

    More than half of the dimensions that move, and at least two, have the bounds -1 and 1; or at least three have
    mean 0 and standard deviation 1.
    """
    moves = high > low
    weights = steps[known, None] / steps[known].sum()
    mean = (field["mean"][known] * weights).sum(axis=0)
    deviation = np.sqrt(np.maximum((field["square"][known] * weights).sum(axis=0) - mean**2, 0))
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
