"""Create the output that `--to` names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError
from rlds_beam.formats.options import OutputOptions
from rlds_beam.formats.registry import output_class
from rlds_beam.naming import is_file_path
from rlds_beam.output import plans
from rlds_beam.output.base import Output
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.text import shorten


def create_output(source: Source, connecting: ConnectorRunner, directory: str, options: OutputOptions) -> Output:
    """Creates the output that `options.to` names, for a dataset. Writes nothing.

    Raises:
      UsageError: there is no such output, or it cannot hold these episodes.
    """
    kind = output_class(options.to)
    if connecting.splits and not kind.writes_splits:
        raise UsageError(f"--connectors: SplitEpisodes needs --to=rlds, not --to={options.to}: convert to RLDS first")
    if not kind.writes_columns:
        connecting.refuse_columns("--to=columns")
    output = kind.create(connecting.source_after(source), connecting, directory, options.to_options)
    _check_stored_names(output, options.to)
    return output


def check_files(output: Output, ranges: Sequence[WorkRange], to: str) -> None:
    """Checks the names of the files that an output writes for ranges.

    Raises:
      UsageError: a name is not allowed, or a user's output gives two files the same name.
    """
    files = [file for work in ranges for file in output.files(work)]
    plans.check_files([*files, *{work.split for work in ranges}])  # some name files after splits at the end
    if len({*files}) < len(files):
        raise UsageError(f"--to={to}: two files have the same name: `file` must return a name per range")


def _check_stored_names(output: Output, to: str) -> None:
    """Raises UsageError for a field whose name cannot name a file, or an object in a file."""
    taken: dict[str, str] = {}
    for path, name in output.stored_names():
        why = None
        if name in taken:
            why = f"it would be stored as {name}, and so would {taken[name]}"
        elif not is_file_path(name) or not name.isprintable():
            why = "its name cannot name a file or an object"
        if why is not None:
            raise UsageError(
                f"--to={to}: the field {shorten(path, 60)!r} cannot be stored: {why}. Rename it with --connectors"
            )
        taken[name] = path


def configuration_for(options: Any, schema: Schema) -> Configuration:
    """The connectors of `--connectors`, followed by the output's default connectors if these add no columns.

    Args:
      options: the job's config.
      schema: the schema of the input.

    Raises:
      UsageError: there is no such output, or no such connectors, or they cannot process the input's episodes.
    """
    defaults = output_class(options.to).default_connectors
    configuration = Configuration.from_options(options)
    if (
        defaults
        and options.connectors is not None
        and ConnectorRunner.from_configuration(configuration, schema).probed.modules
    ):
        return configuration
    return dataclasses.replace(configuration, connectors=(*configuration.connectors, *defaults))
