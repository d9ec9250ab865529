"""Completion in real shells: each loads its script and completes an unfinished command."""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import DEADLINE, start

from rlds_beam.checking.rules import POLICIES, RULES
from rlds_beam.cli.completion import SCRIPTS, complete
from rlds_beam.cli.main import main
from rlds_beam.cli.parsers import COMMANDS, JOBS, job_parser
from rlds_beam.formats.registry import OUTPUTS

Complete = Callable[[str], list[str]]


def words(*before: str) -> list[str]:
    return [word for word, _ in complete(before)]


def test_commands_and_flags() -> None:
    assert words("") == [*COMMANDS, "--help", "--version"]
    assert words("con") == ["convert"]
    assert words("convert", "in", "--wor") == ["--workers="]
    assert words("validate", "--js") == ["--json"]
    assert words("completion", "") == list(SCRIPTS)
    assert "rules" in words("help", "") and words("help", "exit") == ["exit-codes"]
    assert words("convert", "out", "--", "--job") == []


def test_flags_of_a_format_or_a_runner_follow_its_name() -> None:
    assert words("convert", "--ite") == ["--items="]  # of the default format
    assert words("convert", "--to=lerobot", "--ite") == []
    assert words("convert", "--to=lerobot", "--fp") == ["--fps="]
    assert words("convert", "--flink") == []
    assert "--flink_master=" in words("convert", "--runner=flink", "--flink")
    assert words("convert", "--to=no_such_format", "--ite") == []


def test_names_that_no_type_lists() -> None:
    assert words("convert", "--preset=kuk") == ["--preset=kuka"] and words("validate", "--preset", "kuk") == ["kuka"]
    assert words("convert", "--from=hdf5", "--profile=al") == ["--profile=aloha"]
    assert words("convert", "--from=npz", "--profile=") == [
        f"--profile={name}" for name in ("d4rl", "exorl", "ogbench")
    ]
    assert words("help", "lero") == ["lerobot"] and words("help", "formats", "lero") == ["lerobot"]


@pytest.mark.parametrize("command", JOBS)
def test_every_command_and_each_of_its_flags_is_completed(command: str) -> None:
    assert words(command[:-1]).count(command) == 1
    parser = job_parser(command, {}).parser
    shown = [one for one in parser._actions if one.option_strings and one.help != argparse.SUPPRESS]
    # Completion also offers the options of the default formats.
    assert {word.rstrip("=") for word in words(command, "--")} >= {one.option_strings[-1] for one in shown}
    for action in shown:
        if action.choices:
            flag = action.option_strings[-1]
            assert words(command, f"{flag}=") == [f"{flag}={choice}" for choice in action.choices]


def test_names_after_a_topic() -> None:
    assert words("help", "rules", "missing_is_l") == ["missing_is_last"]
    assert words("help", "connectors", "Resize") == ["ResizeImages"]
    assert words("help", "signals", "frozen") == ["frozen_camera"]
    assert words("help", "flink", "") == words("help", "nothing", "") == []


