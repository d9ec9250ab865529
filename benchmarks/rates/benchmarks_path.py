"""Lets a script of this folder import the modules in benchmarks/."""

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
