"""The output of docs/how_to/own_output.md: the return of each episode, one per line."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import documented_formats
import pytest
from directories import bytes_of
from own_formats import run

import rlds_beam
from rlds_beam.connectors.learner.columns import AddObservationsFromEpisodesToBatch
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.output.base import Output
from rlds_beam.output.shards import EpisodeWriter, ShardInfo
from rlds_beam.reading.base import WorkRange
from rlds_beam.testing import OutputTests, make_episode, read_rejected, write_dataset

HOLD = "OWN_OUTPUT_HOLDS"
"""Environment variable: ranges from this number on never finish."""


class HeldWriter(EpisodeWriter):
    def __init__(self, output: documented_formats.ReturnsOutput, work: WorkRange):
        super().__init__(str(Path(output.directory, output.file(work))), output.line)
        self._work = work

    def finish(self) -> ShardInfo:
        while self._work.index >= int(os.environ.get(HOLD, self._work.of)):
            time.sleep(0.1)
        return super().finish()


class ReturnsOutput(documented_formats.ReturnsOutput):
    def open_range(self, work: WorkRange) -> HeldWriter:
        return HeldWriter(self, work)


# The tests


OWN = "--to=test_own_output:ReturnsOutput"
COLUMNS = (AddObservationsFromEpisodesToBatch(),)
"""Connectors that add columns."""
EPISODES = [make_episode(7, seed=i, breaks=["missing_is_last"] if i == 4 else []) for i in range(20)]


@pytest.fixture
def data(tmp_path):
    return write_dataset(tmp_path / "data", EPISODES, shards=4)


def returns(output: Path) -> list[float]:
    return [json.loads(line)["return"] for path in sorted(output.glob("*.jsonl")) for line in path.open()]


def test_inspect(data):
    code, out, err = run("inspect", data, OWN)
    assert code == 0, err
    assert "--to=test_own_output:ReturnsOutput gives 19 items" in out
    assert "left out: observation (only the reward is read)" in out


def test_convert(data, tmp_path):
    code, out, err = run("convert", data, tmp_path / "out", OWN, "--workers=2", "--shards=5", "--json")
    assert (code, err.count("\n")) == (3, 1), err
    report = json.loads(out)
    assert report["records"] == report["items_written"] + report["rejected"] == 20
    expected = [float(e.steps["reward"].sum()) for i, e in enumerate(EPISODES) if i != 4]
    assert returns(tmp_path / "out") == pytest.approx(expected)
    assert json.loads((tmp_path / "out" / "episodes.json").read_text()) == {"episodes": 19}
    assert [line["rule"] for line, _ in read_rejected(tmp_path / "out")] == ["missing_is_last"]
    names = set(bytes_of(tmp_path / "out"))
    assert not {name for name in names if name.endswith((".spec", ".tfrecord", "features.json"))} - {
        name for name in names if name.startswith("rejected/")
    }


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--to=test_own_output:HeldWriter"], "not a subclass of rlds_beam.output.Output"),
        ([OWN, "--items=frames"], "--items is an option of --to=trajectories"),
        ([OWN, "--connectors=test_own_output:COLUMNS"], "this output cannot hold columns, but connectors add"),
    ],
)
def test_invalid_outputs_are_rejected(data, tmp_path, flags, said):
    code, out, err = run("convert", data, tmp_path / "out", *flags)
    assert (code, out) == (2, "")
    assert said in err


class TestConformance(OutputTests):
    output = ReturnsOutput

    def read(self, directory: Path) -> list[float]:
        return returns(directory)


class OtherItems(ReturnsOutput):
    def open_range(self, work):
        return EpisodeWriter(str(Path(self.directory, self.file(work))), lambda _: b'{"return": %d}\n' % work.of)


@pytest.mark.parametrize(
    ("output", "test", "said"),
    [
        (OtherItems, "test_any_number_of_ranges_gives_the_same_items", "2 ranges"),
    ],
)
def test_the_conformance_tests_find_mistakes(tmp_path, output, test, said):
    tests = TestConformance()
    tests.output = output
    with pytest.raises((AssertionError, RldsBeamError), match=said):
        getattr(tests, test)(tmp_path)


# Incomplete or wrong outputs of users are an error before any work.


class Empty(Output):
    pass


class SameName(ReturnsOutput):
    def file(self, work):
        return "same.txt"


def test_wrong_outputs_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"it lacks create, describe, file, open_range, plan$"):
        rlds_beam.convert(data, tmp_path / "out", to=Empty)
    with pytest.raises(UsageError, match="two files have the same name"):
        rlds_beam.convert(data, tmp_path / "out", to=SameName, shards=2)
    assert not (tmp_path / "out").exists()
