"""Runs the example as a user does."""

from __future__ import annotations

import re
import subprocess
import sys

from checkout import ROOT

EXAMPLE = ROOT / "examples" / "rllib" / "two_modules.py"


def test_two_modules_one_of_them_recurrent():
    ran = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=False, timeout=280)
    assert ran.returncode == 0, ran.stderr
    first, last = (
        {module: float(loss) for module, loss in re.findall(r"(\w+) (\d\.\d+)", line)}
        for line in ran.stdout.splitlines()
        if line.startswith("iteration")
    )
    assert first.keys() == {"memory", "reflex"}
    assert all(last[module] < 0.6 * first[module] for module in first), ran.stdout
