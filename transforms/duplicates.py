"""Finds duplicate episodes in a dataset."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PBegin

from rlds_beam.checking.duplicates import Duplicates
from rlds_beam.processing.job import Totals
from rlds_beam.processing.stages import find_duplicates
from rlds_beam.reading.base import Source
from rlds_beam.reading.framing import Framing
from rlds_beam.transforms.stages import RunStages


class FindDuplicateEpisodes(beam.PTransform[PBegin, Duplicates]):
    """Finds duplicates: a PCollection of one dict from each duplicate's key to the key of the original.

    Reads the framing of all records, and the payload of records with equal fingerprints. The framing of local files is
    read on construction, in this process; workers read other files. Pass the result to
    `ValidateEpisodes(duplicates=...)`.

    Args:
      source: the dataset, whose (selected) records are compared with each other.
      framing: the framing of the source, if already read.
    """

    def __init__(self, source: Source, framing: Framing | None = None):
        super().__init__()
        self._stages = find_duplicates(source, framing or Framing(source))

    def expand(self, root: beam.Pipeline | PBegin) -> beam.PCollection[Duplicates]:
        result = beam.Map(_result, self._stages[-1].name).with_output_types(Duplicates)
        return root | RunStages(self._stages) | "Duplicates" >> result


def as_side_input(duplicates: beam.PCollection[Duplicates] | None) -> Any:
    """The result of `FindDuplicateEpisodes` as an argument of a ParDo; None means no duplicates."""
    return {} if duplicates is None else beam.pvalue.AsSingleton(duplicates)


def _result(totals: Totals, name: str) -> Duplicates:
    duplicates: Duplicates = totals[name]
    return duplicates
