"""Runs connectors over checked episodes in your pipeline."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput

from rlds_beam.checking.verdicts import Rejection
from rlds_beam.connectors.base import Connector
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.reading.base import Source
from rlds_beam.worker_status import METRICS_NAMESPACE


class ConnectEpisodesResult(NamedTuple):
    """The outputs of `ConnectEpisodes`.

    Attributes:
      episodes: a PCollection of `Episode`: what the connectors return.
      rejected: a PCollection of `Rejection`: episodes that a connector cannot process.
    """

    episodes: beam.PCollection[Episode]
    rejected: beam.PCollection[Rejection]


@beam.typehints.with_input_types(Episode)
class ConnectEpisodes(beam.PTransform[Episode, Episode]):
    """Edits, splits, or drops episodes. Without Beam: `connect`.

    The counters `dropped_by_NAME` count the episodes that each connector dropped.

    Args:
      connectors: the connectors, run in order over each episode. Columns that they add are ignored.
      read: the dataset of the episodes (`ReadFromRlds(...).source`), or only their schema.

    Attributes:
      schema: the `Schema` of the episodes that the connectors return, for what follows.
      source: the dataset, for what writes its name and rate: connectors that keep one step of n divide the rate.

    Raises:
      UsageError: on construction, if the connectors cannot process an episode of zeros, or need the whole dataset.
      RldsBeamError: while running, if a connector raised or returned other fields than for zeros.
    """

    def __init__(self, connectors: Sequence[Connector], read: Source | Schema):
        super().__init__()
        configuration = Configuration(tuple(connectors))
        self._names = ", ".join(getattr(connector, "__name__", type(connector).__name__) for connector in connectors)
        if isinstance(read, Schema):
            self._runner, self._source = ConnectorRunner.of(configuration, read), None
        else:
            self._runner, self._source = ConnectorRunner.for_source(configuration, read), read
        if self._runner.unfitted:
            raise UsageError("a connector needs the whole dataset: use pipelines.convert, which reads it twice")

    @property
    def schema(self) -> Schema:
        return self._runner.schema

    @property
    def source(self) -> Source:
        if self._source is None:
            raise UsageError("ConnectEpisodes knows only the schema of the episodes: pass ReadFromRlds(...).source")
        return self._runner.source_after(self._source)

    def display_data(self) -> dict[str, Any]:
        return {"connectors": self._names or "none"}

    def expand(self, episodes: beam.PCollection[Episode]) -> ConnectEpisodesResult:
        connected = episodes | "Connect" >> (
            beam.ParDo(_ConnectFn(self._runner))
            .with_output_types(Episode, rejected=Rejection)
            .with_outputs("rejected", main="episodes")
        )
        return ConnectEpisodesResult(connected.episodes, connected.rejected)


class _ConnectFn(beam.DoFn):
    def __init__(self, runner: ConnectorRunner):
        self._runner = runner

    def process(self, episode: Episode) -> Iterator[Episode | TaggedOutput]:
        try:
            batch = self._runner.connect([episode], episode)
        except BadEpisode as bad:
            yield TaggedOutput("rejected", Rejection.of(episode, bad))
            return
        for name, count in batch.dropped.items():
            _dropped_by(name).inc(count)
        yield from batch.episodes


@functools.cache
def _dropped_by(name: str) -> Any:
    return Metrics.counter(METRICS_NAMESPACE, f"dropped_by_{name}")
