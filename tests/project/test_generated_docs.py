"""Generated pages, tables, pictures, notebooks, and types are what their scripts write; the notebooks run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import readme
from checkout import ROOT
from doc_scripts import script
from processes import DEADLINE

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


NOTEBOOKS = script("notebooks")
PAGES = NOTEBOOKS.pages()


def test_the_ten_minutes_run_as_a_notebook(tmp_path: Path) -> None:
    """In Jupyter, without the cells that install something or need TensorFlow."""
    pytest.importorskip("nbconvert")
    notebook = json.loads(NOTEBOOKS.notebook(PAGES["ten_minutes"].partition(f"## {readme.AGENTS}")[0]))
    notebook["cells"] = [cell for cell in notebook["cells"] if not cell["source"][0].startswith("%pip")]
    (tmp_path / "ten_minutes.ipynb").write_text(json.dumps(notebook))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "nbconvert", "--to=html", "--execute", "ten_minutes.ipynb"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=3 * DEADLINE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "missing_is_last" in (tmp_path / "ten_minutes.html").read_text()
    (scratch,) = (path for path in tmp_path.iterdir() if (path / "data").is_dir())
    assert (scratch / "columns" / "manifest.json").is_file()
