"""A system that does not say how many cores it has, or lacks priorities, has defaults."""

from __future__ import annotations

import pytest

from rlds_beam import platforms


def test_a_system_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "_THREADS", "/no/such/directory")
    assert platforms.count_cores() >= 1
    with platforms.same_priority():
        pass
