"""Incomplete or wrong outputs of users give a one-line error before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlds_beam
from rlds_beam import UsageError
from rlds_beam.output import Description, EpisodeWriter, Output
from rlds_beam.testing import make_episode, write_dataset


class LinesOutput(Output):
    """A line for each episode; tests replace a method by a wrong one."""

    def __init__(self, directory: str):
        self.directory = directory

    @classmethod
    def create(cls, source: Any, connectors: Any, directory: str, options: Any) -> Output:
        return cls(directory)

    def plan(self) -> dict[str, Any]:
        return {"lines": 1}

    def describe(self) -> Description:
        return Description(["key: string"])

    def file(self, work: Any) -> str:
        return f"{work}.txt"

    def open_range(self, work: Any) -> EpisodeWriter:
        return EpisodeWriter(str(Path(self.directory, self.file(work))), lambda episode: b"a line\n")


class Empty(Output):
    pass


def failing(*arguments: Any) -> Any:
    raise ValueError("no such thing")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", [make_episode(5, seed=i) for i in range(6)], name="toy", shards=3)


def test_the_output_of_these_tests_is_valid(dataset: Path, tmp_path: Path) -> None:
    assert rlds_beam.convert(dataset, tmp_path / "out", to=LinesOutput, shards=2).report.items_written == 6


@pytest.mark.parametrize(
    ("method", "wrong", "said"),
    [
        ("create", failing, "its create, plan, or describe raised ValueError: no such thing"),
        ("create", lambda *_: None, "its create, .* raised AttributeError: 'NoneType' object has no attribute 'plan'"),
        ("create", lambda source, connectors, directory: None, "its create, .* raised TypeError"),
        ("plan", failing, "its create, plan, or describe raised ValueError: no such thing"),
        ("plan", lambda _: ["lines"], "its create, .* raised TypeError: 'list' object is not a mapping"),
        ("plan", lambda _: {"lines": {1}}, "its create, .* raised TypeError: Object of type set is not JSON"),
        (
            "describe",
            lambda _: (["key"], {}),
            "its create, .* 'tuple' object has no attribute 'fields'",
        ),
        ("file", failing, "its file names raised ValueError: no such thing"),
        ("file", lambda *_: 3, "2 files have the name 3: "),
        ("file", lambda *_: "same.txt", "2 files have the name 'same.txt': `file` must return a name per range"),
    ],
)
def test_a_wrong_method_is_named(
    method: str, wrong: Any, said: str, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LinesOutput, method, wrong)
    with pytest.raises(UsageError, match=f"--to=.*:LinesOutput: {said}"):
        rlds_beam.convert(dataset, tmp_path / "out", to=LinesOutput, shards=2)
    assert not (tmp_path / "out").exists()


def test_missing_methods_are_named(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it lacks create, describe, file, open_range and plan; "):
        rlds_beam.convert(dataset, tmp_path / "out", to=Empty)
