"""Generated pages, tables, and pictures are what their scripts write."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest
from checkout import ROOT


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports work as when a script of docs/ runs: its folder is on the path."""
    monkeypatch.syspath_prepend(ROOT / "docs")


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


REFERENCE = ROOT / "docs" / "reference"

WRITTEN: Mapping[str, Callable[[], Mapping[Path, str]]] = {
    "charts": lambda: script("charts").pictures(),
    "command_reference": lambda: script("command_reference").pages(),
    "connector_reference": lambda: {REFERENCE / "connectors.md": script("connector_reference").page()},
    "diagrams": lambda: script("diagrams").drawn(),
    "figure_tables": lambda: {REFERENCE / "figures.md": script("figure_tables").page()},
    "format_table": lambda: {
        REFERENCE / "formats.md": script("format_table").page(),
        ROOT / "README.md": script("format_table").front_page(),
    },
    "gallery": lambda: script("gallery").pictures(),
    "rule_reference": lambda: {REFERENCE / "rules.md": script("rule_reference").page()},
    "signal_reference": lambda: {REFERENCE / "signals.md": script("signal_reference").page()},
}
"""Script in docs/ -> the content of each file that it writes."""


@pytest.mark.parametrize("name", WRITTEN)
def test_each_file_is_what_its_script_writes(name: str) -> None:
    written = WRITTEN[name]()
    assert written
    stale = [path.name for path, text in written.items() if not path.exists() or path.read_text() != text]
    assert stale == [], f"run `make docs`, or python docs/{name}.py"
