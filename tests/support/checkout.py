"""Paths in this checkout."""

from __future__ import annotations

import ast
import functools
import os
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parents[1]
REAL_DATA = Path(os.environ.get("RLDS_BEAM_REAL_DATA") or ROOT / "no-real-data")
"""Real datasets, which are not in the repository; `make` finds them in ../shared/data."""


@functools.cache
def parse(file: Path) -> ast.Module:
    """The syntax tree of a file; several tests look at all of them."""
    return ast.parse(file.read_text(), str(file))
