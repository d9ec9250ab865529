"""Sections of a report: numbers over all episodes (distributions, texts, signals, rules), and thumbnails."""

from __future__ import annotations

import dataclasses

from rlds_beam.viewing.episode_view import EpisodeView, Mark, Picture


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts between edges: `len(edges) == len(counts) + 1`. `outside` values are NaN or infinite.

    A constant has one bin with equal edges. No bins: no values.
    """

    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    outside: int = 0


@dataclasses.dataclass(frozen=True)
class NumberDistribution:
    """The distribution of one number: an episode's length or return, or one dimension of a field.

    Attributes:
      label: the dimension: `x`, `0`; empty for a scalar.
      count: the number of values.
      mean, std, least, most: None if not finite.
      quantiles: `q01`, `q10`, `q50`, `q90`, `q99` and their values.
      histogram: the values between the smallest and the largest; long tails are in the outermost bins.
    """

    label: str
    count: int
    mean: float | None
    std: float | None
    least: float | None
    most: float | None
    quantiles: tuple[tuple[str, float | None], ...]
    histogram: Histogram


@dataclasses.dataclass(frozen=True)
class FieldDistribution:
    """The distributions of a field's dimensions.

    Attributes:
      path: the field.
      dimensions: one for each dimension that is shown (`shown_dimensions`).
      left_out: the number of dimensions that are not shown.
      constant: the number of dimensions (of all) that are constant.
      error: the relative error of quantiles and bins; 0.0 if they are exact.
    """

    path: str
    dimensions: tuple[NumberDistribution, ...]
    left_out: int = 0
    constant: int = 0
    error: float = 0.0


@dataclasses.dataclass(frozen=True)
class Distributions:
    """The distributions of lengths, returns, and fields of accepted episodes. `left_out` fields are not shown."""

    length: NumberDistribution | None = None
    total: NumberDistribution | None = None
    fields: tuple[FieldDistribution, ...] = ()
    left_out: int = 0


@dataclasses.dataclass(frozen=True)
class TextCount:
    """The number of episodes with a text: an instruction, or a value of a metadata field."""

    text: str
    episodes: int


@dataclasses.dataclass(frozen=True)
class TextTable:
    """The most frequent texts of a field.

    Attributes:
      field: `instruction`, or an episode field.
      values: the most frequent values, most frequent first, then by text.
      distinct: the number of different values; `others` have the episodes of values that are not shown.
      missing: the episodes without one.
    """

    field: str
    values: tuple[TextCount, ...]
    distinct: int
    others: int = 0
    missing: int = 0


@dataclasses.dataclass(frozen=True)
class WorstEpisode:
    """An episode beyond a threshold, or near it.

    Attributes:
      key: the episode's key; it has an `EpisodeView` if it is in `DatasetPart.episodes`.
      value: the signal's value.
      field: the field that it was measured on; empty if none.
      step, stop: where in the episode; None if it is about the whole episode.
    """

    key: str
    value: float
    field: str = ""
    step: int | None = None
    stop: int | None = None


@dataclasses.dataclass(frozen=True)
class SignalSection:
    """A quality signal over all episodes.

    Attributes:
      name, group, summary, unit: the signal, its group (Cameras, Time, Motion, ...), its meaning, its unit.
      threshold: a value beyond it counts; None if the signal has none.
      relative: whether an episode is compared with all others.
      measured, beyond: the episodes that have a value, and those beyond the threshold.
      histogram: the episodes' values.
      worst: the worst episodes, worst first.
      remedy: what to do.
      command: the command that leaves the episodes beyond the threshold out; empty if there is none.
    """

    name: str
    group: str
    summary: str
    unit: str
    threshold: float | None
    relative: bool
    measured: int
    beyond: int
    histogram: Histogram
    worst: tuple[WorstEpisode, ...] = ()
    remedy: str = ""
    command: str = ""


@dataclasses.dataclass(frozen=True)
class RejectedSample:
    """A record that broke a rule; it has an `EpisodeView` with marks if it is in `DatasetPart.episodes`.

    Attributes:
      key: the record's key.
      detail: `is_last: False at step 7, the last one`.
      step: the step that broke the rule; None if the rule is not about one.
    """

    key: str
    detail: str
    step: int | None = None


@dataclasses.dataclass(frozen=True)
class RuleSection:
    """A broken rule.

    Attributes:
      rule, meaning, advice: the rule, what a violation means, what to do.
      accepted, repaired, rejected: the records (or shards), by what was done about them.
      command: the command that repairs or accepts such records; empty if there is none.
      samples: some of the records, those with the smallest keys first.
    """

    rule: str
    meaning: str
    advice: str
    accepted: int
    repaired: int
    rejected: int
    command: str = ""
    samples: tuple[RejectedSample, ...] = ()


Facts = tuple[tuple[str, str], ...]
"""Names and texts, in order."""


FILM_FRAMES = 10
"""The number of frames of a film: viewer.css moves by as many steps."""


@dataclasses.dataclass(frozen=True)
class GridCell:
    """One episode by one camera; it may have an `EpisodeView`.

    Attributes:
      key: the episode's key.
      steps: the number of steps.
      camera: the field of the frames.
      film: `FILM_FRAMES` frames side by side, evenly spaced from the first to the last.
      instruction: the instruction or task; empty if there is none.
      marks: rules broken and signals beyond their thresholds.
    """

    key: str
    steps: int
    camera: str
    film: Picture
    instruction: str = ""
    marks: tuple[Mark, ...] = ()


@dataclasses.dataclass(frozen=True)
class Change:
    """An episode before and after the connectors: the fields that differ, and a camera to go by."""

    before: EpisodeView
    after: EpisodeView
