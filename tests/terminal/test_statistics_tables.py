"""The table of `stats`, with a histogram of each dimension."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rlds_beam.connectors.statistics.episode_statistics import BINS, DatasetStatistics, Groups, LeafStatistics
from rlds_beam.terminal.statistics_tables import statistics_lines
from rlds_beam.terminal.tables import table_lines
from rlds_beam.testing import make_episode


def content(**observation: int) -> dict:
    groups = Groups()
    for i in range(9):
        groups.add(make_episode(4 + i, seed=i, observation=observation))
    found: DatasetStatistics = groups.finish()
    return json.loads(json.dumps(found.to_json()))


def test_a_small_table_is_complete() -> None:
    lines = statistics_lines(content(state=2))
    assert lines[0].startswith("episodes  9, ")
    assert lines[1].split() == ["mean", "std", "min", "q01", "q50", "q99", "max", "histogram"]
    names = [line.split()[0] for line in lines[2:]]
    assert names[-2:] == ["episode_length", "episode_return"] and "observation/state[1]" in names
    assert all(len(line.split()[-1]) == BINS for line in lines[2:])


def test_a_large_table_has_the_first_fields_and_the_episodes() -> None:
    lines = statistics_lines(content(a=100, b=3, **{f"field_{i:02}": 2 for i in range(30)}))
    said = next(line for line in lines if line.startswith("shown "))
    assert "; --fields=observation/a prints a whole field" in said and "--output=FILE" in said
    assert len(lines) <= 60 + 5 and any(line.startswith("episode_return") for line in lines)


def test_dimensions_have_names() -> None:
    named = content(state=2)
    named["fields"]["observation/state"]["names"] = ["elbow.pos", "gripper"]
    lines = statistics_lines(named)
    assert any(line.startswith("observation/state[0] elbow.pos ") for line in lines)
    assert any(line.startswith("observation/state[1] gripper ") for line in lines)


def test_chosen_fields_are_printed_with_all_dimensions() -> None:
    found = content(large=100, small=3)
    lines = statistics_lines(found, ["observation/l*", "episode_length"])
    assert len(lines) == 2 + 100 + 1 and lines[-1].startswith("episode_length")
    assert len(statistics_lines(found, ["observation"])) == 2 + 103


@pytest.mark.filterwarnings("ignore:overflow encountered in subtract")
def test_histograms_count_all_finite_values() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5000, 3))
    expected = [np.histogram(values[:, d], BINS, (values[:, d].min(), values[:, d].max()))[0] for d in range(3)]
    np.testing.assert_array_equal(LeafStatistics.from_values(values).to_full_json()["histogram"], expected)
    scalar = LeafStatistics.from_values(np.array([1, 1, 1])).to_full_json()["histogram"]
    assert scalar == [3, *[0] * (BINS - 1)]
    assert LeafStatistics.from_values(np.array([-1.7e308, 1.7e308])).to_full_json()["histogram"] == [1, *[0] * 14, 1]
    assert sum(LeafStatistics.from_values(np.array([0.0, np.inf, np.nan])).to_full_json()["histogram"]) == 0
    assert "histogram" not in LeafStatistics.from_values(np.zeros((2, 65))).to_full_json()


HEADER = ("name", "size", "detail")
ROWS = [("a", "1", "short"), ("观察/图像", "1,200.5 kB", "a longer text that explains it"), ("e\u0301te", "nan", "")]


def test_columns_are_aligned_and_numbers_are_on_the_right() -> None:
    assert table_lines(HEADER, ROWS) == [
        "name             size  detail",
        "a                   1  short",
        "观察/图像  1,200.5 kB  a longer text that explains it",
        "e\u0301te               nan",
    ]
