"""`make environments`: builds the environments of `make test-pythons` and `make test-peers` ahead of time."""

from __future__ import annotations

import sys

import peers
import pythons
from environments import ROOT, build, find


def main() -> int:
    """Returns the exit code: 0 if every environment was built whose Python is installed."""
    of_pythons = [(version, f"py{version.replace('.', '')}", "base-") for version in pythons.PYTHONS]
    of_peers = [
        (peers.PYTHONS.get(peer, "3.11"), f"peers-{peer}", "") for peer in peers.PEERS if peer not in peers.ON_REQUEST
    ]
    for version, name, prefix in [*of_pythons, *of_peers]:
        interpreter = find(version)
        if interpreter is not None:
            build(ROOT / f".venv-{name}", interpreter, ROOT / "requirements" / f"{prefix}{name}.lock")
    return 0


if __name__ == "__main__":
    sys.exit(main())
