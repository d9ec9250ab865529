"""Opens the input of a job with the source that `--from` names, and prepares it: the same for jobs, loaders, views."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rlds_beam import naming, storage
from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.dry_run import with_given_meaning
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.options import InputOptions
from rlds_beam.formats.recognition import as_input, datasets_in, recognize
from rlds_beam.formats.registry import MERGED, SOURCES, source_class
from rlds_beam.options import Options
from rlds_beam.processing.report import Report, check_source
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.text import shorten


def open_source(
    input: str | os.PathLike[str] | Sequence[str],
    split: str | None = None,
    features: str | None = None,
    from_: str | None = None,
    options: Options | Mapping[str, Any] | None = None,
) -> Source:
    """Opens a dataset. Reads only metadata, no records.

    Args:
      input: a directory, for example of TFDS (`…/name/version`), or files: a list of paths, or one string of
        comma-separated paths and globs.
      split: TFDS notation: `train`, `train[:10%]`, `train[5:20]`, `train+test`. Slices count
        episodes; empty or out-of-range slices are refused. None and `all` select every split.
      features: the path of a features.json, needed for shard files unless it is in their directory.
      from_: the format: a name from `registry.SOURCES`, or `module:Class` of a `reading.base.Source`. None: it is
        recognized from the files (`formats.recognition`).
      options: the options of that source, or some of them by name (its defaults, if None).

    Raises:
      UsageError: there is nothing at the path, the metadata is unreadable or unsafe, there are no splits, or the split
        is unknown.
    """
    from_ = from_ or recognize(input).format
    given = as_input(input)
    kind = source_class(from_)
    taken = kind.options_class.from_options(options)  # refuses options of other formats
    own: dict[str, Any] = {} if kind.options_class is Options else {"options": taken}
    pinned = storage.pin(given if isinstance(input, (str, os.PathLike)) else input)
    if from_ == MERGED:
        paths = storage.paths_in(pinned)
        own["opener"], datasets = open_source, datasets_in(paths)
        pinned = datasets if len(datasets) > 1 else paths  # `--from=merged` makes a dataset of each file
    try:
        source = kind.open(pinned, split=split, features=features, **own)
    except Exception as error:
        if from_ not in SOURCES or isinstance(error, (RldsBeamError, MemoryError)):
            raise
        detail = shorten(f"{type(error).__name__}: {error}")  # a library's, for the metadata of the dataset
        raise UsageError(f"{given} cannot be read with --from={from_}: {detail}") from error
    if not source.splits:
        raise UsageError(f"{given} has no episodes: it has no splits")
    where = f"--from={from_}: {given}"
    source.schema.check_fields(where)
    for name in str(source.dataset).split("/"):
        naming.check_name(name, f"{where}: the name of the dataset ({source.dataset})")
    for each in source.splits:
        naming.check_name(each.name, f"{where}: a split")
    return source


def open_input(options: InputOptions) -> Source:
    """Opens the input of a job (of several, the first), with the meaning that its options give it."""
    given = as_input(options.input)
    source = open_source(given, options.split, options.features, options.source_format, options.from_options)
    return with_given_meaning(source, options)


@dataclasses.dataclass(frozen=True)
class OpenedInput:
    """The input of a job, before its episodes are read.

    Attributes:
      source: the dataset.
      check: the policy of each rule, with the repairs of the preset: the job's options.
      connecting: the connectors, tried on zeros.
    """

    source: Source
    check: CheckOptions
    connecting: ConnectorRunner

    @functools.cached_property
    def report(self) -> Report:
        """The report on the dataset as a whole; raises UsageError as `check_source`."""
        return check_source(self.source, self.check)

    def ranges(self, shards: int | None = None, *, whole_shards: bool = False) -> Sequence[WorkRange]:
        """The work ranges (`plan_ranges`)."""
        return plan_ranges(self.source, shards, whole_shards=whole_shards)


def prepare_input(
    options: Any, source: Source | None = None, configuration: Configuration | None = None
) -> OpenedInput:
    """Opens the input of a job, and tries its connectors. Reads only metadata.

    Args:
      options: the job's options: what to read, the rules, the connectors, and perhaps a preset.
      source: the dataset, if it is already open.
      configuration: the connectors; by default those of the options.

    Raises:
      UsageError: the input or a connector cannot be used.
    """
    source = open_input(options) if source is None else source
    configuration = Configuration.from_options(options) if configuration is None else configuration
    return OpenedInput(source, options, ConnectorRunner.for_source(configuration, source))
