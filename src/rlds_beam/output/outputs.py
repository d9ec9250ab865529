"""The outputs by name."""

from __future__ import annotations

from typing import Any

from rlds_beam.connectors.connecting import Connecting
from rlds_beam.errors import UsageError
from rlds_beam.options import options_given
from rlds_beam.output.base import FileOutput
from rlds_beam.reading.base import Source
from rlds_beam.trajectories.options import FrameOptions, ItemOptions
from rlds_beam.user_functions import resolve
from rlds_beam.wording import did_you_mean

TRAJECTORIES = "trajectories"
OUTPUTS = {TRAJECTORIES: "rlds_beam.output.trajectories:TrajectoryOutput"}
"""The outputs by the name that `--to` gives them."""


def create_output(source: Source, connecting: Connecting, directory: str, options: Any) -> FileOutput:
    """The output that `options.to` names, for a dataset; touches nothing.

    Raises:
      UsageError: there is no such output; it cannot hold such episodes; or an option is for another output.
    """
    to: str = options.to
    kind = OUTPUTS.get(to, to)
    if ":" not in kind:
        raise UsageError(
            f"--to={to}: there is no such output{did_you_mean(to, OUTPUTS)}; there are {', '.join(OUTPUTS)}, and "
            "module:Class for one of your own"
        )
    output_class = resolve(kind, "--to")
    if not (isinstance(output_class, type) and issubclass(output_class, FileOutput)):
        raise UsageError(f"--to={to}: it is not a class that inherits from rlds_beam.output.base.FileOutput")
    if to != TRAJECTORIES:
        _refuse_trajectory_options(options)
    return output_class.create_connected(source, connecting, directory, options)


def _refuse_trajectory_options(options: Any) -> None:
    if options.keep:
        raise UsageError(f"--keep is for --to={TRAJECTORIES}, not --to={options.to}")
    for name in options_given(options, FrameOptions, ItemOptions):
        raise UsageError(f"--{name} is for --to={TRAJECTORIES}, not --to={options.to}")