def test_values() -> None:
    assert words("convert", "--to=") == [f"--to={name}" for name in OUTPUTS]
    assert words("convert", "--to", "ler") == ["lerobot"]
    assert words("convert", "--items=pa") == ["--items=pairs"]
    repairable = [rule for rule in RULES if "repair" in POLICIES[rule]]
    assert words("validate", "--repair=") == [f"--repair={rule}" for rule in repairable]
    assert words("validate", "--repair=missing_is_last,terminal") == ["--repair=missing_is_last,terminal_not_last"]
    assert words("convert", "--shards=") == words("convert", "data/") == words("serve", "--like=") == []


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment with this `rlds-beam`, an empty home directory, and scripts/<shell>."""
    (tmp_path / "scripts").mkdir()
    for shell, script in SCRIPTS.items():
        (tmp_path / "scripts" / shell).write_text(script)
    (tmp_path / "training_data").mkdir()
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }


def needs(shell: str) -> str:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    return path


def answer(command: list[str], folder: Path, environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition("\t")[0] for line in done.stdout.splitlines() if line]


def in_bash(line: str, folder: Path, environment: dict[str, str]) -> list[str]:
    script = (
        "compopt() { :; }; source scripts/bash; COMP_LINE=$1 COMP_POINT=${#1}; _rlds_beam rlds-beam; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return answer([needs("bash"), "-c", script, "bash", line], folder, environment)


def in_fish(line: str, folder: Path, environment: dict[str, str]) -> list[str]:
    script = "source scripts/fish; complete -C $argv[1]"
    return answer([needs("fish"), "-c", script, line], folder, environment)


@pytest.mark.parametrize("shell", [in_bash, in_fish])
def test_a_shell_completes(shell: Callable[..., list[str]], tmp_path: Path, environment: dict[str, str]) -> None:
    def ask(line: str) -> list[str]:
        return [word.rpartition("=")[2] or word for word in shell(line, tmp_path, environment)]

    assert ask("rlds-beam conv") == ["convert"]
    assert ask("rlds-beam convert --work") == ["--workers="]
    assert ask("rlds-beam convert --to=lero") == ["lerobot"]
    assert ask("rlds-beam convert --items ") == ["pairs", "sequences", "episodes", "frames"]
    if shell is in_fish:  # bash completes files by itself: `complete -o default`
        assert ask("rlds-beam convert train") == ["training_data/"]
        assert ask("rlds-beam serve --like=train") == ["training_data/"]
    else:
        assert ask("rlds-beam convert train") == []


@pytest.fixture
def terminal(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[[str, str], str]]:
    """Types keys into a shell in a terminal; returns the text on the screen."""
    stack = contextlib.ExitStack()

    def ask(shell: str, keys: str) -> str:
        options = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}[shell]
        terminal, other_end = pty.openpty()
        stack.callback(os.close, terminal)
        stack.callback(os.close, other_end)
        # The leader of a new session that opens a terminal gets it as its controlling terminal.
        command = ["sh", "-c", 'exec "$0" "$@" <"$TERMINAL" >"$TERMINAL" 2>&1', needs(shell), *options]
        variables = {**environment, "PS1": "ready> ", "TERMINAL": os.ttyname(other_end)}
        stack.enter_context(start(command, cwd=tmp_path, env=variables))
        setup = "autoload -U compinit; compinit -u -D; " if shell == "zsh" else ""
        show(terminal, b"ready> ")
        os.write(terminal, f"PS1='loaded'': '; {setup}source scripts/{shell}\n".encode())
        show(terminal, b"loaded: ")
        os.write(terminal, keys.encode())
        return show(terminal, b"done")

    with stack:
        yield ask


def show(terminal: int, text: bytes) -> str:
    """Reads a terminal until `text` appears."""
    seen = b""
    while text not in seen:
        ready, _, _ = select.select([terminal], [], [], DEADLINE)
        assert ready, seen
        seen += os.read(terminal, 4096)
    return seen.decode()


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("rlds-beam conv\t--work\t2", "convert --workers=2"),
        ("rlds-beam convert --to=lero\tout", "convert --to=lerobot out"),
        ("rlds-beam convert train\t", "convert training_data"),
        ("rlds-beam serve --like=train\t", "serve --like=training_data"),
    ],
)
def test_a_line_is_completed_as_it_is_typed(
    terminal: Callable[[str, str], str], shell: str, typed: str, completed: str
) -> None:
    # The line is shown, not run: echo, from the start of the line (Ctrl-A).
    shown = terminal(shell, f"{typed}\x01echo \x05 do''ne\n")
    assert f"rlds-beam {completed} done" in shown.replace("/ ", " "), shown  # zsh removes the slash again


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    assert capsys.readouterr().out == SCRIPTS["fish"]
    assert main(["completion"]) == 0
    assert all(f"rlds-beam completion {shell}" in capsys.readouterr().out for shell in ["bash"])
    assert main(["completion", "fsh"]) == 2
    assert "did you mean fish?" in capsys.readouterr().err
