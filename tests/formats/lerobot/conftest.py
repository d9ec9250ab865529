"""A dataset of a robot, and its conversion to LeRobot v3.0; no test changes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lerobot_data
import pytest

import rlds_beam


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    return lerobot_data.write_robot_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def v3(source: tuple[str, list[Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("v3") / "out"
    outcome = rlds_beam.convert(source[0], path, to="lerobot", fps=lerobot_data.FPS, shards=3)
    assert outcome.report.items_written == sum(map(len, source[1]))
    return path


@pytest.fixture(scope="session")
def output(v3: Path) -> Path:
    return v3
