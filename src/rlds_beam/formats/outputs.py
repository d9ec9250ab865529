"""Creating the output that `--to` names."""

from __future__ import annotations

import dataclasses
import unicodedata
from typing import Any

from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.errors import UsageError
from rlds_beam.formats.options import OutputOptions
from rlds_beam.formats.own_outputs import create_own_output
from rlds_beam.formats.registry import OUTPUTS, output_class
from rlds_beam.output.base import Output
from rlds_beam.output.capabilities import LearnerColumns, SeveralSplits, StoredNames
from rlds_beam.reading.base import Source
from rlds_beam.text import shortened

_MOST_BYTES = 230
"""File systems take 255 for the name of a file; it has an ending, and more of it while it is written."""


def create_output(source: Source, connecting: ConnectorRunner, directory: str, options: OutputOptions) -> Output:
    """The output that `options.to` names, for a dataset; touches nothing.

    Raises:
      UsageError: there is no such output, or it cannot hold such episodes.
    """
    kind = output_class(options.to)
    if connecting.splits and not issubclass(kind, SeveralSplits):
        raise UsageError(f"--connectors: SplitEpisodes is for --to=rlds, not --to={options.to}: divide RLDS first")
    if not issubclass(kind, LearnerColumns):
        connecting.refuse_columns("--to=columns")
    arguments = source, connecting, directory, options.to_options
    output = kind.create(*arguments) if options.to in OUTPUTS else create_own_output(kind, options.to, *arguments)
    if isinstance(output, StoredNames):
        _check_stored_names(output, options.to)
    return output


def _check_stored_names(output: StoredNames, to: str) -> None:
    """Raises UsageError for a field whose name cannot be that of a file, or of an object in one."""
    taken: dict[str, str] = {}
    for path, name in output.stored_names():
        why = next((why for part in name.split("/") if (why := _unusable(part)) is not None), None)
        if name in taken:
            why = f"it would be stored as {name}, and so would {taken[name]}"
        if why is not None:
            raise UsageError(
                f"--to={to}: the field {shortened(path, 60)!r} cannot be stored: {why}. Rename it with --connectors"
            )
        taken[name] = path


def _unusable(name: str) -> str | None:
    """Why a file or an object of a file cannot have the name; None if it can."""
    if name in ("", ".", ".."):
        return f"{name!r} is no name of a file or an object"
    if any(unicodedata.category(character).startswith("C") for character in name):
        return "its name has a control character"
    size = len(name.encode())
    return f"its name takes {size} bytes, {_MOST_BYTES} at most" if size > _MOST_BYTES else None


def configuration_for(options: Any) -> Configuration:
    """The connectors that `--connectors` names; where it names none, those that the output has by default.

    Raises:
      UsageError: there is no such output, or no such connectors.
    """
    configuration = Configuration.of(options)
    if options.connectors is not None:
        return configuration
    kind = output_class(options.to)
    defaults = kind.default_connectors if issubclass(kind, LearnerColumns) else ()
    return dataclasses.replace(configuration, connectors=(*configuration.connectors, *defaults))
