"""Commands whose current directory holds the test modules, as it would hold a user's modules."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import processes

from rlds_beam.output.commits import RangeCommit

_MODULES = Path(__file__).parents[1]


def options(**environment: str) -> dict[str, Any]:
    """Of `processes.running`."""
    return {
        "cwd": _MODULES,
        "env": {**os.environ, "PYTHONPATH": str(_MODULES / "support"), **environment},
    }


def run(*arguments: object) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    return processes.run(arguments, **options())


def committed_times(output: Path) -> dict[Path, int]:
    """When the files of the ranges that are finished were written, in ns."""
    commits = [
        RangeCommit.from_json(json.loads(path.read_text()), str(path)) for path in output.glob("_commits/*.json")
    ]
    return {output / name: (output / name).stat().st_mtime_ns for commit in commits for name in commit.names}
