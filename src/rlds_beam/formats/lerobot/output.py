"""LeRobot datasets as an output: `convert --to=lerobot`."""

from __future__ import annotations

import dataclasses

from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.formats.lerobot.dataset_output import LerobotDatasetOutput
from rlds_beam.formats.lerobot.options import LerobotOptions
from rlds_beam.formats.lerobot.output_v21 import LerobotV21Output
from rlds_beam.reading.base import Source


@dataclasses.dataclass(frozen=True)
class LerobotOutput(LerobotDatasetOutput):
    """A LeRobot v3.0 dataset, or with `--lerobot_version=2.1` a `LerobotV21Output`."""

    @classmethod
    def create(
        cls, source: Source, connectors: ConnectorRunner, directory: str, options: LerobotOptions
    ) -> LerobotDatasetOutput:
        if options.lerobot_version == "2.1":
            return LerobotV21Output.create(source, connectors, directory, options)
        return super().create(source, connectors, directory, options)
