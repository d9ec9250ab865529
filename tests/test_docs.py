"""Every code block of the README and the docs runs, in the order in which it stands."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from rlds_beam.checking.rules import RULES
from rlds_beam.pipelines import cli
from rlds_beam.pipelines.convert import ConvertConfig, convert
from rlds_beam.testing import make_episode, write_dataset

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [*PAGES, ROOT / "CHANGELOG.md", *sorted((ROOT / "examples").glob("*/README.md"))]
BLOCK = re.compile(r"```(?P<language>\w+)\n(?P<code>.*?)```", re.DOTALL)


def blocks(page, language):
    return [m["code"] for m in BLOCK.finditer(page.read_text()) if m["language"] == language]


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A folder with the dataset that the pages talk about; two of its episodes never end."""
    episodes = [make_episode(30, seed=i, breaks=["last_not_last"] if i in (3, 7) else []) for i in range(20)]
    write_dataset(tmp_path / "data", episodes, name="toy", shards=2)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_python_blocks_run(page, toy):
    pytest.importorskip("tf_agents")
    if page.name != "README.md":  # the other pages read what the README's example wrote
        convert(ConvertConfig("data/toy/1.0.0", "pairs", repair=("last_not_last",)))
    for number, code in enumerate(blocks(page, "python")):
        if module := re.match(r"# (\w+\.py)\n", code):
            (toy / module[1]).write_text(code)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, f"{page.name}, block {number}", "exec"), {"__name__": "__docs__"})


def test_commands_of_the_readme_run(toy, capsys):
    pytest.importorskip("tf_agents")
    commands = [line for code in blocks(ROOT / "README.md", "sh") for line in code.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(line, comments=True) for line in commands if line.startswith("rlds-beam")]
    assert len(commands) >= 4
    for command in commands:
        arguments = [
            a.replace("/data/bridge_dataset/1.0.0", "data/toy/1.0.0").replace("/data/", "") for a in command[1:]
        ]
        expected = 0 if "--repair=last_not_last" in arguments or arguments[0] == "inspect" else 3
        assert cli.main(arguments) == expected, command


def test_the_readme_names_every_rule_and_exit_code():
    text = (ROOT / "README.md").read_text()
    assert [rule for rule in RULES if f"`{rule}`" not in text] == []


def anchors(page):
    """The anchors that GitHub gives the headings of a page, as long as no two headings are the same."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_hold(page):
    for target, _, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]*))?\)", page.read_text()):
        other = (page.parent / target).resolve() if target else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), f"{target}#{anchor}"


def test_the_architecture_page_names_only_what_is_there():
    names = re.findall(r"`((?:\w+/)*\w+\.py)`", (ROOT / "docs" / "architecture.md").read_text())
    places = [ROOT, ROOT / "src" / "rlds_beam"]
    assert [n for n in names if not any((place / n).exists() for place in places)] == []
    assert len(names) > 10
