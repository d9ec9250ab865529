"""`make environments`: builds the environments of `make test-pythons` and `make test-peers` ahead of time."""

from __future__ import annotations

import sys

import test_peers
import test_pythons
from environments import ROOT, build, find


def main() -> int:
    """Returns the exit code: 0 if every environment was built whose Python is installed."""
    pythons = [(version, f"py{version.replace('.', '')}", "base-") for version in test_pythons.PYTHONS]
    peers = [(test_peers.PYTHONS.get(peer, "3.11"), f"peers-{peer}", "") for peer in test_peers.PEERS]
    for version, name, prefix in [*pythons, *peers]:
        interpreter = find(version)
        if interpreter is not None:
            build(ROOT / f".venv-{name}", interpreter, ROOT / "requirements" / f"{prefix}{name}.lock")
    return 0


if __name__ == "__main__":
    sys.exit(main())
