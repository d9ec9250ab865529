"""Paths in this checkout."""

from __future__ import annotations

import os
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parents[1]
REAL_DATA = Path(os.environ.get("RLDS_BEAM_REAL_DATA") or ROOT / "no-real-data")
"""Real datasets, which are not in the repository; `make` finds them in ../shared/data."""
