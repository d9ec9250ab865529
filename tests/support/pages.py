"""The pages of the docs, and bash to run their blocks with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import readme
from checkout import ROOT
from processes import DEADLINE

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]


def page_name(page: Path) -> str:
    """Its path in the checkout."""
    return str(page.relative_to(ROOT))


def bash(script: str, folder: Path, seconds: float = 2 * DEADLINE) -> str:
    """Runs a script with this Python and its `rlds-beam` first on the PATH; returns what it prints."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash"],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        cwd=folder,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def run_in_order(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[readme.Block, str]]:
    """Runs the blocks of a page that work in this environment, in one shell; returns (block, what it printed)."""
    scratch = folder / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    wanted = [block for block in readme.blocks(page) if block.heading != readme.AGENTS and not block.installs]
    start = folder / "start"
    start.mkdir()
    printed = bash(readme.script(wanted, marks=True), start, seconds=7 * DEADLINE).split(f"{readme.MARK}\n")
    assert list(start.iterdir()) == [], "the page leaves files in the current directory"
    return list(zip(wanted, printed, strict=False))
