"""Progress in a notebook; tests/runners/test_notebooks.py has one with a real kernel."""

from __future__ import annotations

import io

from rlds_beam.terminal.displays import Fact, PlainLines, Status, bar_html, display_for, in_notebook


def test_a_bar() -> None:
    text = bar_html(Status("convert", (Fact("<b>3 of 8</b> parts"), Fact("1 rejected", 2, "warning")), 0.375))
    assert "&lt;b&gt;3 of 8&lt;/b&gt; parts" in text and 'aria-valuenow="38"' in text and "width:38%" in text
    assert "progressbar" not in bar_html(Status("convert", ()))
    assert 'aria-valuenow="100"' in bar_html(Status("convert", (), 7.0))


def test_a_script_has_no_notebook() -> None:
    assert not in_notebook()
    assert isinstance(display_for("auto", io.StringIO()), PlainLines)
