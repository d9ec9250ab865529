"""The files that conversions write, and their exit codes, equal the recorded ones (`support/golden.py`)."""

from __future__ import annotations

import json
from pathlib import Path

import golden
import pytest

RECORD = json.loads(golden.RECORD.read_text())


@pytest.mark.parametrize("case", golden.CASES)
def test_is_as_recorded(case: str, tmp_path: Path) -> None:
    assert golden.record(case, tmp_path) == RECORD[case]


def test_every_case_is_recorded_and_no_other() -> None:
    assert [*RECORD] == [*golden.CASES]
