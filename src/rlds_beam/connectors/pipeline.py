"""Runs the connectors of a job in the workers, between the check and the output, and counts episodes and steps."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.connectors.base import (
    Accumulator,
    Batch,
    Connector,
    FittedConnector,
    after_connectors,
    find_module,
    full_name,
    is_users,
    run,
    short_name,
)
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.counts import Connected
from rlds_beam.connectors.dry_run import Probed, probe
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.errors import BadEpisode, RldsBeamError, UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Source
from rlds_beam.reading.meaning import LastAction
from rlds_beam.reading.reader import sample_episodes
from rlds_beam.text import some
from rlds_beam.user_functions import describe_error


@dataclasses.dataclass(frozen=True)
class ConnectorRunner:
    """The connectors of a job, with their output schema. Picklable.

    Attributes:
      configuration: the connectors.
      probed: the result of the dry run.
      fps, last_action: what is known of the episodes before the connectors, as in `Source`.
    """

    configuration: Configuration
    probed: Probed
    fps: float | None = None
    last_action: LastAction = "unknown"

    @classmethod
    def from_configuration(cls, configuration: Configuration, schema: Schema) -> ConnectorRunner:
        """Returns the runner for a dataset. Raises UsageError if the connectors cannot process its episodes."""
        return cls(configuration, probe(configuration, schema))

    @classmethod
    def for_source(cls, configuration: Configuration, source: Source) -> ConnectorRunner:
        """Returns the runner for a source; raises UsageError as `of`, or if a connector cannot use the source."""
        configuration = configuration.for_source(source)
        probed = probe(configuration, source.schema)
        _check_samples(configuration, source)
        return cls(configuration, probed, source.fps, source.last_action)

    @classmethod
    def none(cls) -> ConnectorRunner:
        """Returns a runner without connectors."""
        return cls(Configuration(), Probed((), {}, ()))

    @classmethod
    def for_reading(cls, source: Source) -> ConnectorRunner:
        """Returns a runner without connectors for a source that is only read."""
        return dataclasses.replace(cls.none(), fps=source.fps, last_action=source.last_action)

    @property
    def connectors(self) -> tuple[Connector, ...]:
        return self.configuration.connectors

    @property
    def schema(self) -> Schema:
        """The schema of the returned episodes; raises UsageError if agents have different ones."""
        return self.probed.schema if self.connectors else self.probed.given

    def refuse_columns(self, instead: str) -> None:
        """Raises UsageError if the connectors add columns but the output holds only episodes.

        Args:
          instead: the flag of an output that holds columns.
        """
        if names := sorted({name for columns in self.probed.modules.values() for name in columns}):
            said = f"this output cannot hold columns, but connectors add {some(names)}"
            raise UsageError(f"--connectors: {said}. Use {instead}, or remove these connectors")

    @property
    def splits(self) -> tuple[str, ...]:
        """The output splits that connectors assign; empty if episodes stay in their own split."""
        return next((tuple(c.splits) for c in self.connectors if hasattr(c, "splits")), ())

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user about the effects of the connectors on this dataset."""
        return tuple(note for connector in self.connectors if (note := getattr(connector, "note", None)))

    def source_after(self, source: Source) -> Source:
        """The source with the rate of the returned episodes."""
        return after_connectors(self.connectors, source)

    def ignored_values(self, of_output: IgnoredValues | None = None) -> IgnoredValues:
        """The values to leave unchecked: all values are checked if there are connectors that may read any field.

        Args:
          of_output: the values that the output does not use; None if there is none: then void values are left
            unchecked.
        """
        if of_output is None:
            return IgnoredValues.from_last_action(self.last_action)
        reading = any(getattr(connector, "reads_values", True) for connector in self.connectors)
        return IgnoredValues(last_step=of_output.last_step) if reading else of_output

    def connect(self, episodes: Sequence[Episode], read: Episode | None = None) -> Batch:
        """Runs the connectors over the accepted episodes of one record.

        Args:
          episodes: the accepted episodes.
          read: the record as read, for `Batch.read`.

        Raises:
          BadEpisode: a connector found an unusable episode.
          RldsBeamError: a connector raised, or its output differs from the dry run on zeros.
        """
        if not self.connectors:
            return Batch(tuple(episodes), fields=self.configuration.fields, read=read)
        batch = self._run(self.connectors, episodes).replace(read=read)
        if (difference := self._difference(batch)) is not None:
            suspects = [c for c in self.connectors if is_users(c)] or self.connectors
            raise RldsBeamError(f"--connectors: {' or '.join(map(full_name, suspects))} {difference}")
        if len({episode.key for episode in batch.episodes}) == len(batch.episodes):
            return batch
        # Item keys derive from episode keys, so those must be unique.
        parts = (e.replace(key=dataclasses.replace(e.key, part=i)) for i, e in enumerate(batch.episodes))
        return batch.replace(episodes=tuple(parts))

    def _run(self, connectors: Sequence[Connector], episodes: Sequence[Episode]) -> Batch:
        batch = Batch(tuple(episodes), fields=self.configuration.fields)
        connected: list[Connected] = []
        for connector in connectors:
            before = batch
            try:
                batch = run([connector], batch)
            except (BadEpisode, RldsBeamError):
                raise
            except Exception as error:
                name = full_name(connector)
                raise RldsBeamError(f"--connectors: {name} {describe_error(error)} for {episodes[0].key}") from error
            counts = [(len(each.episodes), sum(map(len, each.episodes))) for each in (before, batch)]
            (episodes_in, steps_in), (episodes_out, steps_out) = counts
            listed = getattr(connector, "listed_keys", 0)
            connected.append(Connected(short_name(connector), episodes_in, episodes_out, steps_in, steps_out, listed))
            if not batch.episodes:
                break
        return batch.replace(connected=tuple(connected))

    def _difference(self, batch: Batch) -> str | None:
        """The difference from the dry run on zeros, as the end of a sentence; None if there is none."""
        for episode in batch.episodes:
            differences = [difference(episode.steps, schema.steps, str(episode.key)) for schema in self.probed.schemas]
            if None not in differences:
                return differences[0]
        of_episodes = [(find_module(e), c) for e, c in zip(batch.episodes, batch.columns, strict=True) if c]
        for module, columns in of_episodes if batch.modules is None else batch.modules.items():
            known = self.probed.modules.get(module)
            if known is None:
                return f"returned columns for module {module}, but none in the dry run: name it in the configuration"
            where = f"{batch.episodes[0].key}, module {module}"
            if (wrong := difference(columns, known, where)) is not None:
                return wrong
        return None

    @property
    def user_code(self) -> bool:
        """Whether any connector is user code."""
        return any(map(is_users, self.connectors))

    def as_probed(self) -> ConnectorRunner:
        """A copy with the connectors fitted to zeros: its outputs have the right shapes, but other values."""
        return dataclasses.replace(
            self, configuration=dataclasses.replace(self.configuration, connectors=self.probed.connectors)
        )

    @property
    def unfitted(self) -> int:
        """The number of connectors that must still be fitted to the dataset."""
        return len(self._unfitted())

    def accumulator(self) -> Accumulator:
        """Returns an empty accumulator for the first unfitted connector."""
        _, connector = self._unfitted()[0]
        return connector.accumulator()

    def accumulate(self, accumulator: Accumulator, episodes: Sequence[Episode]) -> None:
        """Adds the accepted episodes of one record, after the connectors that precede the first unfitted one.

        Raises: as `connect`.
        """
        position, _ = self._unfitted()[0]
        batch = self._run(self.connectors[:position], episodes)
        if batch.episodes:
            accumulator.add(batch)

    def fit(self, results: Sequence[Any]) -> ConnectorRunner:
        """Returns a copy with the first unfitted connectors fitted, one per result."""
        connectors = list(self.connectors)
        for result, (i, connector) in zip(results, self._unfitted(), strict=False):
            connectors[i] = connector.fit(result)
        return dataclasses.replace(
            self, configuration=dataclasses.replace(self.configuration, connectors=tuple(connectors))
        )

    def _unfitted(self) -> list[tuple[int, FittedConnector]]:
        return [(i, c) for i, c in enumerate(self.connectors) if isinstance(c, FittedConnector) and not c.fitted]


