"""The repair command that a job prints after rejecting records runs unchanged."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from rlds_beam.cli.main import main
from rlds_beam.pipelines.convert import ConvertConfig
from rlds_beam.processing.report import Report
from rlds_beam.terminal.outcome import format_flags, repair_lines
from rlds_beam.testing import make_episode, write_dataset


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """One episode never ends, one lacks a first step, one has a NaN; the directory name has a space."""
    breaks = [(), ("missing_is_last",), (), ("missing_is_first",), ("non_finite",)]
    episodes = [make_episode(5, seed=i, breaks=rules) for i, rules in enumerate(breaks)]
    return write_dataset(tmp_path / "my data", episodes, name="broken")


def printed_command(capsys: pytest.CaptureFixture[str]) -> list[str]:
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("repair "))
    name, *arguments = shlex.split(line.removeprefix("repair"))
    assert name == "rlds-beam"
    return arguments


@pytest.mark.parametrize("options", [(), ("--items=sequences", "--sequence_length=3", "--max_rejected=1")])
def test_the_command_that_convert_prints_repairs(options, broken, tmp_path, capsys) -> None:
    assert main(["convert", str(broken), str(tmp_path / "out"), *options, "--workers=1"]) == 3
    command = printed_command(capsys)
    assert "--workers=1" in command and set(options) <= set(command)
    assert main(command) == (0 if options else 3)  # the NaN stays
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["repaired"], report["rejected"]) == (2, 1)
    assert "\nrepair " not in capsys.readouterr().out


def test_the_command_that_validate_prints_repairs(broken, capsys) -> None:
    assert main(["check", "--rules", str(broken), "--accept=non_finite"]) == 3
    assert main(printed_command(capsys)) == 0


def test_no_command_is_printed_if_nothing_can_be_repaired(tmp_path, capsys) -> None:
    dataset = write_dataset(tmp_path, [make_episode(5, seed=i, breaks=["non_finite"]) for i in range(2)])
    main(["check", "--rules", str(dataset)])
    assert "repair" not in capsys.readouterr().out


def test_a_function_without_a_name_is_in_no_command() -> None:
    config = ConvertConfig.create("a", "b", policy_info_fn=lambda current, following: current["reward"])
    assert format_flags(config) is None
    assert repair_lines("convert", config, Report()) == []
