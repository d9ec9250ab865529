"""Text of a dataset never commands the terminal, hides a line, or makes another one."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlds_beam.cli.main import main
from rlds_beam.errors import MissingExtraError, UsageError
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.text import EscapingStream, escape_controls, join_lines, json_text, without_secrets

COMMANDS = "\x1b]52;c;cm0gLXJmIH4=\x07 \x1b[1A\x1b[2K \x9b2J \u202e \u2066 \x7f \r"
"""Sets the clipboard, hides the line above, clears the screen, reverses text."""
NAME = f"na;me $(x) `y` ' \" {COMMANDS}\nFAKE"
"""A name that a shell and a terminal must not obey, with a line break."""
SHELL = "na;me $(x) `y` ' \" &"


def check_characters(text: str) -> None:
    found = {c for c in text if not c.isprintable() and c not in "\n\t"}
    assert not found, (sorted(found), text)


def check_text(*texts: str) -> None:
    """Texts have no control characters but line breaks, and no line of a name's own."""
    for text in texts:
        check_characters(text)
        assert not [line for line in text.split("\n") if line.startswith("FAKE")], text


def test_escapes() -> None:
    assert escape_controls("a\tb\n\x1b[2K\x9b\u202e\x7f\r é") == "a\tb\n\\x1b[2K\\x9b\\u202e\\x7f\\r é"
    assert join_lines(["a", "b\nc\t"]) == "a\nb\\nc\\t"
    content = {COMMANDS: [COMMANDS, "é"]}
    assert json.loads(json_text(content)) == content
    check_text(json_text(content))


def test_errors_are_escaped_wherever_they_are_shown() -> None:
    for kind in (UsageError, MissingExtraError):
        check_text(str(kind(COMMANDS)), "".join(f"{kind(COMMANDS)}"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://user:S3@bucket/a?b: no", "s3://bucket/a?b: no"),
        ("https://user:S3@host:1/x?X-Amz-Signature=S3&b=1#c, http://host/y", "https://host:1/x?... http://host/y"),
        ("--azure_connection_string=S3: unknown; --s3_secret_access_key=S3", None),
        *[
            (text, text)
            for text in ("hf://datasets/a/b@main/c?d", "http://host/a/@b --keep=token", "what? --token is x")
        ],
    ],
)
def test_secrets_in_addresses_and_flags_are_not_shown(text: str, shown: str | None) -> None:
    expected = shown or "--azure_connection_string=... unknown; --s3_secret_access_key=..."
    assert without_secrets(text) == str(UsageError(text)) == expected


def test_a_stream_escapes_all_that_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    stream = EscapingStream(EscapingStream(sys.stdout))  # type: ignore[arg-type]
    print(COMMANDS, file=stream)  # type: ignore[arg-type]
    stream.writelines([COMMANDS, "\n"])
    assert (stream.isatty(), stream.encoding) == (sys.stdout.isatty(), sys.stdout.encoding)
    check_text(capsys.readouterr().out)


# Datasets whose names are hostile


def write_rlds(directory: Path) -> list[str]:
    episodes = [
        make_episode(
            6,
            seed=i,
            observation={"state": 3, NAME: 2},
            breaks=["missing_is_last"] if i == 1 else [],
            columns={"language_instruction": [NAME] * 6, NAME: [b"x"] * 6, f"g{NAME}/a": np.ones((6, 2), np.float32)},
            metadata={NAME: NAME.encode(), f"group/{NAME}": b"y"},
        )
        for i in range(3)
    ]
    path = write_dataset(directory, episodes)
    info = json.loads((path / "dataset_info.json").read_text())
    info |= {"description": NAME, "citation": f"{NAME}\n```\n", "redistributionInfo": {"license": NAME}}
    (path / "dataset_info.json").write_text(json.dumps(info))
    return [str(path)]


RUNS: dict[str, list[str]] = {
    "inspect": [],
    "check": ["--rules"],
    "check --json": ["--rules"],
    "show": [],
    "convert": ["{out}/r", "--to=rlds", "--workers=1"],
    "report": ["--output={out}/report.html", "--workers=1"],
    "stats": [f"--fields={NAME}", "--workers=1"],
}


def test_no_command_prints_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = write_rlds(tmp_path / "data")
    codes = {}
    for name, options in RUNS.items():
        command, *flags = name.split()
        codes[name] = main([command, path, *flags, *(option.format(out=tmp_path) for option in options)])
        out, err = capsys.readouterr()
        check_text(out, err)
        if "--json" in flags:
            json.loads(out)
    assert all(code in (0, 1, 2, 3) for code in codes.values()) and 0 in codes.values(), codes
    for file in (tmp_path / "report.html", *tmp_path.glob("*/README.md")):
        check_characters(file.read_text().replace("\xad", ""))


# Hints can be copied


def words_after(flag: str, text: str) -> Iterator[str]:
    """The values of a flag in a text, as a shell reads them."""
    for found in re.finditer(re.escape(flag), text):
        lexer = shlex.shlex(text[found.end() :], posix=True, punctuation_chars=";&|()`")
        lexer.whitespace_split, lexer.commenters = True, ""
        yield lexer.get_token() or ""


def test_hints_are_quoted_for_a_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {f"g{SHELL}/{i}": [b"x"] * 4 for i in range(4)} | {SHELL: [b"x"] * 4, f"n{SHELL}": np.ones(4, np.float32)}
    path = write_dataset(tmp_path / "d", [make_episode(4, columns=columns)])
    assert main(["inspect", str(path), "--items=frames"]) == 0
    out = capsys.readouterr().out
    assert set(words_after("--keep=", out)) == {SHELL, f"g{SHELL}"}
    assert set(words_after("--policy_info_fields=", out)) == {f"n{SHELL}"}
    for copy in ("a", "b"):
        write_dataset(tmp_path / SHELL, [make_episode(4)], name=copy)
    assert main(["inspect", str(tmp_path / SHELL)]) == 2
    assert set(words_after("rlds-beam inspect ", capsys.readouterr().err)) == {str(tmp_path / SHELL / "a" / "1.0.0")}
    out = tmp_path / SHELL / "out"
    assert main(["convert", str(path), str(out), "--workers=1", "--items=pairs"]) == 0
    assert main(["check", "--rules", str(out)]) == 2
    err = capsys.readouterr().err
    assert set(words_after("rlds-beam show ", err)) == {str(out)}
