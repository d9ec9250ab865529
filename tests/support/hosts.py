"""Hosts on this machine that share nothing but a network: each has its own network namespace and its own /tmp.

A switch connects them, and this process, to 10.77.0.0/24. Links can be cut, and count their bytes. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

OWN = "10.77.0.254"
"""The address of this process."""

_MARK = f"rb{os.getpid()}-"
"""Begins the names of our namespaces, and of our device."""

_SWITCH = f"{_MARK}switch"
_OWN_DEVICE = f"{_MARK}own"
_MOUNT = 'mount --bind "$0" /tmp && cd /tmp && exec "$@"'


def missing() -> str | None:
    """Why there can be no hosts; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with tempfile.TemporaryDirectory() as home, Network(Path(home) / "hosts", ["probe"]) as network:
            network["probe"].limit("1gbit")
            _run(*network["probe"].command(["true"]))
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces here: {getattr(error, 'stderr', None) or error}"
    return None


class Host:
    """A host of a `Network`.

    Args:
      name: the name, up to 15 characters.
      address: the address in the network.
      home: the directory that is /tmp on this host.
    """

    def __init__(self, name: str, address: str, home: Path):
        self.name, self.address, self.home = name, address, home
        self._namespace, self._port = f"{_MARK}{name}", name
        home.mkdir(parents=True)
        _ip("netns", "add", self._namespace)
        _ip(
            "-n",
            _SWITCH,
            "link",
            "add",
            "name",
            self._port,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            self._namespace,
        )
        _ip("-n", _SWITCH, "link", "set", "dev", self._port, "master", "bridge", "up")
        for device in ("lo", "eth0"):
            _ip("-n", self._namespace, "link", "set", device, "up")
        _ip("-n", self._namespace, "address", "add", f"{address}/24", "dev", "eth0")

    def command(self, command: Sequence[str]) -> list[str]:
        """A command that runs another one on this host."""
        return ["ip", "netns", "exec", self._namespace, "sh", "-c", _MOUNT, str(self.home), *command]

    def processes(self) -> list[int]:
        """The ids of the host's processes."""
        return [int(process) for process in _ip("netns", "pids", self._namespace).split()]

    def kill(self) -> None:
        """Ends all processes of the host, as when its power fails; its disk stays."""
        while alive := self.processes():
            for process in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def connect(self, connected: bool) -> None:
        """Cuts the host's link, or connects it again. Packets meanwhile are lost."""
        _ip("-n", _SWITCH, "link", "set", "dev", self._port, "up" if connected else "down")

    def limit(self, rate: str) -> None:
        """Limits what others send to the host, and it to them, in `tc`'s words: `1gbit`."""
        limit = ["root", "tbf", "rate", rate, "burst", "1mb", "latency", "100ms"]
        for namespace, device in ((_SWITCH, self._port), (self._namespace, "eth0")):
            _run("tc", "-n", namespace, "qdisc", "add", "dev", device, *limit)

    def traffic(self) -> tuple[int, int]:
        """The bytes that the host has received and sent."""
        files = [f"/sys/class/net/eth0/statistics/{way}_bytes" for way in ("rx", "tx")]
        received, sent = _ip("netns", "exec", self._namespace, "cat", *files).split()
        return int(received), int(sent)


class Network:
    """Hosts by name, for a `with` block.

    Args:
      home: a new directory; each host's /tmp is a directory in it.
      names: the names of the hosts.
    """

    def __init__(self, home: Path, names: Sequence[str]):
        self._home, self._names = home, names
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Network:
        try:
            _remove_left()
            _ip("netns", "add", _SWITCH)
            _ip("-n", _SWITCH, "link", "add", "bridge", "type", "bridge")
            _ip("-n", _SWITCH, "link", "set", "bridge", "up")
            _ip(
                "-n",
                _SWITCH,
                "link",
                "add",
                _OWN_DEVICE,
                "type",
                "veth",
                "peer",
                _OWN_DEVICE,
                "netns",
                str(os.getpid()),
            )
            _ip("-n", _SWITCH, "link", "set", _OWN_DEVICE, "master", "bridge", "up")
            _ip("link", "set", _OWN_DEVICE, "up")
            _ip("address", "add", f"{OWN}/24", "dev", _OWN_DEVICE)
            for number, name in enumerate(self._names, 1):
                self.hosts[name] = Host(name, f"10.77.0.{number}", self._home / name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts.values():
            host.kill()
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "delete", _OWN_DEVICE)
        for namespace in [_SWITCH, *(f"{_MARK}{name}" for name in self._names)]:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", namespace)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]


def _remove_left() -> None:
    """Removes the namespaces, and their processes, of processes that were killed."""
    for line in _ip("netns").splitlines():
        if (found := re.match(r"rb(\d+)-", line)) and not Path(f"/proc/{found[1]}").exists():
            namespace = line.split()[0]
            for process in _ip("netns", "pids", namespace).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            _ip("netns", "delete", namespace)


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
