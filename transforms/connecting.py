"""Runs connectors over checked episodes in your pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import apache_beam as beam
from apache_beam.metrics import Metrics

from rlds_beam.connectors.base import Connector, connect
from rlds_beam.episodes.episode import Episode
from rlds_beam.transforms.metrics import METRICS_NAMESPACE


class ConnectEpisodes(beam.PTransform):
    """Edits, splits, or drops episodes: a PCollection of `Episode` to another. Without Beam: `connect`.

    The counters `dropped_by_NAME` count the episodes that each connector dropped.

    Args:
      connectors: the connectors, run in order over each episode. Columns that they add are ignored.
    """

    def __init__(self, connectors: Sequence[Connector]):
        super().__init__()
        self._connectors = tuple(connectors)

    def expand(self, episodes: beam.PCollection[Episode]) -> beam.PCollection[Episode]:
        return episodes | "Connect" >> beam.FlatMap(_connect, self._connectors).with_output_types(Episode)


def _connect(episode: Episode, connectors: tuple[Connector, ...]) -> Iterator[Episode]:
    batch = connect(connectors, [episode])
    for name, count in batch.dropped.items():
        Metrics.counter(METRICS_NAMESPACE, f"dropped_by_{name}").inc(count)
    yield from batch.episodes
