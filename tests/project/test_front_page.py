"""The README and its pictures: their size, and that the generated parts are up to date."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from checkout import ROOT
from doc_scripts import script

from rlds_beam.cli import main as cli

DOCS = ROOT / "docs"
README = ROOT / "README.md"
FIGURES = json.loads((DOCS / "figures.json").read_text())


def test_the_pictures_are_what_the_script_draws() -> None:
    drawn = script("charts").pictures()
    assert len(drawn) == 6
    for path, content in drawn.items():
        assert path.read_text() == content, f"{path.name}: run `make docs`, or python docs/charts.py"


@pytest.mark.parametrize("path", sorted((DOCS / "pictures").glob("*-light.svg")), ids=lambda path: path.name)
def test_a_picture_has_a_title_and_a_description_and_its_versions_differ_only_in_colors(path: Path) -> None:
    light, dark = path.read_text(), path.with_name(path.name.replace("-light", "-dark")).read_text()
    tree = ElementTree.fromstring(light)
    for name in ("title", "desc"):
        assert (tree.findtext(f"{{http://www.w3.org/2000/svg}}{name}") or "").strip()
    assert re.sub('<rect [^/]* fill="#ffffff"/>\n|#[0-9a-f]{6}', "", light) == re.sub("#[0-9a-f]{6}", "", dark)


def test_the_page_of_the_figures_is_up_to_date() -> None:
    tables = script("figure_tables")
    assert tables.PAGE.read_text() == tables.page(), "run `make docs`, or python docs/figure_tables.py"
    assert tables.page().count("| `") >= sum(map(len, FIGURES.values()))


def test_each_figure_names_a_benchmark_that_exists() -> None:
    sections = re.search(r"^SECTIONS.*?^}", (ROOT / "benchmarks" / "run.py").read_text(), re.DOTALL | re.MULTILINE)
    assert sections
    for name, _, section in (command.partition(" ") for command in FIGURES):
        assert (ROOT / "benchmarks" / name).is_file()
        assert not section or f'"{section}":' in sections[0], section


def test_each_figure_is_one_claim() -> None:
    for command, rows in FIGURES.items():
        assert len({row["name"] for row in rows}) == len(rows), command
        for row in rows:
            assert isinstance(row["value"], float | int)
            assert ";" not in row["what"] + row.get("against", ""), row


def test_a_bar_of_the_chart_has_room_for_its_label() -> None:
    charts = script("charts")
    for row in charts.measured():
        assert charts.svg.text_width(f"{row['what']} vs. {row['peer']}", 15, bold=True) < charts.WIDTH, row["name"]


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 120


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


def test_the_table_of_formats_is_up_to_date() -> None:
    assert README.read_text() == script("format_table").front_page(), "run `make docs`, or python docs/format_table.py"
