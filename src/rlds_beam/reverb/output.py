"""Writes episodes to Reverb tables, range by range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rlds_beam.connectors.base import Batch
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.reverb.target import ReverbTarget
from rlds_beam.reverb.writing import Writer
from rlds_beam.trajectories.converter import ItemConversion, ItemConverter
from rlds_beam.trajectories.items import Items
from rlds_beam.trajectories.unused import UnusedSteps


class ReverbRangeWriter:
    """Writes the items of a range's episodes with a writer that ranges share (an `processing.ranges.RangeWriter`).

    Attributes:
      due: the number of items that each server should have received so far, in each table.
    """

    def __init__(self, conversion: ItemConversion, target: ReverbTarget, writer: Writer):
        self._target, self._writer = target, writer
        self._converter: ItemConverter[Any] = conversion.converter(writer.encode)
        self._key: EpisodeKey | None = None
        self.due: Counter[str] = Counter()

    @property
    def predicted(self) -> int:
        return self._converter.predicted

    @property
    def unused_steps(self) -> Mapping[str, UnusedSteps]:
        return self._converter.unused_steps

    def write(self, batch: Batch) -> None:
        before = self._converter.predicted
        for items in self._converter.encode_batch(batch):
            self._writer.write(items)
        self._key = batch.episodes[0].key
        self.due[self._target.server_of(self._key)] += self._converter.predicted - before

    def write_items(self, items: Items) -> None:
        """Writes items that were converted before, from one episode; all or none of them.

        Raises:
          BadEpisode: they cannot be written.
        """
        self._writer.write(self._converter.encode_items(items))
        self.due[self._target.server_of(items.key)] += len(items)

    def finish(self) -> None:
        """Writes the items completed by the end of the range, and waits until the servers have confirmed all.

        Raises:
          NotVerifiedError: a server did not confirm all items.
        """
        before = self._converter.predicted
        for items in self._converter.finish():
            self._writer.write(items)
        if self._key is not None:
            self._writer.finish(self._key)
            self.due[self._target.server_of(self._key)] += self._converter.predicted - before
        self._writer.flush()

    def abort(self) -> None:
        """Items already sent stay; a retry does not write them twice."""
