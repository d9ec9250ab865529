"""Temporary directories of killed processes are removed by the next one; those of living processes stay."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import ROOT
from processes import DEADLINE, kill, run, running, start, stop_when

from rlds_beam.output.scratch import PREFIX
from rlds_beam.testing import make_episode, write_dataset

HOLD = """
import sys
from rlds_beam.output.scratch import ScratchDirectory
with ScratchDirectory() as name:
    open(name + "/file", "w").close()
    print(name, flush=True)
    sys.stdin.read()
"""


def left_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_directories_of_killed_processes_are_removed(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", HOLD]
    (tmp_path / f"{PREFIX}foreign").symlink_to(ROOT)
    with start(command, env=environment, stdin=subprocess.PIPE) as alive:
        kept = Path(alive.stdout.readline().strip())  # type: ignore[union-attr]
        for _ in range(3):
            with start(command, env=environment, stdin=subprocess.PIPE) as process:
                name = Path(process.stdout.readline().strip())  # type: ignore[union-attr]
                kill(process, signal.SIGKILL)
                process.wait(DEADLINE)
            assert name.name.startswith(PREFIX) and (name / "file").exists()
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, timeout=DEADLINE, check=True)
        assert done.returncode == 0 and (kept / "file").exists()
        assert left_in(tmp_path) == sorted([kept.name, f"{PREFIX}foreign"])
        alive.communicate("", timeout=DEADLINE)
    assert left_in(tmp_path) == [f"{PREFIX}foreign"] and (ROOT / "pyproject.toml").exists()


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """With a path that is short enough for the socket of worker processes; otherwise they use another directory."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.mark.parametrize("flags", [["check", "--rules"], ["convert", "--workers=2"]])
def test_the_next_command_removes_what_a_killed_one_left(
    flags: list[str], tmp_path: Path, short_directory: Path
) -> None:
    data = write_dataset(tmp_path, [make_episode(50, seed=i, observation=4) for i in range(4)], shards=2)
    temporary = short_directory
    environment = {**os.environ, "TMPDIR": str(temporary)}
    command, *options = flags
    output = [tmp_path / "out"] if command == "convert" else []
    with running([command, data, *output, *options], env=environment) as process:
        stop_when(lambda: any(name.startswith(PREFIX) for name in left_in(temporary)), process)
        kill(process)
    assert left_in(temporary)
    code, _, err = run(["check", "--rules", data], env=environment)
    assert (code, left_in(temporary)) == (0, []), err


def test_no_other_temporary_directories() -> None:
    """A killed process would leave them forever. The index of a dataset is next to its final place."""
    pattern = re.compile(r"\b(mkdtemp|mkstemp|NamedTemporaryFile|TemporaryDirectory)\b")
    using = {
        path.relative_to(ROOT).as_posix()
        for folder in ("src", "pipelines", "transforms", "runners")
        for path in (ROOT / folder).rglob("*.py")
        if pattern.search(path.read_text())
    }
    assert using == {
        "src/rlds_beam/output/scratch.py",
        "src/rlds_beam/datasets/index_builder.py",
        "src/rlds_beam/cli/commands/browse.py",
    }
