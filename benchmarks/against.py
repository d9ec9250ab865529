"""Compares this installation with another: `python benchmarks/against.py OTHER/.venv/bin/rlds-beam [--quick]`.

Before merging a change, install the commit before it elsewhere and check that nothing became slower. Each case runs
`--repeats` times with both, alternating; the fastest run counts. Prints the ratio of the two times.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import NamedTuple

from measuring import COMMAND, DATA, Sizes, command, make, table
from tables import TABLE, options_of, servers

from rlds_beam.jobs.push import open_input

SLOWER = 1.03
"""A higher ratio is reported as slower and sets exit code 1."""


class Case(NamedTuple):
    """A command that both installations run on a generated dataset."""

    name: str
    command: str
    kind: str
    steps: int
    quick: int
    flags: tuple[str, ...] = ()


CASES = [
    Case("frames", "convert", "state", 1_000_000, 100_000, ("--items=frames",)),
    Case("pairs", "convert", "state", 1_000_000, 100_000, ("--items=pairs",)),
    Case(
        "sequences of 10, padded",
        "convert",
        "state",
        400_000,
        50_000,
        ("--items=sequences", "--sequence_length=10", "--stride_length=10", "--pad_end_of_episodes"),
    ),
    Case("PNG images, pairs", "convert", "png", 4_000, 1_000, ("--items=pairs",)),
    Case("JPEG images, frames", "convert", "jpeg", 4_000, 1_000, ("--items=frames",)),
    Case("check", "check", "state", 1_000_000, 100_000, ("--rules",)),
    Case("push, pairs", "push", "state", 400_000, 50_000, ("--items=pairs",)),
]


def seconds(executable: Path, case: Case, data: Path) -> float:
    """Working seconds of one run; wall-clock seconds if the command does not report them."""
    began = time.perf_counter()
    arguments: list[object] = [executable, case.command, data]
    if case.command == "push":
        with servers(open_input(options_of(str(data))), 1) as addresses:
            arguments += [f"--reverb={addresses[0]}", f"--table={TABLE}"]
            printed, _ = command([*arguments, "--json", "--workers=1", *case.flags])
    else:
        output = DATA / "against"
        shutil.rmtree(output, ignore_errors=True)
        arguments += [output] if case.command == "convert" else []
        printed, _ = command([*arguments, "--json", "--workers=1", *case.flags])
    return float(json.loads(printed).get("working_seconds", time.perf_counter() - began))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the rlds-beam command of the other environment")
    parser.add_argument("--quick", action="store_true", help="small data, once")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each case; the best counts (default: 5)")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    sizes = Sizes(1 if args.quick else args.repeats, args.quick)
    DATA.mkdir(exist_ok=True)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the start")
    rows, slower = [], False
    for case in (case for case in CASES if args.only in case.name):
        data = make(case.kind, sizes.of(case.steps, case.quick))
        times: dict[Path, list[float]] = {args.other.absolute(): [], COMMAND: []}
        for _ in range(sizes.repeats):
            for executable, runs in times.items():
                runs.append(seconds(executable, case, data))
        before, now = (min(runs) for runs in times.values())
        slower |= now / before > SLOWER
        rows.append([case.name, f"{before:.2f}", f"{now:.2f}", f"{now / before:.2f}"])
    table("seconds at work, one worker", ["", "other", "this", "ratio"], *rows)
    return int(slower and not args.quick)


if __name__ == "__main__":
    sys.exit(main())
