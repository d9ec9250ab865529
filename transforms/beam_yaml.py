"""The transforms for Beam YAML: datasets are paths, options are numbers and texts, and outputs have names.

A provider of the type `python` names these functions, and `ReadFromRlds` and `WriteRejected` of `rlds_beam.transforms`,
which need no other form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apache_beam as beam

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.formats.inputs import open_source
from rlds_beam.transforms.checking import ValidateEpisodes
from rlds_beam.transforms.episodes import WriteEpisodes
from rlds_beam.transforms.rows import EpisodesToRows

__all__ = ["episodes_to_rows", "validate_episodes", "write_episodes"]


def validate_episodes(**options: Any) -> beam.PTransform:
    """`ValidateEpisodes` with the options of `rlds-beam validate` for rules: `accepted`, `rejected`, and `report`.

    Raises:
      UsageError: an option is unknown, or its value cannot be used.
    """
    return _NamedOutputs(ValidateEpisodes(CheckOptions.create(**options)))


def episodes_to_rows(source: str, fields: Sequence[str] | None = None) -> EpisodesToRows:
    """`EpisodesToRows` for the dataset at the path `source`."""
    return EpisodesToRows(open_source(source), fields)


def write_episodes(output: str, source: str, to: str, **options: Any) -> beam.PTransform:
    """`WriteEpisodes` for the dataset at the path `source`, with the same options: `report` and `rejected`.

    Raises:
      UsageError: as `WriteEpisodes`.
    """
    return _NamedOutputs(WriteEpisodes(output, open_source(source), to=to, **options))


class _NamedOutputs(beam.PTransform):
    """A transform whose outputs are a dict: Beam YAML numbers the fields of a named tuple."""

    def __init__(self, transform: beam.PTransform):
        super().__init__(transform.label)
        self._transform = transform

    def expand(self, inputs: Any) -> dict[str, beam.PCollection]:
        outputs = inputs | self._transform
        return {name: output for name, output in outputs._asdict().items() if output is not None}
