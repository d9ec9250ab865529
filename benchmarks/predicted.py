"""Holds the cost model to account: `python benchmarks/predicted.py convert|push [--repeats N] [--rates FILE]`.

Runs `rlds-beam convert` with one and with two workers, or `rlds-beam push` into one server, and prints what the model
says of the very same job beside what the clock on the wall says. The model knows `rates.json`, the plan, and how many
workers there are; how long a start takes is measured with a dataset of no size. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from cost import MEASURED, Rates, push_seconds
from measuring import DATA, Measurement, best, convert, make, script, table
from scheduling import taken
from simulate import Costs

from rlds_beam.plan import plan_ranges
from rlds_beam.source import open_source

CONVERT = {"state": ("state", 2_000_000, 4), "jpeg": ("jpeg", 20_000, 4)}
PUSH = ("state", 1_000_000, 1)


def predicted_convert(data: Path, kind: str, workers: int, rates: Rates) -> tuple[float, float]:
    """(seconds of the ranges, seconds of the look for duplicates)."""
    stages, source = rates.stages[kind], open_source(str(data))
    costs = Costs(rates.range_seconds["wall"], 0.0, stages.seconds_per_byte).of(plan_ranges(source))
    return taken(costs, np.ones(workers)).makespan, source.size * stages.look_per_byte / workers


def compare_convert(rates: Rates, repeats: int) -> None:
    rows = []
    for kind, where in CONVERT.items():
        data, tiny = make(*where), make(kind, 1000)
        for workers in (1, 2):
            flags = ("--items=pairs", f"--workers={workers}")
            start = min(_seconds(convert(tiny, *flags)) for _ in range(repeats))
            run = best(convert(data, *flags) for _ in range(repeats))
            ranges, look = predicted_convert(data, kind, workers, rates)
            name = f"{kind}, {where[1]:,} steps, {workers} worker{'s' * (workers > 1)}"
            rows.append(_row(f"{name}: at work", ranges, run.working))
            rows.append(_row(f"{name}: in all, of which {start:.1f} s start", start + look + ranges, _seconds(run)))
    table("convert: seconds", ["", "predicted", "measured", "error"], *rows)


def compare_push(rates: Rates, repeats: int) -> None:
    kind, steps, files = PUSH
    data, rows = make(kind, steps, files), []
    push, stages, cores = rates.push[kind], rates.stages[kind], os.cpu_count() or 1
    client, server = push_seconds(stages, push), push.server_us * 1e-6
    for workers in (1, 2):
        flags = ("--servers=1", f"--workers={workers}")
        runs = [script("reverb_push.py", data, *flags).content["items_per_second"] for _ in range(repeats)]
        # The client's workers, the server, and all cores for both of them: whichever is the slowest.
        seconds = max(client / workers, server / cores, (client + server) / cores)
        name = f"{kind}, {steps:,} steps, 1 server, {workers} worker{'s' * (workers > 1)}"
        rows.append(_row(name, steps * seconds, steps / max(runs)))
    table("push: seconds at work", ["", "predicted", "measured", "error"], *rows)


def _seconds(run: Measurement) -> float:
    return run.working + run.start_up


def _row(name: str, predicted: float, measured: float) -> list[str]:
    return [name, f"{predicted:.2f}", f"{measured:.2f}", f"{predicted / measured - 1:+.0%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("convert", "push"))
    parser.add_argument("--repeats", type=int, default=2, help="runs of each, of which the best counts")
    parser.add_argument("--rates", type=Path, default=MEASURED, help="what rates.py printed")
    args = parser.parse_args()
    DATA.mkdir(exist_ok=True)
    rates = Rates.read(args.rates)
    print(f"rates of {rates.date}: {rates.machine}; load {os.getloadavg()[0]:.1f} before the start")
    {"convert": compare_convert, "push": compare_push}[args.what](rates, args.repeats)


if __name__ == "__main__":
    main()
