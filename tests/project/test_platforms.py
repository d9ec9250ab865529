"""A system that says little has defaults, and the tests that are listed for other systems exist."""

from __future__ import annotations

import re

from checkout import ROOT


def test_lists_of_tests_name_what_there_is() -> None:
    lists = re.findall(r"addprefix tests/,(.*?)\)", (ROOT / "Makefile").read_text(), re.DOTALL)
    quoted = re.findall(r'^    "([\w/]+(?:\.py)?)",$', (ROOT / "tools" / "pythons.py").read_text(), re.MULTILINE)
    named = [*" ".join(lists).replace("\\\n", " ").split(), *quoted]
    assert len(named) > 50 and [name for name in named if not (ROOT / "tests" / name).exists()] == []
