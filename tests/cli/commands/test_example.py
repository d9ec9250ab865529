"""`rlds-beam example` writes a dataset that TFDS and the other commands read."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

import rlds_beam
from rlds_beam.cli.commands.example import ExampleConfig, example, make_episodes
from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_first_validate_and_convert_succeed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example", str(tmp_path / "data")]) == 0
    dataset = tmp_path / "data" / "point_mass" / "1.0.0"
    assert f"rlds-beam inspect {dataset}" in capsys.readouterr().out
    assert main(["check", "--rules", str(dataset)]) == 0
    assert main(["convert", str(dataset), str(tmp_path / "pairs")]) == 0
    report = json.loads((tmp_path / "pairs" / "report.json").read_text())
    assert (report["records"], report["rejected"]) == (32, 0)
    assert report["items_written"] == report["steps"] - 32 > 300


@pytest.mark.parametrize("options", [{}, {"robot": True}])
def test_the_same_options_give_the_same_files(tmp_path: Path, options: dict[str, bool]) -> None:
    for name, broken in (("a", 0), ("b", 0), ("c", 1)):
        example(ExampleConfig(str(tmp_path / name), broken=broken, episodes=4, **options))
    assert files(tmp_path / "a") == files(tmp_path / "b") != files(tmp_path / "c")


def test_broken_episodes_are_rejected_and_can_be_repaired(tmp_path: Path) -> None:
    dataset = example(ExampleConfig(str(tmp_path), episodes=10, broken=3))
    report = rlds_beam.check(dataset, rules=True).report
    assert (report.records, report.rejected, list(report.rules)) == (10, 3, ["missing_is_last"])
    assert rlds_beam.check(dataset, repair="missing_is_last", rules=True).report.rejected == 0


def test_episodes_follow_rlds() -> None:
    """Some episodes terminate and some are truncated; only the step into a terminal state has discount 0."""
    episodes = list(make_episodes(32))
    terminal = [bool(episode.steps["is_terminal"][-1]) for episode in episodes]
    assert 0 < sum(terminal) < 32
    for episode, ends in zip(episodes, terminal, strict=True):
        steps = episode.steps
        assert 5 <= len(episode) <= 25
        assert np.flatnonzero(steps["is_first"]).tolist() == [0]
        assert np.flatnonzero(steps["is_last"]).tolist() == [len(episode) - 1]
        assert np.flatnonzero(steps["discount"] == 0).tolist() == ([len(episode) - 2] if ends else [])


def test_tfds_reads_it(tmp_path: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    example(ExampleConfig(str(tmp_path), episodes=4))
    dataset = tfds.load("point_mass", data_dir=tmp_path, split="train")
    lengths = [len(list(episode["steps"])) for episode in dataset]
    assert lengths == [len(episode) for episode in make_episodes(4)]


def test_the_next_command_of_the_robot_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["example", "data", "--robot", "--episodes=4", "--broken=1"]) == 0
    first, command = capsys.readouterr().out.splitlines()
    assert first == "wrote     data/planar_arm/1.0.0: 4 episodes in 2 shards"
    assert main(shlex.split(command[10:])[1:]) == 0


def test_an_existing_dataset_is_left_alone(tmp_path: Path) -> None:
    example(ExampleConfig(str(tmp_path)))
    before = files(tmp_path)
    with pytest.raises(UsageError, match="already exists"):
        example(ExampleConfig(str(tmp_path), broken=1))
    assert files(tmp_path) == before
