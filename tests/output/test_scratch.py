"""Temporary directories of killed processes are removed by the next one; those of living processes stay."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from checkout import ROOT
from processes import DEADLINE, kill, start

from rlds_beam.output.scratch import PREFIX

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
