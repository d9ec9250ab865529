"""The language check of `make lint` finds its patterns and nothing else."""

from __future__ import annotations

import runpy
from typing import Any

import pytest
from checkout import ROOT

SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "tools" / "english.py"))

SOURCE = '''
class Plan:
    """Of the files that a job writes."""

    # A cache of its own.  # english: quoted
    seed: int = 0
    """seed: of the random values"""

    def name(self):
        return f"{self.seed} behaviour"  # held against the schema
'''


def found(source: str) -> list[str]:
    return [phrase for text in SCRIPT["python_texts"]("plan.py", source) for phrase, _ in SCRIPT["problems"](text)]


def test_docstrings_comments_and_strings_are_read() -> None:
    assert found(SOURCE) == ["a docstring that begins with Of", "behaviour", "held against"]


@pytest.mark.parametrize("line", ["raises", "otherwise", "JOB_STATE_CANCELLED", "`normalise`", "size of", "Exercises"])
def test_what_is_no_phrase(line: str) -> None:
    text = SCRIPT["Text"]("page.md", 1, f"It {line} it.", False)
    assert list(SCRIPT["problems"](text)) == []


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("None where there is none", 1),
        ("zero, where it is empty", 1),
        ("it says where it stopped", 0),
        ("the file where the record is", 0),
        ("np.where(mask, 1, 0)", 0),
    ],
)
def test_where_for_if(line: str, count: int) -> None:
    assert SCRIPT["is_condition"](SCRIPT["Text"]("page.md", 1, line, False)) == count
