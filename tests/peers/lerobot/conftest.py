"""Datasets, and their conversions to the LeRobot version that the installed LeRobot reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lerobot_data as data
import pytest
from lerobot_peer import FORMAT_VERSION, OPTIONS

import rlds_beam

collect_ignore = ["test_v30.py", "test_tools.py"] if FORMAT_VERSION == "2.1" else ["test_v21.py"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lerobot")
    os.environ["HF_HOME"] = str(path / "hf")
    return path


@pytest.fixture(scope="session")
def source(folder: Path) -> tuple[str, list[Any]]:
    return data.write_robot_data(folder / "data")


@pytest.fixture(scope="session")
def output(folder: Path, source: tuple[str, list[Any]]) -> Path:
    rlds_beam.convert(source[0], folder / "out", shards=3, **OPTIONS)
    return folder / "out"


@pytest.fixture(scope="session")
def moving(folder: Path) -> tuple[str, list[Any]]:
    """Episodes with two cameras that compress well: squares that move over a smooth background."""
    return data.write_moving_data(folder / "moving")


@pytest.fixture(scope="session")
def videos(folder: Path, moving: tuple[str, list[Any]]) -> Path:
    modality = {"modality": "auto"} if FORMAT_VERSION == "2.1" else {}
    rlds_beam.convert(moving[0], folder / "videos", shards=2, images="video", **modality, **OPTIONS)
    return folder / "videos"
