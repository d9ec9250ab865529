"""The command pages are up to date and list every option."""

from __future__ import annotations

import dataclasses
import importlib.util

import pytest
from checkout import ROOT

from rlds_beam.cli.exit_codes import exit_codes
from rlds_beam.cli.parsers import JOBS, job_parser
from rlds_beam.formats.registry import OUTPUTS, output_group
from rlds_beam.options import flag_name
from rlds_beam.runners.options import DataflowOptions, FlinkOptions

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("command_reference", DOCS / "command_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(script):
    return script.pages()


def flags_of(options_class):
    fields = [f for f in dataclasses.fields(options_class) if not f.metadata.get("hidden")]
    return [f"`--{flag_name(f.name)}" for f in fields if not f.metadata.get("positional")]


def test_the_pages_are_up_to_date(pages):
    assert {path for path, text in pages.items() if not path.exists() or path.read_text() != text} == set(), (
        "run `make docs`, or python docs/command_reference.py"
    )
    assert sorted((DOCS / "reference" / "commands").iterdir()) == sorted(
        p for p in pages if p.parent.name == "commands"
    )


@pytest.mark.parametrize("command", JOBS)
def test_each_option_and_exit_code_of_a_command_is_on_its_page(pages, command):
    text = pages[DOCS / "reference" / "commands" / f"{command}.md"]
    config_class = job_parser(command, {}).config_class
    elsewhere = {*flags_of(FlinkOptions), *flags_of(DataflowOptions)}
    assert [flag for flag in flags_of(config_class) if flag not in elsewhere and f"\n- {flag}" not in text] == []
    assert [code for code in exit_codes(command) if f"\n- **{code}**: " not in text] == []
    assert "\n- **3**: " not in text or 3 in exit_codes(command)


def test_each_option_of_a_format_or_runner_is_on_its_page(pages):
    formats = pages[DOCS / "reference" / "commands" / "format_options.md"]
    for name in OUTPUTS:
        section = formats.partition(f"\n## `--to={name}`\n")[2].partition("\n## ")[0]
        assert [flag for flag in flags_of(output_group(name).options_class) if f"\n- {flag}" not in section] == []
    runners = pages[DOCS / "reference" / "commands" / "runner_options.md"]
    assert [flag for flag in flags_of(FlinkOptions) + flags_of(DataflowOptions) if f"\n- {flag}" not in runners] == []


def test_texts_become_markdown(script):
    assert script.marked("see --to=lerobot, in features.json of *_info[0]") == (
        "see `--to=lerobot`, in `features.json` of \\*_info\\[0]"
    )
    assert script.marked("flags after -- are Beam's") == "flags after `--` are Beam's"
    assert script.marked("read a gs://bucket or module:Class") == "read a gs://bucket or `module:Class`"
