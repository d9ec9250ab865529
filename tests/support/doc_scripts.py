"""The scripts in docs/, as modules."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from checkout import ROOT

DOCS = ROOT / "docs"


def script(name: str) -> ModuleType:
    """A script, imported as when it runs: its folder is on the path."""
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DOCS))
