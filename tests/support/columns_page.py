"""The blocks of docs/how_to/columns.md and load.md that import other packages, for tests that have them."""

from __future__ import annotations

import re
from pathlib import Path

from checkout import ROOT

import rlds_beam
from rlds_beam.cli.commands.example import ExampleConfig, example

PAGES = [ROOT / "docs" / "how_to" / name for name in ("columns.md", "load.md")]


def blocks(module: str) -> list[str]:
    """Returns the blocks that import a module."""
    text = "".join(page.read_text() for page in PAGES)
    found = re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [code for code in found if re.search(rf"^(import|from) {re.escape(module)}\b", code, re.MULTILINE)]


def write(folder: Path) -> None:
    """Writes what the page's commands write: `columns`, and `transitions` as Parquet."""
    example(ExampleConfig(str(folder / "data")))
    source = folder / "data" / "point_mass" / "1.0.0"
    connectors = re.search(r"<<END\n(.*?)^END", PAGES[0].read_text(), re.DOTALL | re.MULTILINE)
    assert connectors
    (folder / "transitions.yaml").write_text(connectors[1])
    rlds_beam.convert(source, folder / "columns", to="columns")
    rlds_beam.convert(
        source, folder / "transitions", to="columns", format="parquet", connectors=folder / "transitions.yaml"
    )


def run(code: str) -> None:
    """Runs a block."""
    exec(compile(code, "a block of the page", "exec"), {"__name__": "__docs__"})
