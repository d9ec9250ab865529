"""How many random cases and pairs the tests try: some, or all with RLDS_BEAM_ALL_CASES (`make test-all`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

ALL = bool(os.environ.get("RLDS_BEAM_ALL_CASES"))
_MIN = 5


def cases(count: int) -> int:
    """Returns how many of `count` cases to try in this run."""
    return count if ALL else max(count // 4, min(count, _MIN))


def pairs(first: Iterable[str], second: Iterable[str]) -> list[tuple[str, str]]:
    """Returns a third of the pairs of two lists of names, or all: each name is in as many pairs as its neighbors."""
    firsts, seconds = list(first), list(second)
    step = 1 if ALL else min(3, len(firsts), len(seconds))
    return [(a, b) for i, a in enumerate(firsts) for j, b in enumerate(seconds) if (i + j) % step == 0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests: dict[int, Any] = {}
    for item in items:
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        if hasattr(test, "_hypothesis_internal_use_settings"):
            tests[id(test)] = test
    for test in tests.values():
        given = test._hypothesis_internal_use_settings
        test._hypothesis_internal_use_settings = settings(given, max_examples=cases(given.max_examples))
