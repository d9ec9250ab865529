"""Text of a dataset never commands the terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.terminal.options import print_json
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.text import EscapingStream, without_secrets

COMMANDS = "\x1b]52;c;cm0gLXJmIH4=\x07 \x1b[1A\x1b[2K \x9b2J \u202e \u2066 \x7f \r"
"""Sets the clipboard, hides the line above, clears the screen, reverses text."""
NAME = f"na;me $(x) `y` ' \" {COMMANDS}\nFAKE"
"""A name that a shell and a terminal must not obey, with a line break."""


def check_characters(text: str) -> None:
    found = {c for c in text if not c.isprintable() and c not in "\n\t"}
    assert not found, (sorted(found), text)


def test_json_for_a_terminal_is_exact_and_visible(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({COMMANDS: [COMMANDS, "é"]})
    text = capsys.readouterr().out
    assert json.loads(text)[COMMANDS] == [COMMANDS, "é"]
    check_characters(text)


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
    print("a\tb\n\x1b[2K\x9b\u202e\x7f\r é", file=stream)  # type: ignore[arg-type]
    stream.writelines([COMMANDS, "\n"])
    assert (stream.isatty(), stream.encoding) == (sys.stdout.isatty(), sys.stdout.encoding)
    out = capsys.readouterr().out
    assert out.startswith("a\tb\n\\x1b[2K\\x9b\\u202e\\x7f\\r é\n")
    check_characters(out)


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


COMMAND_LINES = {
    "inspect": ("inspect", "{data}"),
    "check": ("check", "{data}"),
    "check with an expectation": ("check", "{data}", "--rules", f"--expect={NAME}"),
    "check as JSON": ("check", "{data}", "--rules", "--json"),
    "show": ("show", "{data}"),
    "convert": ("convert", "{data}", "{out}/r", "--to=rlds"),
    "convert to a hostile directory": ("convert", "{data}", f"{{out}}/{NAME}", "--keep=all"),
    "dry run": ("convert", "{data}", "{out}/d", "--dry_run"),
    "push": ("push", "{data}", "--table=a:uniform", "--dry_run"),
    "report": ("report", "{data}", "--output={out}/report.html"),
    "stats": ("stats", "{data}", f"--fields={NAME}"),
    "compare": ("compare", "{data}", "{data}"),
    "index": ("index", "{data}"),
    "upload": ("upload", "{data}", "hf://datasets/a/b"),
    "example": ("example", f"{{out}}/{NAME}"),
    "no such command": (NAME,),
    "no such option": ("inspect", "{data}", f"--{NAME}=1"),
    "no such dataset": ("inspect", f"{{out}}/no{NAME}"),
}
"""`serve`, `browse`, and `record` print through the same two streams."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    (path,) = write_rlds(tmp_path_factory.mktemp("data"))
    return path


@pytest.mark.parametrize("words", COMMAND_LINES.values(), ids=COMMAND_LINES)
def test_a_hostile_name_sends_no_control_characters(
    words: tuple[str, ...],
    hostile: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RLDS_BEAM_CACHE", str(tmp_path / "cache"))
    assert main([word.format(data=hostile, out=tmp_path) for word in words]) in (0, 1, 2, 3)
    out, err = capsys.readouterr()
    assert out + err
    check_characters(out + err)
    if "--json" in words:
        json.loads(out)
    for file in (*tmp_path.glob("report.html"), *tmp_path.glob("r/README.md")):
        check_characters(file.read_text().replace("\xad", ""))
