"""The outputs by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlds_beam.connectors.configuration import Configuration
from rlds_beam.connectors.connecting import Connecting
from rlds_beam.errors import UsageError
from rlds_beam.options import options_given
from rlds_beam.output.base import FileOutput
from rlds_beam.output.columns.options import ColumnsOptions
from rlds_beam.output.options import OutputOptions
from rlds_beam.reading.base import Source
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.user_functions import resolve
from rlds_beam.wording import did_you_mean

TRAJECTORIES, COLUMNS = "trajectories", "columns"
OUTPUTS = {
    TRAJECTORIES: "rlds_beam.output.trajectories:TrajectoryOutput",
    COLUMNS: "rlds_beam.output.columns.output:ColumnsOutput",
}
"""The outputs by the name that `--to` gives them."""


def create_output(source: Source, connecting: Connecting, directory: str, options: Any) -> FileOutput:
    """The output that `options.to` names, for a dataset; touches nothing.

    Raises:
      UsageError: there is no such output; it cannot hold such episodes; or an option is for another output.
    """
    output_class = _output_class(options.to)
    _refuse_options_of_others(options)
    return output_class.create_connected(source, connecting, directory, options)


def configuration_for(options: Any) -> Configuration:
    """The connectors that `--connectors` names; where it names none, those that the output has by default.

    Raises:
      UsageError: there is no such output, or no such connectors.
    """
    configuration = Configuration.of(options)
    if options.connectors is not None:
        return configuration
    return dataclasses.replace(configuration, connectors=_output_class(options.to).default_connectors)


def _output_class(to: str) -> type[FileOutput]:
    kind = OUTPUTS.get(to, to)
    if ":" not in kind:
        raise UsageError(
            f"--to={to}: there is no such output{did_you_mean(to, OUTPUTS)}; there are {', '.join(OUTPUTS)}, and "
            "module:Class for one of your own"
        )
    output_class = resolve(kind, "--to")
    if not (isinstance(output_class, type) and issubclass(output_class, FileOutput)):
        raise UsageError(f"--to={to}: it is not a class that inherits from rlds_beam.output.base.FileOutput")
    return output_class


def _refuse_options_of_others(options: Any) -> None:
    """Raises UsageError for an option of an output that is not asked for."""
    given: list[tuple[str, str]] = []
    if options.to != TRAJECTORIES:
        own = ("keep",) if ":" in options.to else ("keep", "images")  # a user's output may read --images
        names = [name for name in options_given(options, OutputOptions) if name in own]
        given += [(TRAJECTORIES, name) for name in (*names, *options_given(options, FrameOptions, ItemOptions))]
    if options.to != COLUMNS:
        given += [(COLUMNS, name) for name in options_given(options, ColumnsOptions)]
    for to, name in given:
        raise UsageError(f"--{name} is for --to={to}, not --to={options.to}")
