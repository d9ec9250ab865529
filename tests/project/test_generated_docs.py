"""Generated pages, tables, pictures, and types are what their scripts write, and the pages are complete."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from checkout import ROOT
from doc_scripts import script

from rlds_beam.checking.rules import POLICIES, RULES
from rlds_beam.checking.signals import SIGNALS
from rlds_beam.cli.parsers import JOBS, exit_codes, job_parser
from rlds_beam.connectors import CONNECTORS
from rlds_beam.formats.registry import OUTPUTS, output_group
from rlds_beam.options import flag_name
from rlds_beam.runners.base import DataflowOptions, FlinkOptions

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


def flags_of(options_class: type) -> set[str]:
    fields = [field for field in dataclasses.fields(options_class) if not field.metadata.get("hidden")]
    return {f"`--{flag_name(field.name)}" for field in fields if not field.metadata.get("positional")}


def missing(options_class: type, text: str) -> list[str]:
    return [flag for flag in sorted(flags_of(options_class)) if f"\n- {flag}" not in text]


@pytest.mark.parametrize("command", JOBS)
def test_each_option_and_exit_code_of_a_command_is_on_its_page(command: str) -> None:
    text = (REFERENCE / "commands" / f"{command}.md").read_text()
    elsewhere = flags_of(FlinkOptions) | flags_of(DataflowOptions)
    assert {*missing(job_parser(command, {}).config_class, text)} <= elsewhere
    assert [code for code in exit_codes(command) if f"\n- **{code}**: " not in text] == []
    assert "\n- **3**: " not in text or 3 in exit_codes(command)


def test_each_option_of_a_format_or_runner_is_on_its_page() -> None:
    formats = (REFERENCE / "commands" / "format_options.md").read_text()
    for name in OUTPUTS:
        section = formats.partition(f"\n## `--to={name}`\n")[2].partition("\n## ")[0]
        assert missing(output_group(name).options_class, section) == []
    runners = (REFERENCE / "commands" / "runner_options.md").read_text()
    assert missing(FlinkOptions, runners) + missing(DataflowOptions, runners) == []


def test_no_page_of_a_command_is_left_over() -> None:
    pages = {path for path in script("command_reference").pages() if path.parent.name == "commands"}
    assert {*(REFERENCE / "commands").iterdir()} == pages


@pytest.mark.parametrize(("page", "names"), [("connectors.md", CONNECTORS), ("signals.md", SIGNALS)])
def test_each_connector_and_signal_is_on_its_page(page: str, names: Mapping[str, object]) -> None:
    headings = [line[4:].strip("`") for line in (REFERENCE / page).read_text().splitlines() if line.startswith("### ")]
    assert {*names} <= {*headings} and len(headings) == len({*headings})


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_broken_and_repaired_or_accepted(rule: str) -> None:
    entry = (REFERENCE / "rules.md").read_text().partition(f"### `{rule}`\n")[2].partition("\n### ")[0]
    first, *others = entry.split("```text\n")[1:]
    assert f"{rule}: " in first
    if "repair" in POLICIES[rule]:
        assert f"--repair={rule}" in others[-1] and " 1 repaired, 0 rejected" in others[-1]
    assert others or "**It cannot be repaired.**" in entry or rule == "schema_mismatch"
