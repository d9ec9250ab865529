"""Maps the episodes of an output to those of its source."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.encoding.metadata import load_json
from rlds_beam.episodes.episode import EPISODE_KEY, EpisodeKey
from rlds_beam.output.directory import holding
from rlds_beam.output.files import REPORT
from rlds_beam.viewing.browser.dataset import BrowsedDataset, Compared


def compare(datasets: Sequence[BrowsedDataset]) -> None:
    """Links each output to the dataset that it was made from, if that is shown as well."""
    for output in datasets:
        held = holding(output.path) if storage.isdir(output.path) else None
        for source in datasets:
            if held is not None and source is not output and source.source.dataset == held.dataset:
                comparison = Comparison(source, output)
                for one, other in ((output, source), (source, output)):
                    one.compared = one.compared or Compared(other, functools.partial(comparison.counterpart, one))
                break


class Comparison:
    """A dataset and an output that was made from it."""

    def __init__(self, source: BrowsedDataset, output: BrowsedDataset):
        self.source, self.output = source, output

    def counterpart(self, dataset: BrowsedDataset, key: EpisodeKey) -> tuple[EpisodeKey | None, str]:
        """The same episode in the other dataset (None if unknown), and how it was found, or why not."""
        number = dataset.index.number(key)
        if number is None:
            return None, "there is no such episode"
        if self._keys:
            return self._by_key(dataset, key, number)
        order = self._order
        if order is None:
            return None, f"{self.output.path} keeps no episode keys, and some episodes were left out or split"
        how = "by the order of the accepted episodes"
        if dataset is self.output:
            return self._find_key(self.source, int(order[number]) if number < len(order) else None), how
        at = int(np.searchsorted(order, number))
        if at == len(order) or order[at] != number:
            return None, "the conversion rejected or dropped this episode"
        return self._find_key(self.output, at), how

    def _by_key(self, dataset: BrowsedDataset, key: EpisodeKey, number: int) -> tuple[EpisodeKey | None, str]:
        how = f"by the {EPISODE_KEY} that {self.output.path} keeps"
        if dataset is self.output:
            try:
                return EpisodeKey.parse(self._keys[number]), how
            except (IndexError, ValueError):
                return None, f"its {EPISODE_KEY} is missing or malformed"
        found = self._numbers.get(str(key))
        return self._find_key(self.output, found), how if found is not None else "the output has no such episode"

    @staticmethod
    def _find_key(dataset: BrowsedDataset, number: int | None) -> EpisodeKey | None:
        keys = [] if number is None else dataset.index.keys(number, number + 1)
        return keys[0] if keys else None

    @functools.cached_property
    def _keys(self) -> Sequence[str]:
        """The source key of each episode of the output; empty if the output does not keep it."""
        return self.output.source.origins()

    @functools.cached_property
    def _numbers(self) -> Mapping[str, int]:
        """The first episode of the output for each source key."""
        return {key: number for number, key in reversed(list(enumerate(self._keys)))}

    @functools.cached_property
    def _order(self) -> Any:
        """The number in the source of each episode of the output, ascending; None if unknown."""
        made, total = len(self.output.index), len(self.source.index)
        report = load_json(storage.join(self.output.path, REPORT))
        if made == total == report.get("records") and not report.get("rejected") and not report.get("dropped"):
            return np.arange(total)
        rows = self.source.table.rows if self.source.table.complete else None
        accepted = None if rows is None else rows.accepted()
        return accepted if accepted is not None and len(accepted) == made and not report.get("dropped") else None
