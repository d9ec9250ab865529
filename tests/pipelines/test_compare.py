"""`compare`: what changed between two versions, and its exit codes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, write_dataset


def version(folder, seeds, *, bad=(), extra=False, shards=2) -> str:
    """A version of a dataset with an episode for each seed."""
    columns = {"extra": np.zeros(6, np.float32)} if extra else {}
    flags = {seed: "F M M M M M" if seed in bad else 6 for seed in seeds}
    records = [make_episode(flags[seed], seed=seed, columns=columns) for seed in seeds]
    return str(write_dataset(folder, records, name="toy", shards=shards))


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> str:
    return version(tmp_path_factory.mktemp("first"), range(8))


def test_the_same_episodes_in_other_shards_are_equal(first, tmp_path, capsys):
    again = version(tmp_path, [3, 1, 2, 0, 4, 5, 6, 7], shards=3)
    assert main(["compare", first, again]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["episodes  8 equal", "equal"]


def test_episodes_and_fields_that_differ_are_named(first, tmp_path, capsys):
    second = version(tmp_path / "second", [1, 2, 3, 4, 5, 6, 7, 8], bad=(3,))
    assert main(["compare", first, second]) == 3
    printed = capsys.readouterr().out
    assert "episodes  6 equal, 1 added, 1 removed, 1 changed\n" in printed
    assert "removed   toy/1.0.0:train:00000@0\n" in printed
    assert printed.endswith("different (exit code 3)\n")
    assert main(["compare", first, second, "--json"]) == 3
    content = json.loads(capsys.readouterr().out)
    assert (content["differs"], content["equal"], content["changed"][0]) == (True, 6, 1)
    third = version(tmp_path / "third", range(8), extra=True)
    comparison = rlds_beam.compare(first, third)
    assert comparison.fields == [["extra", "", "float32"]]
    assert "field     extra: none -> float32\n" in str(comparison) and comparison.differs
