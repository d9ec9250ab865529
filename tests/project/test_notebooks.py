"""The notebooks of the tutorials: each has the text and the code of its page, in order, and runs."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
import readme
from checkout import ROOT
from doc_scripts import script
from processes import DEADLINE

NOTEBOOKS = script("notebooks")
PAGES = NOTEBOOKS.pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_notebook_is_its_page_cell_by_cell(name: str) -> None:
    notebook = json.loads(NOTEBOOKS.notebook(PAGES[name]))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    made = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    code = [text for kind, text in made if kind == "code"]
    blocks = [block.code.rstrip("\n") for block in readme.blocks(ROOT / "docs" / "tutorials" / f"{name}.md")]
    assert len(code) == len(blocks)
    for cell, block in zip(code, blocks, strict=True):
        assert block in cell or cell == NOTEBOOKS.SCRATCH
    text = re.sub(r"^```(python|sh)\n.*?^```$", "\n@@\n", PAGES[name], flags=re.DOTALL | re.MULTILINE)
    parts = [part for part in map(NOTEBOOKS.markdown, text.split("@@")) if part]
    assert parts == [cell for kind, cell in made if kind == "markdown"]
    assert len({cell["id"] for cell in notebook["cells"]}) == len(made)


def test_the_ten_minutes_run_as_a_notebook(tmp_path: Path) -> None:
    """In a kernel, without the cells that install something or need TensorFlow."""
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import start_new_kernel

    page = PAGES["ten_minutes"].partition(f"## {readme.AGENTS}")[0]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    manager, client = start_new_kernel(env={**os.environ, "PATH": path, "TMPDIR": str(tmp_path)}, cwd=str(tmp_path))
    try:
        for kind, text in NOTEBOOKS.cells(page):
            if kind == "code" and not text.startswith("%pip"):
                reply = client.execute_interactive(text, timeout=DEADLINE, output_hook=lambda message: None)
                assert reply["content"]["status"] == "ok", (text, reply["content"])
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    (scratch,) = (path for path in tmp_path.iterdir() if (path / "data").is_dir())
    assert (scratch / "columns" / "manifest.json").is_file()
