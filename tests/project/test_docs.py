"""What the pages link to and name exists."""

import re
import shlex
from pathlib import Path

import pytest
from checkout import ROOT
from pages import PAGES, README, page_name

from rlds_beam.cli import main as cli

LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").glob("*/README.md"))]


def anchors(page):
    """The anchors that GitHub gives the headings of a page, if all headings differ."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_hold():
    for page in LINKED:
        for target, _, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]*))?\)", page.read_text()):
            other = (page.parent / target).resolve() if target else page
            assert other.exists(), f"{page_name(page)}: {target}"
            assert not anchor or anchor in anchors(other), f"{page_name(page)}: {target}#{anchor}"


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
