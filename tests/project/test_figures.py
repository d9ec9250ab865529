"""`benchmarks/figures.py`, which keeps measured figures for the page and the charts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from checkout import ROOT


@pytest.fixture(scope="module")
def figures() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import figures

        yield figures
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "figures.json").write_text("{}")
    return tmp_path / "figures.json"


def test_a_run_replaces_what_it_measured_and_keeps_the_rest(figures: ModuleType, path: Path) -> None:
    from measuring import at_least, below

    first = at_least("a: times B", 3, 2, peer="B", runs=(2.4567, 3)), below("memory: times C", 1, 1)
    figures.save("run.py one", first, path)
    figures.save("run.py two", [at_least("a: times B", 7, 2)], path)
    figures.save("run.py one", [at_least("a: times B", 123.4, 2, what="claim", against="B's way")], path)
    found = json.loads(path.read_text())
    assert [row["value"] for rows in found.values() for row in rows] == [123, 1, 7]
    assert found["run.py one"][0]["what"] == "claim"
    assert found["run.py one"][1]["less_is_better"]


def test_a_name_is_the_claim_by_default(figures: ModuleType) -> None:
    from measuring import Figure, at_least

    row = figures.row(at_least("images: ours, workers: times torch", 2.345, 1, runs=(2.1, 2.4, 2)))
    assert (row["what"], row["against"]) == ("images: ours, workers", "torch")
    assert (row["value"], row["range"], row["runs"]) == (2.35, [2, 2.4], 3)
    assert "against" not in figures.row(Figure("seconds", 2.0, unit="s"))


def test_a_figure_that_is_only_printed_is_no_row(figures: ModuleType, path: Path) -> None:
    from measuring import Figure

    figures.save("run.py one", [Figure("a: times B", 3)], path)
    assert json.loads(path.read_text()) == {}


def test_the_file_is_as_a_run_writes_it(figures: ModuleType) -> None:
    content = figures.PATH.read_text()
    assert figures.text(json.loads(content)) == content
