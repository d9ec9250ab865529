"""The content of a report as data: everything that the page shows, and nothing else.

    ReportDocument
      datasets     one DatasetPart for each input (two to compare): facts, grid, samples, distributions, texts, signals,
                   rejected records, and the episodes that these sections show
      conversion   what a conversion did, if the input is an output of rlds-beam
      comparison   the differences between two inputs
      made         the command and the version that made the report

All texts may come from a dataset, so they are not trusted. The document has no time stamps, and equal inputs give equal
bytes for any number of workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from rlds_beam.checking.signals.dataset import DatasetFinding
from rlds_beam.viewing.episode_view import EpisodeView
from rlds_beam.viewing.report.sections import (
    Change,
    Distributions,
    Facts,
    GridCell,
    NumberDistribution,
    RuleSection,
    SignalSection,
    TextTable,
)


@dataclasses.dataclass(frozen=True)
class FieldRow:
    """A field of the schema.

    Attributes:
      path: `observation/state`; names between slashes are levels of the tree.
      level: `step` or `episode`.
      dtype: `float32`, `string`.
      shape: `(7,)`, `(?, 3)`; `()` for a scalar.
      stored: the encoding and the TFDS feature, and how the values are represented: `jpeg Image`,
        `Tensor; rotation 6d at 3`.
    """

    path: str
    level: Literal["step", "episode"]
    dtype: str
    shape: str
    stored: str = ""


@dataclasses.dataclass(frozen=True)
class SplitRow:
    """A split according to the metadata. `episodes` is None if unknown; `slice` is empty for a whole split."""

    name: str
    episodes: int | None
    shards: int
    bytes: int
    slice: str = ""


@dataclasses.dataclass(frozen=True)
class DatasetFacts:
    """The main facts about a dataset.

    Attributes:
      name: `bridge_dataset/1.0.0`.
      path: the path as it was given.
      format: `rlds`, `lerobot`; `file_format`: `tfrecord`.
      fps: frames per second; None if unknown.
      fields: the schema.
      splits: the splits.
      records, accepted, repaired, rejected, episodes, steps, bytes: the counts of what was read. `episodes` and `steps`
        are those of accepted records.
      problems: faults of the dataset as a whole: missing shards.
      provenance: where the data come from: source dataset, fingerprints, the version that wrote it.
      card: description, license, citation, location.
    """

    name: str
    path: str
    format: str
    file_format: str
    fps: float | None
    fields: tuple[FieldRow, ...]
    splits: tuple[SplitRow, ...]
    records: int
    accepted: int
    repaired: int
    rejected: int
    episodes: int
    steps: int
    bytes: int
    problems: tuple[str, ...] = ()
    provenance: Facts = ()
    card: Facts = ()


@dataclasses.dataclass(frozen=True)
class DatasetPart:
    """Everything about one dataset.

    Attributes:
      facts: name, schema, splits, counts.
      grid: some episodes as moving thumbnails.
      samples: the keys of episodes chosen at random; their frames and curves are in `episodes`.
      distributions: lengths, returns, and fields.
      texts: instructions and metadata.
      signals: in the order of the groups; empty if none were measured.
      findings: what only the whole dataset shows.
      rules: the broken rules.
      episodes: key -> the frames and curves of an episode, for samples, worst episodes, and rejected records.
      notes: what was left out, and why, for example to keep the report small.
      unmeasured: the signals that could not be measured, and why.
      numbers: key -> the episode's number in the dataset's order, as in `browse`.
    """

    facts: DatasetFacts
    grid: tuple[GridCell, ...] = ()
    samples: tuple[str, ...] = ()
    distributions: Distributions = dataclasses.field(default_factory=Distributions)
    texts: tuple[TextTable, ...] = ()
    signals: tuple[SignalSection, ...] = ()
    findings: tuple[DatasetFinding, ...] = ()
    rules: tuple[RuleSection, ...] = ()
    episodes: Mapping[str, EpisodeView] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()
    numbers: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class DroppedRow:
    """The `records` without output, and the episodes, that a connector dropped."""

    name: str
    records: int
    episodes: int


@dataclasses.dataclass(frozen=True)
class ConnectorEffect:
    """The counts of one connector (`connectors.counts.Connected`)."""

    name: str
    arguments: str
    episodes_in: int
    episodes_out: int
    steps_in: int
    steps_out: int
    dropped: int
    changed: int
    fields: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class UnusedRow:
    """Steps of accepted episodes that are in no item, by reason."""

    reason: str
    meaning: str
    remedy: str
    episodes: int
    steps: int


@dataclasses.dataclass(frozen=True)
class ItemUse:
    """The use of steps by items.

    Attributes:
      items: the number of items; `kind`: what they are called (`pairs`, `rows`, `episodes`).
      predicted: the number predicted before the conversion.
      frames: the frames of all items together; None if unknown (items of different lengths).
      steps: the steps of written episodes.
      repeated: frames per step on average; None if unknown.
      padded: the frames that pad items; None if unknown.
    """

    kind: str
    items: int
    predicted: int
    steps: int
    frames: int | None = None
    repeated: float | None = None
    padded: int | None = None


@dataclasses.dataclass(frozen=True)
class ConversionSection:
    """The counts of a conversion. read = written + rejected + the sum of `dropped`, in records.

    Attributes:
      command: `convert` or `record`; `to`: the output's format.
      source: the input dataset.
      version: the version of rlds-beam that wrote it.
      options: the options of the plan, as text.
      read, written, rejected, repaired: records.
      dropped: by connector.
      connectors: what each connector did, in order.
      items: how items use the steps.
      unused: steps in no item.
      left_out: input fields that are not written, and why.
      examples: episodes before and after all connectors; empty without `--source`.
      note: why there are no examples; empty if there are some.
    """

    command: str
    to: str
    source: str
    version: str
    options: Facts
    read: int
    written: int
    rejected: int
    repaired: int
    dropped: tuple[DroppedRow, ...]
    connectors: tuple[ConnectorEffect, ...]
    items: ItemUse
    unused: tuple[UnusedRow, ...] = ()
    left_out: tuple[str, ...] = ()
    examples: tuple[Change, ...] = ()
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Pair:
    """One number in both datasets. Both histograms have the same edges.

    Attributes:
      field, label: the field and its dimension; `field` is `length` or `return` for an episode's.
      first, second: the two distributions.
    """

    field: str
    label: str
    first: NumberDistribution
    second: NumberDistribution


@dataclasses.dataclass(frozen=True)
class ComparisonSection:
    """The differences between two datasets.

    Attributes:
      first, second: the names of the datasets.
      schema: the path of each field that differs, and its type in both datasets; empty if it is not there.
      pairs: the numbers in both datasets.
      left_out: the numbers that are not shown.
    """

    first: str
    second: str
    schema: tuple[tuple[str, str, str], ...]
    pairs: tuple[Pair, ...]
    left_out: int


@dataclasses.dataclass(frozen=True)
class Made:
    """The origin of the report: the command to make it again, and the version of rlds-beam."""

    command: str
    version: str


@dataclasses.dataclass(frozen=True)
class ReportDocument:
    """A report.

    Attributes:
      title: the names of the datasets.
      datasets: one or two; none if the input is an output that no source reads.
      conversion: what a conversion did; None if the input is not an output of rlds-beam.
      comparison: None for one dataset.
      made: how the report was made.
    """

    title: str
    datasets: tuple[DatasetPart, ...]
    made: Made
    conversion: ConversionSection | None = None
    comparison: ComparisonSection | None = None
