"""Text of a dataset never commands the terminal, hides a line, or makes another one."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hdf5_robots
import numpy as np
import pytest
import ros2_bags
from exchanging import export
from lerobot_data import robot_episode
from npz_data import exorl_episode
from processes import DEADLINE, run, start

from rlds_beam.cli.main import main
from rlds_beam.errors import MissingExtraError, UsageError
from rlds_beam.processing.report import left_out_lines
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


def write_hdf5(directory: Path) -> list[str]:
    h5py = pytest.importorskip("h5py")
    hdf5_robots.aloha(directory, [5])
    with h5py.File(directory / "episode_0.hdf5", "r+") as file:
        file[f"observations/{NAME}"] = np.ones((5, 2), np.float32)
    return [str(directory)]


def write_lerobot(directory: Path) -> list[str]:
    data = write_dataset(directory.parent / "source", [robot_episode(4 + i) for i in range(3)])
    export(data, directory, "lerobot", fps=10)
    (directory / "meta" / "rlds_beam.json").unlink()
    (directory / "plan.json").unlink()
    info = json.loads((directory / "meta" / "info.json").read_text())
    info["robot_type"], info["features"][NAME] = NAME, {"dtype": NAME, "shape": [1], "names": None}
    (directory / "meta" / "info.json").write_text(json.dumps(info))
    return [str(directory)]


def write_mcap(directory: Path) -> list[str]:
    pytest.importorskip("mcap_ros2")
    sent = [*ros2_bags.robot(4), ros2_bags.text(ros2_bags.T0, NAME, f"/{NAME}")]
    ros2_bags.write_mcap(directory / "x.mcap", sent)
    topic = f"topic: {json.dumps('/' + NAME)}"
    (directory / "topics.yaml").write_text(ros2_bags.MAPPING.replace("topic: /task", topic))
    return [str(directory / "x.mcap"), f"--topics={directory / 'topics.yaml'}"]


def write_named_files(directory: Path) -> list[str]:
    directory.mkdir()
    np.savez(directory / f"a{NAME}.npz", **exorl_episode(5, 1), **{NAME.replace("/", ""): np.ones((6, 2), np.float32)})
    (directory / f"b{NAME}.npz").write_bytes(b"PK no file")
    return [str(directory)]


SOURCES: dict[str, Callable[[Path], list[str]]] = {
    "rlds": write_rlds,
    "hdf5": write_hdf5,
    "lerobot": write_lerobot,
    "mcap": write_mcap,
    "files": write_named_files,
}
RUNS: dict[str, list[str]] = {
    "inspect": [],
    "inspect json": ["--json"],
    "check rules": ["--rules"],
    "stats": [],
    "check": [],
    "check json": ["--json"],
    "show": [],
    "convert": ["{out}/t", "--items=frames", "--dry_run"],
    "convert rlds": ["{out}/r", "--to=rlds"],
    "convert columns": ["{out}/c", "--to=columns"],
    "convert numpy": ["{out}/n", "--to=numpy"],
    "report": ["--output={out}/report.html"],
    "check fail": ["--rules", f"--split={NAME}"],
    "stats fail": [f"--fields={NAME}"],
    "convert fail": ["{out}/f", f"--keep={NAME}"],
}

OF_ALL = ("inspect", "check json", "show", "convert rlds", "check fail")
"""The runs for each source; RLDS has all."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    made: dict[str, list[str]] = {}

    def write(name: str) -> list[str]:
        if name not in made:
            made[name] = SOURCES[name](tmp_path_factory.mktemp(name) / "data")
        return made[name]

    return write


@pytest.mark.parametrize("source", SOURCES)
def test_no_command_prints_control_characters(
    written: Callable[[str], list[str]], source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = {}
    for name, options in RUNS.items() if source == "rlds" else [(name, RUNS[name]) for name in OF_ALL]:
        command, (path, *arguments) = name.split()[0], written(source)
        one = ["--workers=1"] * (command in ("stats", "check", "convert", "report"))
        given = [option.format(out=tmp_path) for option in options]
        codes[name] = main([command, path, *arguments, *one, *given])
        out, err = capsys.readouterr()
        check_text(out, err)
        if "--json" in options:
            json.loads(out)
    assert all(code in (0, 1, 2, 3) for code in codes.values()) and 0 in codes.values(), codes
    for file in (*tmp_path.glob("report.html"), *tmp_path.glob("*/README.md")):
        check_characters(file.read_text().replace("\xad", ""))


def test_a_process_prints_no_control_characters(written: Callable[[str], list[str]]) -> None:
    assert [code for code, _ in _printed(["inspect", *written("rlds")])] == [0]
    assert [code for code, _ in _printed(["inspect", f"/nothing{NAME}"], [NAME], ["inspect", f"--{NAME}=1"])] == [2] * 3


def _printed(*commands: list[str]) -> Iterator[tuple[int, str]]:
    for command in commands:
        code, out, err = run(command)
        check_text(out, err)
        yield code, out + err


def test_an_internal_error_prints_no_control_characters() -> None:
    code = f"""
import sys
from rlds_beam.cli.commands import inspect
from rlds_beam.cli import main as cli
def fail(config):
    raise ValueError({COMMANDS!r})
inspect.main = fail
sys.argv = ["rlds-beam", "inspect", "data"]
sys.exit(cli.main())
"""
    with start([sys.executable, "-c", code]) as process:
        out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1 and "Traceback" in err and "ValueError" in err
    check_text(out, err)


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
    assert set(words_after("rlds-beam show ", err)) == set(words_after("rlds-beam browse ", err)) == {str(out)}


def test_fields_that_share_a_line_are_quoted_together() -> None:
    why = "an episode field; not a trajectory leaf; --keep={} stores it next to the trajectory"
    paths = [f"{SHELL}/{i}" for i in range(4)]
    (line,) = left_out_lines({path: why.format(shlex.quote(path)) for path in paths})
    assert list(words_after("--keep=", line)) == [SHELL]
