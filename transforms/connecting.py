"""Runs connectors and models over checked episodes in your pipeline, and computes their statistics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.ml.inference.base import ModelHandler
from apache_beam.pvalue import TaggedOutput

from rlds_beam.checking.verdicts import Rejection
from rlds_beam.connectors.base import Connector, connect
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.fields import StepFields
from rlds_beam.connectors.learner.sequences import AddModelOutputs
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.connectors.statistics.episode_statistics import DatasetStatistics, Groups
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Source
from rlds_beam.transforms.elements import combine_windows
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
            self._runner, self._source = ConnectorRunner.from_configuration(configuration, read), None
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
            yield TaggedOutput("rejected", Rejection.from_bad_episode(episode, bad))
            return
        for name, count in batch.dropped.items():
            _dropped_by(name).inc(count)
        yield from batch.episodes


@functools.cache
def _dropped_by(name: str) -> Any:
    return Metrics.counter(METRICS_NAMESPACE, f"dropped_by_{name}")


class EpisodeModelHandler(ModelHandler[Episode, Episode, AddModelOutputs]):
    """Runs a model over batches of episodes in Beam's RunInference:

        episodes | RunInference(EpisodeModelHandler(AddModelOutputs("my_models:Policy")))

    The results are the episodes with the model's outputs added to their steps, as `AddModelOutputs` does. A recurrent
    model is called once per step of the longest episode of a batch, so large batches are faster.

    Args:
      outputs: the model, and how to call it.
      fields: the names of the step fields; RLDS's names by default.
      episodes: the minimum and maximum number of episodes in a batch.
    """

    def __init__(
        self,
        outputs: AddModelOutputs,
        fields: StepFields | None = None,
        *,
        episodes: tuple[int, int] = (1, 64),
    ):
        super().__init__(min_batch_size=episodes[0], max_batch_size=episodes[1])
        self._outputs, self._fields = outputs, fields

    def load_model(self) -> AddModelOutputs:
        self._outputs.load()
        return self._outputs

    def run_inference(
        self, batch: Sequence[Episode], model: AddModelOutputs, inference_args: dict[str, Any] | None = None
    ) -> Iterable[Episode]:
        return connect([model], batch, self._fields).episodes

    def get_num_bytes(self, batch: Sequence[Episode]) -> int:
        columns = (column for episode in batch for column in episode.steps.values())
        return sum((column.data if isinstance(column, EncodedImages) else column).nbytes for column in columns)


@beam.typehints.with_input_types(Episode)
class ComputeStatistics(beam.PTransform[Episode, DatasetStatistics]):
    """Computes one `DatasetStatistics` from a PCollection of `Episode`, or one for each window of it.

    Without Beam: `DatasetStatistics.from_episodes`.

    Means and standard deviations may differ in their last bits from run to run, because they depend on how the runner
    bundles the episodes; all other statistics do not. The command `stats` computes them by range, and merges the ranges
    in order: its results are equal for any number of workers.

    Args:
      by: a field; each of its values gets its own statistics (see `DatasetStatistics`).
      target_propensity_fn: a `module:function` that returns the propensities of a target policy. They replace the step
        field `target_propensity`.
    """

    def __init__(self, by: str | None = None, target_propensity_fn: str | None = None):
        super().__init__()
        self._new_groups = functools.partial(Groups, by, target_propensity_fn)

    def expand(self, episodes: beam.PCollection[Episode]) -> beam.PCollection[DatasetStatistics]:
        combine = combine_windows(_StatisticsCombineFn(self._new_groups), episodes)
        return episodes | "Compute" >> combine.with_output_types(DatasetStatistics)


Accumulator = tuple[DatasetStatistics, Groups]
"""Finished statistics, and those of the episodes that were added since."""


class _StatisticsCombineFn(beam.CombineFn):
    def __init__(self, new_groups: Callable[[], Groups]):
        self._new_groups = new_groups

    def create_accumulator(self) -> Accumulator:
        return DatasetStatistics(), self._new_groups()

    def add_input(self, accumulator: Accumulator, episode: Episode) -> Accumulator:
        accumulator[1].add(episode)
        return accumulator

    def compact(self, accumulator: Accumulator) -> Accumulator:
        return self.extract_output(accumulator), self._new_groups()

    def merge_accumulators(self, accumulators: Iterable[Accumulator]) -> Accumulator:
        return DatasetStatistics().merge(*map(self.extract_output, accumulators)), self._new_groups()

    def extract_output(self, accumulator: Accumulator) -> DatasetStatistics:
        finished, groups = accumulator
        return finished.merge(groups.finish())
