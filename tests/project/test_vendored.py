"""The vendored JavaScript is what its package published, and has a license."""

from __future__ import annotations

import hashlib
import json

import pytest
from checkout import ROOT

VENDORED = ROOT / "src" / "rlds_beam" / "viewing" / "vendored"
SOURCES = json.loads((VENDORED / "sources.json").read_text())


@pytest.mark.parametrize("name", SOURCES)
def test_a_file_has_its_hash(name: str) -> None:
    assert hashlib.sha256((VENDORED / name).read_bytes()).hexdigest() == SOURCES[name]["sha256"]


def test_every_file_has_a_source_and_a_license() -> None:
    files = {file.name for file in VENDORED.iterdir() if file.is_file()}
    assert files - {"__init__.py", "LICENSES.txt", "sources.json"} == set(SOURCES)
    licenses = (VENDORED / "LICENSES.txt").read_text()
    assert all(source["package"].lower() in licenses.lower() for source in SOURCES.values())
