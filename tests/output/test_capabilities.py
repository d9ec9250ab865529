"""The Output interface stays small, and capabilities are optional."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.connectors.base import Batch
from rlds_beam.output import capabilities
from rlds_beam.output.base import Description, Output
from rlds_beam.output.capabilities import CostHint, SeveralFiles, Sidecars
from rlds_beam.reading.plan import WorkRange
from rlds_beam.testing import make_episode

RANGES = [WorkRange("train", i, 2, ()) for i in range(2)]


@dataclasses.dataclass(frozen=True)
class Minimal(Output):
    directory: str = ""

    @classmethod
    def create(cls, source, connectors, directory, options):
        return cls(directory)

    def plan(self):
        return {}

    def describe(self):
        return Description(["x"], {"y": "not needed"})

    def file(self, work):
        return f"{work}.txt"

    def open_range(self, work):
        raise NotImplementedError


class WithSidecars(Minimal, Sidecars):
    sidecars = (".index",)


class WithTwoFiles(SeveralFiles, Minimal):
    def files(self, work):
        return f"{work}.a", f"{work}.b"


def members(output_class: type) -> set[str]:
    return {name for name in {**vars(output_class), **output_class.__annotations__} if not name.startswith("_")}


def test_the_core_has_at_most_eight_members():
    assert len(members(Output)) <= 8, members(Output)


def test_each_capability_adds_few_members():
    for name, kind in inspect.getmembers(capabilities, inspect.isclass):
        if issubclass(kind, Output) and kind is not Output:
            assert len(members(kind)) <= 4, name
            assert kind.__doc__, name


def test_an_output_without_capabilities():
    output = Minimal()
    batches = [Batch((make_episode(3), make_episode(4, seed=1))), Batch((make_episode(5, seed=2),))]
    assert capabilities.predict_items(output, batches) == 3
    assert capabilities.all_files_of(output, RANGES) == [f"{work}.txt" for work in RANGES]
    assert capabilities.ignored_values(output) == IgnoredValues(frozenset({"y"}))
    assert capabilities.cost_of(output) == CostHint()
    assert not capabilities.needs_whole_shards(output)
    assert capabilities.with_ranges(output, RANGES) is output
    assert output.complete([]) == {}


@pytest.mark.parametrize(
    ("output", "endings"), [(WithSidecars(), (".txt", ".txt.index")), (WithTwoFiles(), (".a", ".b"))]
)
def test_all_files_are_in_the_plan(output, endings):
    names = {f"{work}{ending}" for work in RANGES for ending in endings}
    assert set(capabilities.all_files_of(output, RANGES)) == names
    assert output.file(RANGES[0]) == capabilities.files_of(output, RANGES[0])[0]
