"""`make test-peers`: tests our output and connectors with the programs they are for, each in its own environment.

A peer PEER has its tests in tests/peers/PEER (or FOLDERS), its lock in requirements/peers-PEER.lock (the base package,
the extra of the same name, and the peer's packages), and its environment, with the wheel, in .venv-peers-PEER.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from environments import ROOT, Outcome, all_passed, build, find, install_wheel, print_table, test, version_of

PEERS = {
    "rllib": "ray",
    "lerobot": "lerobot",
    "lerobot21": "lerobot",
    "scope_rl": "scope_rl",
    "exchange": "d3rlpy",
    "loading": "lerobot",
}
"""Peer -> the module whose version is printed."""

ON_REQUEST = ("loading",)
"""Peers that only benchmarks need: tested if they are named."""

FOLDERS = {"lerobot21": ["lerobot"], "rllib": ["rllib", "loaders"]}
"""Peer -> its folders of tests, if not just the one of its name."""

PYTHONS = {"lerobot": "3.12", "loading": "3.12"}
"""Peer -> its Python, if not 3.11."""


def environments_of(page: Path) -> list[str]:
    """The environments that the first line of a page names."""
    named = re.match(r"<!-- environment: ([\w, ]+) -->", page.read_text())
    return named[1].split(", ") if named else []


def pages_of(peer: str) -> list[str]:
    """The tests of the pages whose first line names the peer's environment."""
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if peer in environments_of(page)]
    tests = {True: "test_the_blocks_of_a_page_print_what_it_shows", False: "test_the_blocks_of_a_page_run"}
    return [
        f"tests/docs/test_blocks.py::{tests[page.parent.name == 'tutorials']}[{page.relative_to(ROOT)}]"
        for page in pages
    ]


def test_beside(peer: str, interpreter: str, arguments: list[str]) -> Outcome:
    """Runs the tests of one peer."""
    python = build(ROOT / f".venv-peers-{peer}", interpreter, ROOT / "requirements" / f"peers-{peer}.lock")
    install_wheel(python)
    version = version_of(python, PEERS[peer])
    print(f"\n== {peer}, {PEERS[peer]} {version}", flush=True)
    folders = [f"tests/peers/{name}" for name in FOLDERS.get(peer, [peer])]
    return test(peer, version, python, arguments or [*folders, *pages_of(peer)])


def main(arguments: list[str]) -> int:
    """Returns the exit code: 0 if tests passed and none failed for each peer.

    Args:
      arguments: peers (default: all but ON_REQUEST), then pytest's arguments.
    """
    peers = [argument for argument in arguments if argument in PEERS] or [
        peer for peer in PEERS if peer not in ON_REQUEST
    ]
    versions = {peer: PYTHONS.get(peer, "3.11") for peer in peers}
    interpreters = {version: find(version) for version in versions.values()}
    for version, interpreter in interpreters.items():
        if interpreter is None:
            print(f"no Python {version} with venv was found", file=sys.stderr)
            return 1
    rest = [argument for argument in arguments if argument not in PEERS]
    outcomes = [test_beside(peer, interpreters[versions[peer]] or "", rest) for peer in peers]
    print_table(outcomes, "peer", "version")
    return 0 if all_passed(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main([word for argument in sys.argv[1:] for word in shlex.split(argument)]))
