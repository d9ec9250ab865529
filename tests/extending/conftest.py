"""Skips what other processes cannot do if an installed package is named `tests`."""

from __future__ import annotations

from importlib.machinery import PathFinder

import pytest
from checkout import ROOT

FOUND = PathFinder.find_spec("tests")
OURS = FOUND is not None and str(ROOT / "tests") in map(str, FOUND.submodule_search_locations or ())


@pytest.fixture(autouse=True)
def _other_processes_import_the_module(request: pytest.FixtureRequest) -> None:
    if not OURS and any(word in request.node.name for word in ("killed", "overwrite")):
        pytest.skip("an installed package is named tests, so other processes cannot import this module")
