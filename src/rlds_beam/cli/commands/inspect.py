"""`rlds-beam inspect`: describes a dataset, and the items that a conversion would write."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.connectors.options import ConnectorOptions
from rlds_beam.errors import NeedsMappingError
from rlds_beam.formats.options import InputOptions, OutputOptions
from rlds_beam.formats.registry import LEROBOT, MERGED, RLDS, TRAJECTORIES, output_options
from rlds_beam.options import option, options_given
from rlds_beam.terminal.options import print_json

if TYPE_CHECKING:
    from rlds_beam.jobs.inspect import Survey
    from rlds_beam.reading.base import Source

__all__ = ["InspectConfig", "inspect"]

_SOME_RATE = 10.0  # predictions need a rate, but do not depend on it
_ROBOTS = ("hdf5", "ros2", "zarr")  # formats of recorded robots, whose users train with LeRobot

USAGE = "INPUT..."
EXAMPLES = """
    rlds-beam inspect data/point_mass/1.0.0
    rlds-beam inspect data/point_mass/1.0.0 --items=sequences --sequence_length=16
    rlds-beam inspect data/point_mass/1.0.0 --json
"""


@dataclasses.dataclass(frozen=True)
class InspectConfig(OutputOptions, ConnectorOptions, CheckOptions, InputOptions):
    """Show a dataset's schema, shards, episodes, and bytes, and the items that a conversion would write."""

    _: dataclasses.KW_ONLY
    to: str = option("", "format to predict (default: the one that suits the data)", metavar="FORMAT")
    sample_bytes: int = option(
        64 << 20, "most bytes to read; the predictions for a larger dataset are estimates", least=1
    )
    json: bool = option(False, "print JSON instead of text")


def inspect(config: InspectConfig) -> Survey:
    """Reads the metadata and a sample of the episodes in this process.

    Without an output or options of one, the prediction is for the output that `next` proposes.

    Raises:
      UsageError: the dataset cannot be opened.
    """
    from rlds_beam.formats.inputs import open_input
    from rlds_beam.jobs.inspect import survey

    source = open_input(config)
    return survey(source, _with_output(config, source))


def main(config: InspectConfig) -> int:
    """Runs the command: prints the description and returns the exit code."""
    try:
        survey = inspect(config)
        if config.json:
            print_json(survey.to_json())
        else:
            print(survey)
    except NeedsMappingError as error:
        if config.json:  # a proposal is YAML
            raise
        print(error.propose())
    return 0


def _with_output(config: InspectConfig, source: Source) -> InspectConfig:
    """The config with the output that this data is most often converted to, if none is given."""
    if config.to or options_given(config.to_options, type(config.to_options)):
        return dataclasses.replace(config, to=config.to or TRAJECTORIES)
    kind, rate = config.source_format, {}
    cameras = any(field.holds_images for field in source.schema.steps.values())
    to = TRAJECTORIES
    if kind == LEROBOT:
        to = RLDS
    elif kind in _ROBOTS or (kind in (RLDS, MERGED, "npz") and cameras):
        to, rate = LEROBOT, {} if source.fps else {"fps": _SOME_RATE}
    return dataclasses.replace(config, to=to, to_options=output_options(to)(**rate))
