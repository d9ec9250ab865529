"""What the commands write is what was recorded (`support/golden.py`): files, tables and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import golden
import pytest
from golden_data import Datasets

for _module in ("tensorflow", "reverb", "tf_agents", "array_record.python.array_record_module"):
    pytest.importorskip(_module)

RECORD = json.loads(golden.RECORD.read_text())
CASES = [(kind, case) for kind, (cases, _) in golden.CASES.items() for case in cases]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Datasets:
    return Datasets(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize(("kind", "case"), CASES, ids=[f"{kind} {case}" for kind, case in CASES])
def test_is_as_recorded(kind: str, case: Any, datasets: Datasets, tmp_path: Path) -> None:
    _, record = golden.CASES[kind]
    expected, found = RECORD[kind][str(case)], record(case, datasets, tmp_path)
    changed = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    assert not changed, f"{kind} {case}: {', '.join(changed)}"


def test_every_case_is_recorded_and_no_other() -> None:
    cases = {kind: [str(case) for case in cases] for kind, (cases, _) in golden.CASES.items()}
    assert {kind: [*recorded] for kind, recorded in RECORD.items()} == cases
