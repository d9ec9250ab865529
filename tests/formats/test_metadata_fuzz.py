"""Every source with damaged metadata: an exit code and a one-line error; no traceback, hang, or huge allocation.

RLDS_BEAM_METADATA_FUZZ=1000 pytest tests/formats/test_metadata_fuzz.py
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import cases
from checkout import SUPPORT
from fuzzed_datasets import DATASETS

from rlds_beam.formats.registry import SOURCES

CASES = int(os.environ.get("RLDS_BEAM_METADATA_FUZZ", cases(8)))
SEED = os.environ.get("RLDS_BEAM_FUZZ_SEED", "0")
WITHOUT_METADATA = {"envlogger", "merged_common"}
"""Not fuzzed here: Riegeli files (`envlogger`), and sources that `merged` covers."""


def test_every_source_is_fuzzed() -> None:
    known = {name.partition("_")[0] for name in DATASETS}
    assert {*SOURCES} - WITHOUT_METADATA <= known


@pytest.mark.timeout(600 + 20 * CASES * len(DATASETS))
def test_damaged_metadata_is_a_one_line_error(tmp_path: Path) -> None:
    fuzz = SUPPORT / "metadata_fuzz.py"
    command = [sys.executable, str(fuzz), str(tmp_path), ",".join(DATASETS), SEED, str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500 + 20 * CASES * len(DATASETS))
    facts: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (facts[-1:], done.stderr[-3000:])  # -14: the last command hung
    wrong = [(before, after) for before, after in itertools.pairwise(facts) if after.get("problem")]
    assert not wrong, json.dumps(wrong[:5], indent=1)
    codes = [one["code"] for one in facts if "code" in one]
    assert len(codes) > CASES * len(DATASETS) // 2
    assert {0, 2} <= {*codes}
