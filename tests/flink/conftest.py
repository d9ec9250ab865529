"""A cluster for all tests of this directory, which are left out where `make test-flink` has not set it up."""

from __future__ import annotations

from collections.abc import Iterator

import flink_artifacts
import pytest
from checkout import SUPPORT
from flink_cluster import Cluster
from flink_gate import Gate


@pytest.fixture(scope="session", autouse=True)
def gate_is_importable() -> Iterator[None]:
    """By commands that run in processes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SUPPORT))
        yield


@pytest.fixture(scope="session")
def gate(tmp_path_factory) -> Gate:
    return Gate(tmp_path_factory.mktemp("gate"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory, gate) -> Iterator[Cluster]:
    """Two TaskManagers with a slot each. A test that harms it makes it whole again."""
    if not flink_artifacts.ready():
        pytest.skip("Flink is not set up here: make test-flink does it")
    home = tmp_path_factory.mktemp("flink")
    with Cluster(home, environment={"FLINK_GATE": str(gate.directory)}) as running:
        yield running
