"""The recall and false alarms of each signal, on datasets of which some episodes have a defect."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from data_kinds import KINDS, Kind
from defects import DEFECTS, Defect

from rlds_beam.checking.signals import SIGNALS, Context, EpisodeTable
from rlds_beam.episodes.episode import Episode

EPISODES, BROKEN = 50, 5
"""The episodes of a dataset, and how many of them have a defect."""


@dataclasses.dataclass
class Result:
    """What a signal found in one kind of data.

    Attributes:
      found: for each strength, how many of the episodes with the defect are beyond the threshold.
      broken: how many episodes had the defect, for each strength.
      alarms: how many of the clean episodes are beyond the threshold; episodes count once for each dataset.
      clean: the number of clean episodes.
    """

    found: list[int]
    broken: int = 0
    alarms: int = 0
    clean: int = 0

    @property
    def recall(self) -> tuple[float, ...]:
        return tuple(found / max(self.broken, 1) for found in self.found)

    @property
    def false_alarms(self) -> float:
        return self.alarms / self.clean


def measure(
    seeds: Sequence[int], kinds: Sequence[Kind] = KINDS, decoded: int = 3
) -> dict[tuple[str, str, str], Result]:
    """(signal, defect, kind) -> the result. The defect is "" if the kind cannot have one; then there is no recall."""
    results: dict[tuple[str, str, str], Result] = {}
    for kind in kinds:
        possible = [defect for defect in DEFECTS if all(getattr(kind, need) for need in defect.needs)]
        for seed in seeds:
            _measure_dataset(kind, seed, decoded, possible, results)
    return results


def _measure_dataset(
    kind: Kind, seed: int, decoded: int, possible: Sequence[Defect], results: dict[tuple[str, str, str], Result]
) -> None:
    """Adds what the signals find in one dataset: as it is, and with each of the possible defects."""
    episodes = kind.make(EPISODES, seed)
    places = np.random.default_rng([4, seed]).choice(EPISODES, BROKEN, replace=False).tolist()
    context = kind.context(episodes[0], decoded)
    rest = _table(context, [episode for i, episode in enumerate(episodes) if i not in places])
    clean = _alarms(rest, _table(context, [episodes[i] for i in places]))
    of_signal = {defect.signal: defect for defect in reversed(possible)}

    def add(signal: str, alarms: int, episodes: int, defect: Defect | None = None) -> Result:
        defect = defect or of_signal.get(signal)
        name, strengths = (defect.name, len(defect.strengths)) if defect else ("", 0)
        result = results.setdefault((signal, name, kind.name), Result([0] * strengths))
        result.alarms += alarms
        result.clean += episodes
        return result

    for signal, found in clean.items():
        if found is not None:
            add(signal, len(found), EPISODES)
    for defect in possible:
        for number, strength in enumerate(defect.strengths):
            broken = [
                defect.change(episodes[i], np.random.default_rng([5, seed, i, number]), strength, kind) for i in places
            ]
            alarms = _alarms(rest, _table(context, broken))
            keys = {str(episode.key) for episode in broken}
            hits = alarms[defect.signal] or set()
            result = add(defect.signal, len(hits - keys), EPISODES - BROKEN, defect)
            result.found[number] += len(hits & keys)
            result.broken += BROKEN * (number == 0)
            for signal in defect.unlike:
                add(signal, len(alarms[signal] or ()), EPISODES)


def _table(context: Context, episodes: Sequence[Episode]) -> EpisodeTable:
    table = EpisodeTable(context)
    for episode in episodes:
        table.add(episode)
    return table


def _alarms(*tables: EpisodeTable) -> dict[str, set[str] | None]:
    """Signal -> the keys of the episodes beyond its threshold; None if no episode has a value."""
    first, *others = tables
    rows = first.merge(*others).finish()
    keys = rows["key"].to_pylist()
    found: dict[str, set[str] | None] = {}
    for name, signal in SIGNALS.items():
        known = [(key, value) for key, value in zip(keys, rows[name].to_pylist(), strict=True) if value is not None]
        found[name] = {key for key, value in known if signal.breaks(value)} if known else None
    return found
