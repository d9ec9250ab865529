"""The loaders of `benchmarks/run.py loading` that need TensorFlow, and the bare loop, deliver the recorded steps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

pytest.importorskip("tensorflow_datasets")

sys.path.insert(0, str(ROOT / "benchmarks"))

import measuring
from sections import loading

PEER = ROOT / "benchmarks" / "peers" / "loading_peer.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        for module in (measuring, loading):
            patch.setattr(module, "DATA", data)
        loading.prepare_rlds(data / "loading", 500)
    return data / "loading"


@pytest.mark.parametrize("sample", ["plain", "policy"])
@pytest.mark.parametrize("name", ["bare", "tf.data", "as_data_source"])
def test_the_batches_hold_the_recorded_steps(folder, name, sample):
    """The peer itself compares its last batch with the recorded steps, and fails if they differ."""
    run = subprocess.run(
        [sys.executable, str(PEER), name, sample, str(folder), "--seconds=0.1"],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["steps_per_second"] > 0 and found["difference"] < 1.5
