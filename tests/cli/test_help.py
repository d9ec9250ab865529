"""The help in the terminal: `--help` of all commands, and completion."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import DEADLINE

from rlds_beam.cli.functions import JOBS, find_job
from rlds_beam.cli.main import main
from rlds_beam.formats.registry import OUTPUTS, SOURCES

Show = Callable[..., str]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Show:
    """Returns the output of a command, which must succeed and print no errors."""

    def shown(*arguments: str) -> str:
        code = main(arguments)
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    return shown


def fields(command: str) -> set[str]:
    config = find_job(command)[1]
    return {field.name for field in dataclasses.fields(config)}


def every_help() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [("--help",)]
    for command in JOBS:
        found.append((command, "--help"))
        found += [(command, f"--from={name}", "--help") for name in SOURCES if "from_" in fields(command)]
        found += [(command, f"--to={name}", "--help") for name in OUTPUTS if "to" in fields(command)]
    return found


def test_every_help_is_made(show: Show) -> None:
    """The lines of options fit a terminal."""
    for arguments in every_help():
        lines = show(*arguments).splitlines()
        assert [line for line in lines if len(line) > 80 and line.startswith("  -")] == [], arguments


def test_the_help_names_all_commands(show: Show) -> None:
    assert all(name in show("--help") for name in JOBS)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rlds-beam conv", ["convert"]),
        ("rlds-beam convert --overw", ["--overwrite"]),
        ("rlds-beam check --thresh", ["--threshold"]),
    ],
)
def test_argcomplete_completes_commands_and_flags(line: str, expected: list[str], tmp_path: Path) -> None:
    out = tmp_path / "completions"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    environment = os.environ | asked | {"_ARGCOMPLETE_STDOUT_FILENAME": str(out)}
    subprocess.run([sys.executable, "-m", "rlds_beam"], env=environment, check=True, timeout=DEADLINE)
    assert [word.strip() for word in out.read_text().splitlines()] == expected
