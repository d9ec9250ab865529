"""The code blocks of the docs run in order, and print what the tutorials show.

`make test-docs` runs these tests; `make test-readme` and `make test-newest` run the README.
"""

import contextlib
import importlib.util
import io
import re

import pytest
import readme
from pages import PAGES, README, bash, page_name, run_in_order

import rlds_beam
from rlds_beam.cli.commands.example import ExampleConfig, example

TUTORIALS = [page for page in PAGES if page.parent.name == "tutorials" and readme.blocks(page)]
ENVIRONMENT = re.compile(r"<!-- environment: ([\w, ]+) -->")
"""The first line of a page that `make test-peers` runs, in these environments of peers."""
PEERS = {"rllib": "ray", "lerobot": "lerobot", "exchange": "d3rlpy"}
"""Environment -> the module that shows that this is it."""
IMPORTS = re.compile(r"^(?:from|import) (d3rlpy|minari|ray)\b", re.MULTILINE)
"""What only some of a page's environments have: their blocks run there."""


def skip_without_environment(page):
    """Skips the page if its first line names environments and this is none of them."""
    if named := ENVIRONMENT.match(page.read_text()):
        modules = [PEERS[name] for name in named[1].split(", ")]
        if not any(importlib.util.find_spec(module) for module in modules):
            pytest.skip(f"needs {' or '.join(modules)}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", TUTORIALS, ids=page_name)
def test_the_blocks_of_a_page_print_what_it_shows(page, tmp_path, monkeypatch):
    skip_without_environment(page)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # LeRobot must find all it needs in the dataset
    shown = [(block, said) for block, said in run_in_order(page, tmp_path, monkeypatch) if block.output]
    assert len(shown) >= 4
    for block, said in shown:
        assert readme.matches(block.output, said), f"{block.code}printed:\n{said}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with what the README's first blocks write: `data/point_mass/1.0.0`, and `pairs`."""
    example(ExampleConfig(str(tmp_path / "data")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as for a Python started there
    rlds_beam.convert("data/point_mass/1.0.0", "pairs")
    return tmp_path


RUN = [page for page in PAGES if page not in (README, *TUTORIALS) and readme.blocks(page)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", RUN, ids=page_name)
def test_the_blocks_of_a_page_run(page, folder):
    skip_without_environment(page)
    for number, block in enumerate(readme.blocks(page)):
        if block.language == "sh":
            bash(readme.script([block]), folder)
            continue
        if not all(importlib.util.find_spec(module) for module in IMPORTS.findall(block.code)):
            continue
        if module := re.match(r"# (\w+\.py)\n", block.code):
            (folder / module[1]).write_text(block.code)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block.code, f"{page.name}, block {number}", "exec"), {"__name__": "__docs__"})
