"""A cluster for all tests in this directory; they are skipped if `make test-flink` has not set it up."""

from __future__ import annotations

from collections.abc import Iterator

import flink_artifacts
import pytest
from checkout import SUPPORT
from flink_cluster import Cluster
from flink_gate import Gate


@pytest.fixture(scope="session", autouse=True)
def gate_is_importable() -> Iterator[None]:
    """Makes the gate importable in commands that run in their own processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SUPPORT))
        yield


@pytest.fixture(scope="session")
def gate(tmp_path_factory) -> Gate:
    return Gate(tmp_path_factory.mktemp("gate"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory, gate) -> Iterator[Cluster]:
    """Two TaskManagers with one slot each. A test that breaks the cluster must restore it."""
    if not flink_artifacts.ready():
        pytest.skip("Flink is not set up; run make test-flink")
    home = tmp_path_factory.mktemp("flink")
    with Cluster(home, environment={"FLINK_GATE": str(gate.directory)}) as running:
        yield running
