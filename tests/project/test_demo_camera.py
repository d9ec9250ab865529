"""The demo's arm is recorded with a camera if MuJoCo can draw; without, example episodes are shown instead."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkout import ROOT

import rlds_beam

EXAMPLES = ROOT / "examples"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    """examples/demo.py, as a module."""
    pytest.importorskip("dm_control")
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
    return importlib.import_module("demo")


def test_the_camera_records_an_arm_that_reaches_a_ball(
    demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "disable")  # as in the Makefile
    renderer = demo.find_renderer()
    if renderer is None:
        pytest.skip("MuJoCo cannot draw here: install libosmesa6")
    run = demo.rlds_beam  # `make demo` records all six
    monkeypatch.setattr(
        demo,
        "rlds_beam",
        lambda *words, **env: run(*(str(w).replace("--episodes=6", "--episodes=2") for w in words), **env),
    )
    demo.see_episodes(tmp_path, tmp_path / "arm.html")
    assert (tmp_path / "arm.html").is_file()
    dataset = rlds_beam.open_dataset(str(tmp_path / "arm"), unit="episodes")
    assert len(dataset) == 2
    for episode in dataset:
        images = np.asarray(episode["steps/observation/image"])
        assert images.shape[1:] == (128, 128, 3) and images.dtype == np.uint8
        red = (images[..., 0] > 100) & (images[..., 1:].max(-1) < 60)
        assert red.any((1, 2)).all(), "the ball is not in the image"
        changed = (images[1:] != images[:-1]).any((1, 2, 3))
        assert changed.all() and (images.std((1, 2, 3)) > 10).all()
        assert episode["steps/language_instruction"][0] == b"reach for the red ball"
        distance = np.linalg.norm(episode["steps/observation/ball"] - episode["steps/observation/hand"], axis=1)
        assert distance[-1] < 0.03 < distance[0] and episode["steps/is_terminal"][-1]
