"""The sockets that processes listen on, according to the kernel."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_TCP_LISTEN = "0A"


class Listening(NamedTuple):
    """A TCP socket that accepts connections.

    Attributes:
      process: the id of the process that owns it.
      address: the bound address; `::` and `0.0.0.0` are every network interface.
      port: the bound port.
    """

    process: int
    address: str
    port: int

    @property
    def is_loopback(self) -> bool:
        address = ipaddress.ip_address(self.address)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def listening(processes: Iterable[int]) -> list[Listening]:
    """The TCP sockets (IPv4 and IPv6) on which these processes accept connections."""
    tables = [_table(name) for name in ("tcp", "tcp6")]
    found = []
    for process in processes:
        inodes = _inodes(process)
        for line in (line for table in tables for line in table if line[3] == _TCP_LISTEN and line[9] in inodes):
            address, _, port = line[1].rpartition(":")
            found.append(Listening(process, _address(address), int(port, 16)))
    return found


def _table(name: str) -> list[list[str]]:
    return [line.split() for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]


def _inodes(process: int) -> set[str]:
    """The inodes of the sockets of a process; empty if it has ended."""
    inodes = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(descriptor)
                if target.startswith("socket:["):
                    inodes.add(target[len("socket:[") : -1])
    return inodes


def _address(text: str) -> str:
    """Parses an address of /proc/net/tcp: 32-bit words in the machine's byte order."""
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    return str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words)))