def _check_samples(configuration: Configuration, source: Source) -> None:
    """Shows the first episodes of a dataset to the connectors that compare them; raises UsageError if one refuses."""
    for i, connector in enumerate(configuration.connectors):
        if not getattr(connector, "needs_sample", False):
            continue
        before = configuration.connectors[:i]
        if any(isinstance(c, FittedConnector) and not c.fitted for c in before):
            return
        needed = any(getattr(c, "reads_images", True) for c in before)
        images = [] if needed else [path for path, field in source.schema.steps.items() if field.holds_images]
        episodes: list[Episode] = []
        for episode in sample_episodes(source, images):
            with contextlib.suppress(Exception):  # the job says what is wrong with it
                episodes += run(before, Batch((episode,), fields=configuration.fields)).episodes
        if episodes := [episode for episode in episodes if len(episode)]:
            cast(Any, connector).check_sample(episodes, configuration.fields)


def difference(columns: Mapping[str, Column], fields: Mapping[str, Field], where: str) -> str | None:
    """The difference between columns and the fields found in the dry run on zeros; None if there is none.

    Args:
      where: the episode, for the message.

    Returns:
      The end of a sentence that begins with a connector's name.
    """
    what = None
    for path in sorted(columns.keys() ^ fields.keys()):
        what = f"returned {path} for {where}, but not" if path in columns else f"did not return {path} for {where}, but"
    for path, column in () if what else columns.items():
        if isinstance(column, EncodedImages):
            continue  # checked when it was read
        field = fields[path]
        if None in field.shape and column.dtype == object and column.ndim == 1:
            continue  # one array per step; shapes vary
        shape = column.shape[1:]
        same = len(shape) == len(field.shape) and all(b in (None, a) for a, b in zip(shape, field.shape, strict=True))
        text = field.dtype == "string" and column.dtype.kind in "SU"
        if not same or not (text or column.dtype == field.numpy_dtype):
            what = f"returned {path} as {column.dtype} {shape} for {where}, but as {field.dtype} {field.shape}"
            break
    return what and f"{what} in the dry run on zeros. Every episode must have the same fields, dtypes, and shapes."
