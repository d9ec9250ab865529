"""The contract of an output is small: the rest has defaults."""

from __future__ import annotations

import dataclasses

from rlds_beam.checking.verdicts import IgnoredValues
from rlds_beam.connectors.base import Batch
from rlds_beam.output.base import Description, Output
from rlds_beam.reading.base import WorkRange
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


def test_five_methods_make_an_output():
    assert Output.__abstractmethods__ == {"create", "plan", "describe", "file", "open_range"}


def test_the_defaults():
    output = Minimal()
    batches = [Batch((make_episode(3), make_episode(4, seed=1))), Batch((make_episode(5, seed=2),))]
    assert output.predict(batches) == 3
    assert output.files(RANGES[0]) == ("train-00000-of-00002.txt",)
    assert output.ignored_values == IgnoredValues(frozenset({"y"}))
    assert not output.whole_shards
    assert output.with_ranges(RANGES) is output
    assert output.complete([]) == {}
    assert output.notes({}) == [] and not output.stored_names()
