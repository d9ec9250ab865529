"""Only `platforms` names what one operating system has; ruff refuses modules and functions, this test paths."""

from __future__ import annotations

import ast
import re

import pytest
from checkout import ROOT, parse

from rlds_beam import platforms

ALLOWED = {"platforms.py"}
PATHS = re.compile(r"^/(proc|sys|dev/shm)\b")


def test_no_other_module_names_a_path_of_linux() -> None:
    for folder in ("src/rlds_beam", "pipelines", "runners", "transforms"):
        for file in (ROOT / folder).rglob("*.py"):
            texts = [node.value for node in ast.walk(parse(file)) if isinstance(node, ast.Constant)]
            named = [text for text in texts if isinstance(text, str) and PATHS.match(text)]
            assert not named or file.name in ALLOWED, f"{file}: {named}: use rlds_beam.platforms"


def test_a_system_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "_THREADS", "/no/such/directory")
    assert platforms.count_cores() >= 1
    with platforms.same_priority():
        pass
