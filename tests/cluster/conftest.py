"""A Flink cluster of three hosts, a client, and a bucket, which share nothing but a network."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import flink_artifacts
import hosts
import pytest
from bucket_servers import Server, wait_for_server
from checkout import ROOT, SUPPORT
from flink_cluster import HostCluster
from flink_gate import Gate
from host_place import Place

DELAY_MS, RATE = 30, "1gbit"
"""The round trip to the bucket, and the bandwidth of its link."""

NAMES = ("master", "worker-0", "worker-1", "client", "bucket")


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    if why := hosts.missing():
        pytest.skip(why)
    if not flink_artifacts.ready():
        pytest.skip("Flink is not set up; run make test-cluster")
    pytest.importorskip("moto.server", exc_type=ImportError)
    home = Path(tempfile.mkdtemp(prefix="hosts-", dir=ROOT / "build"))  # no host sees this process's /tmp
    try:
        with hosts.Network(home / "hosts", NAMES) as network, pytest.MonkeyPatch.context() as patch:
            network["bucket"].limit(RATE)
            server = Server("s3", f"http://{network['bucket'].address}:9000")
            for name, value in server.environment.items():
                patch.setenv(name, value)  # this process looks into the bucket, too
            gate = Gate(home / "gate")
            own = {"FLINK_GATE": str(gate.directory), "PYTHONPATH": str(SUPPORT), "HOME": "/tmp"}
            place = Place(network, server, {**os.environ, **own}, gate)
            store = [sys.executable, "-c", "from moto.server import main; main()", "-p", "9001"]
            stores = [place.start("bucket", *store)]
            stores.append(
                place.start("bucket", sys.executable, f"{SUPPORT}/slow_link.py", "9000", "9001", f"{DELAY_MS}")
            )
            wait_for_server(server.url, stores[0])
            with HostCluster(home / "flink", network, place.environment) as cluster:
                place.cluster = cluster
                yield place
    finally:
        shutil.rmtree(home, ignore_errors=True)
