"""Where the jobs of `tests/cluster` run: a client, a Flink cluster, and a bucket, each on hosts of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import hosts
from bucket_servers import Server
from flink_gate import Gate

JOB_SECONDS = 900.0
"""Seconds that a job may take on a busy machine."""


class Place:
    """The hosts, with a cluster and a bucket.

    Attributes:
      network: the hosts.
      bucket: the bucket's server.
      environment: the variables of processes that use the bucket.
      cluster: the cluster; None until it runs.
      gate: makes workers wait.
    """

    def __init__(self, network: hosts.Network, bucket: Server, environment: dict[str, str], gate: Gate):
        self.network, self.bucket, self.environment, self.gate = network, bucket, environment, gate
        self.cluster: Any = None

    def start(self, host: str, *command: str, output: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Starts a command on a host; it ends with this process.

        Args:
          host: the host's name.
          command: the command.
          output: where its output and errors go.
        """
        return subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", *self.network[host].command(command)],
            env=self.environment,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )

    def client(self, *arguments: str, on_cluster: bool = True) -> subprocess.Popen[str]:
        """Starts `rlds-beam` on the client's host."""
        flags = self.cluster.flags() if on_cluster else []
        return self.start("client", sys.executable, "-m", "rlds_beam", *arguments, *flags, output=subprocess.PIPE)

    def run(self, *arguments: str, on_cluster: bool = True, code: int = 0) -> Any:
        """Runs `rlds-beam ... --json` on the client's host; returns what it printed."""
        process = self.client(*arguments, "--json", on_cluster=on_cluster)
        out, err = process.communicate(timeout=JOB_SECONDS)
        assert process.returncode == code, err
        return json.loads(out)

    def traffic(self, run: Callable[[], object]) -> dict[str, tuple[int, int]]:
        """The bytes that each host receives and sends during `run`."""
        before = {name: host.traffic() for name, host in self.network.hosts.items()}
        run()
        after = {name: host.traffic() for name, host in self.network.hosts.items()}
        return {name: (after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in before}
