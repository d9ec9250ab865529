"""Damaged files of every source: the values of the format's own reader, or an error of a line (`support/fuzz.py`)."""

from __future__ import annotations

import collections
import json
import os
from pathlib import Path

import pytest
from cases import cases
from fuzz import SECONDS, fuzz
from fuzzed_datasets import DATASETS

from rlds_beam.formats.registry import SOURCES

MUTATIONS = cases(40)
SEED = os.environ.get("RLDS_BEAM_FUZZ_SEED", "0")
GROUPS = {
    name: [key for key in DATASETS if key.partition("_")[0] == name]
    for name in sorted({key.partition("_")[0] for key in DATASETS})
}


def test_every_source_is_fuzzed() -> None:
    assert {*SOURCES} <= {*DATASETS} | {*GROUPS}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.timeout(20 * SECONDS)
def test_damaged_files_are_read_as_by_their_own_reader_or_refused(tmp_path: Path, group: str) -> None:
    facts = [*fuzz(GROUPS[group], MUTATIONS, SEED, tmp_path)]
    wrong = [one for one in facts if "problem" in one]
    assert not wrong, json.dumps(wrong[:5], indent=1)
    outcomes = collections.Counter(one["outcome"] for one in facts if "outcome" in one)
    if set(outcomes) == {"skipped"}:
        pytest.skip(str(facts[0]["what"]))
    assert outcomes["refused"] + outcomes["rejected"] and outcomes["accepted"], outcomes
    assert sum(outcomes.values()) >= MUTATIONS
