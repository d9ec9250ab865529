"""Files, tables and exit codes equal the recorded ones (`support/golden.py`)."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import golden
import pytest
from checkout import ROOT
from golden_data import Datasets

RECORD = json.loads(golden.RECORD.read_text())
CASES = [(kind, case) for kind, (cases, _) in golden.CASES.items() for case in cases]
LOCK = (ROOT / "requirements.lock").read_text()
SAME_PNG = f"\nimagecodecs=={metadata.version('imagecodecs')} " in LOCK
"""Other versions of imagecodecs encode the same pixels differently, so the PNG inputs differ from the record."""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Datasets:
    return Datasets(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize(("kind", "case"), CASES, ids=[f"{kind} {case}" for kind, case in CASES])
def test_is_as_recorded(kind: str, case: Any, datasets: Datasets, tmp_path: Path) -> None:
    _, record = golden.CASES[kind]
    expected, found = RECORD[kind][str(case)], record(case, datasets, tmp_path)
    changed = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    if not SAME_PNG and re.search(r"\b(png|bad_images)", str(case)):
        changed = [name for name in changed if not _tells_of_input_bytes(name)]
    assert not changed, f"{kind} {case}: {', '.join(changed)}"


def _tells_of_input_bytes(name: str) -> bool:
    tells = ("bytes", "card", "ranges", "rules", "sampled", "splits")
    return name.startswith(("report.json", "rejected/")) or name in tells


def test_every_case_is_recorded_and_no_other() -> None:
    cases = {kind: [str(case) for case in cases] for kind, (cases, _) in golden.CASES.items()}
    assert {kind: [*recorded] for kind, recorded in RECORD.items()} == cases
