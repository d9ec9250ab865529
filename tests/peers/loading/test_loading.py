"""The loaders of `benchmarks/run.py loading` deliver the same samples: the same frames, windows, and padding."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from checkout import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from sections import loading

NAMES = [name for name, loader in loading.LOADERS.items() if not loader.tensorflow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import measuring

    data = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        for module in (measuring, loading):
            patch.setattr(module, "DATA", data)
        patch.setattr(loading, "CACHES", data / "caches")
        yield loading.prepare(500)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("sample", ["plain", "policy"])
@pytest.mark.parametrize("name", NAMES)
def test_the_batches_hold_the_recorded_steps(folder, name, sample):
    """The peer itself compares its last batch with the recorded steps, and fails if they differ."""
    if "torchcodec" in loading.LOADERS[name].label and not shutil.which("ffmpeg"):
        pytest.skip("torchcodec needs FFmpeg's libraries")
    run = loading.measure(folder, name, sample, loading.LOADERS[name].workers[0], 0.1)
    assert run is not None and run.rate > 0
    video, encoded_again = "video" in loading.LOADERS[name].data, name == "lance images"
    assert run.content["difference"] <= (5 if video else 2 if encoded_again else 1.5)
