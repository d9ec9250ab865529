"""The help in the terminal: `--help` of all commands, and `rlds-beam help TOPIC`."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable

import pytest

from rlds_beam.checking.rules import ADVICE, RULE_GROUPS, RULES
from rlds_beam.cli.flags import WIDTH
from rlds_beam.cli.main import main
from rlds_beam.cli.parsers import COMMANDS, JOBS
from rlds_beam.cli.topics import SEARCHABLE, TOPICS, list_names
from rlds_beam.connectors import CONNECTORS
from rlds_beam.connectors.catalog import SECTIONS
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
    config = getattr(importlib.import_module(f"rlds_beam.pipelines.{command}"), JOBS[command][0])
    return {field.name for field in dataclasses.fields(config)}


def every_help() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [("--help",), ("help",), ("completion",), *(("help", topic) for topic in TOPICS)]
    for command in JOBS:
        found.append((command, "--help"))
        found += [(command, f"--from={name}", "--help") for name in SOURCES if "from_" in fields(command)]
        found += [(command, f"--to={name}", "--help") for name in OUTPUTS if "to" in fields(command)]
        found += [(command, f"--runner={n}", "--help") for n in ("flink", "dataflow") if "runner" in fields(command)]
    return found


def test_every_line_fits_a_terminal(show: Show) -> None:
    """No flag or word is divided."""
    for arguments in every_help():
        lines = show(*arguments).splitlines()
        assert [line for line in lines if len(line) > WIDTH or re.search(r"\w-$|--$", line)] == [], arguments


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
    assert flink <= set(re.findall(r"^  --(\w+)", show("help", "flink"), re.MULTILINE))
    assert dataflow <= set(re.findall(r"^  --(\w+)", show("help", "dataflow"), re.MULTILINE))


def test_the_topics(show: Show) -> None:
    overview = show("help")
    assert all(f"\n  {name} " in overview for name in [*TOPICS, *COMMANDS])
    rules = show("help", "rules")
    assert all(re.search(rf"\b{rule}\b", rules) for rule in RULES)
    formats = show("help", "formats")
    assert all(f"\n  {name} " in formats for name in FORMATS)
    connectors = show("help", "connectors")
    assert all(re.search(rf"\b{name}\b", connectors) for name in CONNECTORS)
    assert all(len(show("help", topic).splitlines()) <= 50 for topic in TOPICS if topic in SEARCHABLE)
    codes = show("help", "exit-codes")
    assert "\n  130  interrupted" in codes and "\ndoctor:\n  0  no problems found" in codes


def every_name() -> list[tuple[str, str]]:
    groups = [("rules", title) for title in RULE_GROUPS] + [("connectors", title) for title in SECTIONS]
    return groups + [(topic, name) for topic in SEARCHABLE for name in list_names(topic)]


def test_each_name_and_group_is_explained(show: Show) -> None:
    for topic, name in every_name():
        text = show("help", topic, *name.split())
        assert [line for line in text.splitlines() if len(line) > WIDTH] == [], name
        if name in RULE_GROUPS:
            assert all(f"{rule}\n  meaning " in text for rule in RULE_GROUPS[name]), name
        elif topic == "rules" and name in RULES:  # a signal has the name of a rule
            words = " ".join(text.split())
            assert RULES[name] in words and ADVICE[name] in words, name
        elif name not in SECTIONS:
            assert text.startswith(name), name


def test_help_of_a_command_is_its_help(show: Show) -> None:
    assert show("help", "convert") == show("convert", "--help")
    assert show("help", "convert", "--to=lerobot") == show("convert", "--to=lerobot", "--help")
    assert show("help", "completion") == show("completion", "--help")
    assert show("help", "--help") == show("help", "help") == show("help")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["help", "rule"], "there is no command or topic 'rule'; did you mean rules? (rlds-beam help lists them)"),
        (
            ["help", "covert"],
            "there is no command or topic 'covert'; did you mean convert? (rlds-beam help lists them)",
        ),
        (["help", "flink", "rlds"], "unexpected argument 'rlds': rlds-beam help flink takes none"),
        (
            ["help", "lerobt"],
            "there is no command or topic 'lerobt'; did you mean lerobot? (rlds-beam help lists them)",
        ),
        (
            ["help", "rules", "no_finite"],
            "help rules: there is nothing named 'no_finite'; did you mean non_finite? "
            "(rlds-beam help rules lists them)",
        ),
        (["covert"], "unknown command 'covert'; did you mean convert?"),
        (["--foo"], "unrecognized arguments: --foo"),
    ],
)
def test_an_unknown_topic_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", f"rlds-beam: {said}\n")


def test_there_is_help_on_every_name(show: Show) -> None:
    for name in [*TOPICS, *COMMANDS, *(name for topic in SEARCHABLE for name in list_names(topic))]:
        out = show("help", name)
        assert len(out.splitlines()) > 2, name
        assert name not in FORMATS or FORMATS[name].about in " ".join(out.split()), name


def test_help_on_a_format_has_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "zarr"]) == 0
    out = capsys.readouterr().out
    assert "--from=zarr; recognized by meta/episode_ends" in out and "\n  write     --to=zarr\n" in out
    assert "options of --from=zarr:\n  --raw_images" in out and "options of --to=zarr:\n  --compressor" in out
