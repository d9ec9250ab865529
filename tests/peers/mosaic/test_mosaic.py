"""The loader of Mosaic Streaming in `benchmarks/run.py remote` delivers the recorded steps from a bucket."""

from __future__ import annotations

import sys

import pytest
from checkout import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import measuring
from sections import loading, remote


@pytest.mark.timeout(300)
def test_the_batches_hold_the_recorded_steps(tmp_path, monkeypatch):
    """The peer itself compares its last batch with the recorded steps, and fails if they differ."""
    for module in (measuring, loading, remote):
        monkeypatch.setattr(module, "DATA", tmp_path)
    monkeypatch.setattr(remote, "CACHES", tmp_path / "caches")
    folder = tmp_path / "remote-500"
    loading.prepare_rlds(folder, 500)
    measuring.command([sys.executable, remote.PEERS / "loading_remote.py", "mosaic", folder])
    with remote.serving(0) as url:
        run = remote.measure(folder, "remote mosaic", url)
    assert run.rate > 0 and run.content["bytes"] > 0
    assert run.content["difference"] <= 1.5
