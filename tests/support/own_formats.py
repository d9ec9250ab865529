"""Commands whose current directory holds the test modules, as it would hold a user's modules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import processes

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
