"""The page of rules is up to date; its script breaks and repairs each rule."""

from __future__ import annotations

import importlib
import sys

import pytest
from checkout import ROOT

from rlds_beam.checking.rules import POLICIES, RULES

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("rule_reference")
    finally:
        sys.path.remove(str(DOCS))


@pytest.fixture(scope="module")
def page(script):
    return script.page()


def test_the_page_is_up_to_date(script, page):
    assert script.PAGE.read_text() == page, "run `make docs`, or python docs/rule_reference.py"


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_broken_and_repaired_or_accepted(page, rule):
    entry = page.partition(f"### `{rule}`\n")[2].partition("\n### ")[0]
    first, *others = entry.split("```text\n")[1:]
    assert f"{rule}: " in first
    if "repair" in POLICIES[rule]:
        assert f"--repair={rule}" in others[-1] and " 1 repaired, 0 rejected" in others[-1]
    assert others or "**It cannot be repaired.**" in entry or rule == "schema_mismatch"


def test_no_line_of_a_block_is_cut_off(script, page):
    blocks = page.split("```")[1::2]
    assert [line for block in blocks for line in block.splitlines() if len(line) > script.WIDTH] == []
