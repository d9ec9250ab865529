"""`check` without decoding against `check --rules`, which reads and checks the same data."""

from __future__ import annotations

import os
from pathlib import Path

from measuring import COMMAND, Figure, Sizes, below, command, make, ratios, table

MAX = 1.5
"""Measuring the signals may cost this many times `check --rules`."""


def signals(sizes: Sizes) -> list[Figure]:
    """Processor time of whole commands with one worker, including start-up, in alternation."""
    cases = {
        "episodes of 10 steps": make("robot_short", sizes.of(200_000, 20_000)),
        "episodes of 100 steps": make("robot", sizes.of(300_000, 30_000)),
        "4 cameras": make("jpeg", sizes.of(50_000, 5_000)),
        "episodes of 1,000 steps": make("state", sizes.of(1_000_000, 200_000)),
    }
    rows, figures = [], []
    for name, data in cases.items():
        check, rules = [], []
        for _ in range(sizes.repeats):
            check.append(_seconds("check", data, "--decode=0"))
            rules.append(_seconds("check", "--rules", data))
        ratio = min(check) / min(rules)
        rows.append([name, f"{min(check):.2f}", f"{min(rules):.2f}", f"{ratio:.2f}"])
        what, each = f"processor time of `check --decode=0`, {name}", ratios(check, rules)
        figures.append(
            below(f"check, {name}: times check --rules", ratio, MAX, what=what, against="`check --rules`", runs=each)
        )
    table("signals without decoding, processor seconds", ["", "check", "check --rules", "ratio"], *rows)
    return figures


def _seconds(name: str, data: Path, *flags: str) -> float:
    """The processor time of a command and its workers."""
    before = os.times()
    command([COMMAND, name, data, "--json", "--workers=1", *flags])
    after = os.times()
    return sum(getattr(after, one) - getattr(before, one) for one in ("children_user", "children_system"))
