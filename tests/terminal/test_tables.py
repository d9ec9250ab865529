"""Tables in a terminal: aligned columns, any text, any width."""

from __future__ import annotations

import io

import pytest

from rlds_beam.terminal.tables import apply_style, cut, display_width, table_lines

HEADER = ("name", "size", "detail")
ROWS = [("a", "1", "short"), ("观察/图像", "1,200.5 kB", "a longer text that explains it"), ("e\u0301te", "nan", "")]


def test_columns_are_aligned_and_numbers_are_on_the_right() -> None:
    assert table_lines(HEADER, ROWS) == [
        "name             size  detail",
        "a                   1  short",
        "观察/图像  1,200.5 kB  a longer text that explains it",
        "e\u0301te               nan",
    ]


def test_control_characters_are_escaped() -> None:
    lines = table_lines(("field",), [("a\x1b[2Jb",), ("line\nbreak",), ("\u202eright to left",)])
    assert lines == ["field", r"a\x1b[2Jb", "line break", r"\u202eright to left"]


def test_a_narrow_terminal() -> None:
    """First texts are shortened, then columns leave, then lines are cut."""
    assert table_lines(HEADER, ROWS, 45)[2] == "观察/图像  1,200.5 kB  a longer text that ex…"
    assert table_lines(HEADER, ROWS, 30, drop=("size",))[2] == "观察/图像  a longer text that…"
    assert table_lines(HEADER, ROWS, 20)[2] == "观察/图像  1,200.5 …"
    for width in range(1, 80):
        assert all(display_width(line) <= width for line in table_lines(HEADER, ROWS, width, drop=("size",)))


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("图像图", 4, "图…"), ("abc", 0, ""), ("", 0, "")],
)
def test_cut(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown


def test_colors_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert apply_style("x", "red", io.StringIO()) == "x"
    assert apply_style("x", "red", Terminal()) == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("TERM", "dumb")
    assert apply_style("x", "red", Terminal()) == "x"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert apply_style("x", "red", Terminal()) == "x"
