"""Generated pages, tables, pictures, and types are what their scripts write, and the pages are complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from checkout import ROOT
from doc_scripts import script

from rlds_beam.checking.rules import POLICIES, RULES

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
    "keyword_types": lambda: {script("keyword_types").STUB: script("keyword_types").stub()},
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


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_broken_and_repaired_or_accepted(rule: str) -> None:
    entry = (REFERENCE / "rules.md").read_text().partition(f"### `{rule}`\n")[2].partition("\n### ")[0]
    first, *others = entry.split("```text\n")[1:]
    assert f"{rule}: " in first
    if "repair" in POLICIES[rule]:
        assert f"--repair={rule}" in others[-1] and " 1 repaired, 0 rejected" in others[-1]
    assert others or "**It cannot be repaired.**" in entry or rule == "schema_mismatch"
