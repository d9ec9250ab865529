"""The help in the terminal: `--help` of all commands, `rlds-beam help`, and completion."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import DEADLINE

from rlds_beam.checking.rules import RULES
from rlds_beam.checking.signals.base import SIGNALS
from rlds_beam.cli.functions import JOBS, find_job
from rlds_beam.cli.main import TOPICS, commands, main
from rlds_beam.connectors import CONNECTORS, MinimumLength
from rlds_beam.formats.registry import FORMATS, OUTPUTS, SOURCES
from rlds_beam.runners.base import DataflowOptions, FlinkOptions

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
    found: list[tuple[str, ...]] = [("--help",), ("help",), *(("help", topic) for topic in TOPICS)]
    for command in JOBS:
        found.append((command, "--help"))
        found += [(command, f"--from={name}", "--help") for name in SOURCES if "from_" in fields(command)]
        found += [(command, f"--to={name}", "--help") for name in OUTPUTS if "to" in fields(command)]
        found += [(command, f"--runner={n}", "--help") for n in ("flink", "dataflow") if "runner" in fields(command)]
    return found


def test_every_help_is_made(show: Show) -> None:
    """The lines of options fit a terminal."""
    for arguments in every_help():
        lines = show(*arguments).splitlines()
        assert [line for line in lines if len(line) > 80 and line.startswith("  -")] == [], arguments


@pytest.mark.parametrize("command", [name for name in JOBS if "runner" in fields(name)])
def test_options_of_a_runner_are_shown_with_it_only(show: Show, command: str) -> None:
    def flags(*arguments: str) -> set[str]:
        return set(re.findall(r"^  --(\w+)", show(command, *arguments, "--help"), re.MULTILINE))

    flink = {field.name for field in dataclasses.fields(FlinkOptions)}
    dataflow = {field.name for field in dataclasses.fields(DataflowOptions)}
    plain = flags()
    assert not plain & (flink | dataflow)
    assert flags("--runner=flink") == plain | flink
    assert flags("--runner=dataflow") == plain | dataflow


def test_the_tables_name_everything(show: Show) -> None:
    assert all(topic in show("help") for topic in TOPICS)
    assert all(name in show("--help") for name in commands())
    for topic, names in {"rules": RULES, "signals": SIGNALS, "formats": FORMATS, "connectors": CONNECTORS}.items():
        assert all(re.search(rf"^  {name}\b", show("help", topic), re.MULTILINE) for name in names), topic


def test_help_on_a_connector_has_its_arguments(show: Show) -> None:
    text = show("help", "connectors", "MinimumLength")
    assert text.startswith("MinimumLength(transitions: int") and MinimumLength.__doc__.partition("\n")[0] in text


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
