"""`make environments`: the environments of `make test-pythons` and `make test-peers`, before they are needed."""

from __future__ import annotations

import sys

import test_peers
import test_pythons
from environments import ROOT, build, find


def main() -> int:
    """The exit code: 0 if every environment was made whose Python is on this machine."""
    pythons = [(version, f"py{version.replace('.', '')}", "base-") for version in test_pythons.PYTHONS]
    peers = [(test_peers.PYTHONS.get(peer, "3.11"), f"peers-{peer}", "") for peer in test_peers.PEERS]
    for version, name, prefix in [*pythons, *peers]:
        interpreter = find(version)
        if interpreter is not None:
            build(ROOT / f".venv-{name}", interpreter, ROOT / "requirements" / f"{prefix}{name}.lock")
    return 0


if __name__ == "__main__":
    sys.exit(main())
