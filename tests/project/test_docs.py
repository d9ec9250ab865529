"""The code blocks of the README and the docs run in order, and their links work."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import readme
from checkout import ROOT
from processes import DEADLINE

import rlds_beam
from rlds_beam.cli import main as cli
from rlds_beam.pipelines.example import ExampleConfig, example

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = [page for page in PAGES if page.parent.name == "tutorials" and readme.blocks(page)]
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").glob("*/README.md"))]
AGENTS = re.compile(r"load_trajectories|tensorflow|tf_agents|rlds_to_reverb|reverb\.serving|reverb=embedded")
"""Matches blocks that need the extra `agents`."""
ENVIRONMENT = re.compile(r"<!-- environment: (\w+) -->")
"""The first line of a page that `make test-peers` runs, in this environment of a peer."""
PEERS = {"rllib": "ray", "lerobot": "lerobot", "exchange": "d3rlpy", "beam_yaml": "jsonschema"}
"""Environment -> the module that shows that this is it."""
HDF5 = re.compile(r"--(from|to)=(minari|d3rlpy|d4rl|hdf5)|^import h5py", re.MULTILINE)
"""Matches blocks that need the extra `hdf5`."""
ROS = re.compile(r"^from rosbags", re.MULTILINE)
"""Matches blocks that need the extra `ros`."""
VIDEO = re.compile("--images=video")
"""Matches blocks that need the extra `lerobot`."""


def name_of(page):
    return str(page.relative_to(ROOT))


def skip_without_environment(page):
    """Skips the page if its first line names an environment and this is another one."""
    if named := ENVIRONMENT.match(page.read_text()):
        pytest.importorskip(PEERS[named[1]])


def bash(script, folder, seconds=2 * DEADLINE):
    """Runs a script with this Python and its `rlds-beam` first on the PATH; returns what it prints."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash"], input=script, capture_output=True, text=True, check=False, timeout=seconds, cwd=folder,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def run_in_order(page, folder, monkeypatch):
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


def test_the_readme_runs_as_printed_on_the_base_package(tmp_path, monkeypatch):
    """Without its `pip install`: `tools/check_readme` runs the whole page in a fresh environment."""
    printed = run_in_order(README, tmp_path, monkeypatch)
    assert [block.language for block, _ in printed] == ["sh", "python", "python", "sh"]
    assert "accepted  32 episodes" in printed[3][1]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
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
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_the_blocks_of_a_page_run(page, folder):
    blocks = readme.blocks(page)
    if AGENTS.search("".join(block.code for block in blocks)):
        pytest.importorskip("tf_agents")
    skip_without_environment(page)
    if HDF5.search("".join(block.code for block in blocks)):
        pytest.importorskip("h5py")
    if ROS.search("".join(block.code for block in blocks)):
        pytest.importorskip("rosbags")
    if VIDEO.search("".join(block.code for block in blocks)):
        pytest.importorskip("av")
    for number, block in enumerate(blocks):
        if block.language == "sh":
            bash(readme.script([block]), folder)
            continue
        if module := re.match(r"# (\w+\.py)\n", block.code):
            (folder / module[1]).write_text(block.code)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block.code, f"{page.name}, block {number}", "exec"), {"__name__": "__docs__"})


def anchors(page):
    """The anchors that GitHub gives the headings of a page, if all headings differ."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_between_pages_hold(page):
    for target, _, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]*))?\)", page.read_text()):
        other = (page.parent / target).resolve() if target else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), f"{target}#{anchor}"


def test_the_tests_that_the_pages_name_exist():
    tests = {path.stem: path for path in (ROOT / "tests").rglob("test_*.py")}
    for page in LINKED:
        for path, name in re.findall(r"`(tests/[\w/]*)?(test_\w+)(?:\.py)?`", page.read_text()):
            assert name in tests and (not path or (ROOT / path / f"{name}.py").exists()), f"{page.name}: {name}"


def test_pages_about_the_code_name_only_files_that_exist():
    pages = [ROOT / "docs/architecture.md", *sorted((ROOT / "docs/decisions").glob("*.md"))]
    names = re.findall(r"`((?:\w+/)*\w+\.py)`", "".join(page.read_text() for page in pages))
    places = [ROOT, ROOT / "src" / "rlds_beam"]
    shared = {"options.py", "output.py", "source.py"}  # each format may have one
    assert [n for n in names if n not in shared and not any((place / n).exists() for place in places)] == []
    assert len(names) > 10


@pytest.mark.parametrize("command", re.findall(r"`rlds-beam (\w+ [^`\n]*)` *(?:[|,])", README.read_text()))
def test_the_commands_for_each_wish_have_valid_flags(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(command.replace("HOST:PORT", "127.0.0.1:1"))
    if arguments[0] == "browse":
        pytest.importorskip("starlette")
    if arguments[0] == "record":
        arguments.append("--dry_run")
        assert cli.main(arguments) == 0
    else:
        assert cli.main(arguments) == 2  # usage is checked first, then the input
        assert "DATA: no such file" in (said := capsys.readouterr().err) or "DATA has no meta/info.json" in said
