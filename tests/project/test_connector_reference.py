"""The connector page is up to date and describes every connector."""

from __future__ import annotations

import importlib.util
import inspect

import pytest
from checkout import ROOT

from rlds_beam import connectors

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("connector_reference", DOCS / "connector_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(script):
    assert script.PAGE.read_text() == script.page(), "run `make docs`, or python docs/connector_reference.py"


def test_each_connector_is_on_the_page_once(script):
    headings = [line[4:] for line in script.page().splitlines() if line.startswith("### ")]
    assert sorted(headings) == sorted(connectors.CONNECTORS)


@pytest.mark.parametrize("name", connectors.CONNECTORS)
def test_each_connector_has_a_picture_of_its_arrays(script, name):
    assert "```text" in script.entry(name)


def test_an_argument_that_is_not_described_is_an_error(script):
    piece = connectors.AddTimeDimToBatchAndZeroPad
    described = {name: "" for name in inspect.signature(piece).parameters if name != "max_seq_len"}
    with pytest.raises(ValueError, match="or only the docstring, has max_seq_len"):
        list(script.arguments(piece, described))


def test_docstrings_become_markdown(script):
    text = "A line\nthat goes on.\n\n    x   1\n    y   2\n\na      b\n\nThe end."
    expected = [
        "A line",
        "that goes on.",
        "",
        "```text",
        "x   1",
        "y   2",
        "```",
        "",
        "```text",
        "a      b",
        "```",
        "",
        "The end.",
        "",
    ]
    assert list(script.markdown(text)) == expected
    assert script.documented("  a, b: of\n    two lines.\n  c: one: colon") == {
        "a": "of two lines.",
        "b": "of two lines.",
        "c": "one: colon",
    }
