"""Compares the cost model with measurements: `python benchmarks/rates/predicted.py state|jpeg|rlds|... [--repeats N]`.

Runs `rlds-beam convert` with one and two workers, or `rlds-beam push` into one server, and prints the model's
prediction next to the wall-clock time. The model knows `rates.json`, the plan, and the number of workers; the start-up
time is measured with an almost empty dataset. Needs a quiet machine; the last column shows how many cores other
processes kept busy, which disturbs processor time less.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import benchmarks_path  # noqa: F401
import numpy as np
from cost import MEASURED, Rates, push_seconds
from measuring import DATA, Measurement, convert, make, script, table
from scheduling import taken
from simulate import Costs

from rlds_beam.formats.sources import open_source
from rlds_beam.reading.plan import plan_ranges

PAIRS = ("--items=pairs",)
CONVERT = {"state": ("state", 2_000_000, 4, 1000, PAIRS), "jpeg": ("jpeg", 20_000, 4, 1000, PAIRS),
           "lerobot": ("jpeg256", 4_000, 4, 100, ("--to=lerobot", "--fps=10")),
           "rlds": ("jpeg256", 4_000, 4, 100, ("--to=rlds",)),
           "resize": ("jpeg480", 800, 4, 100, ("--to=rlds", f"--connectors={DATA / 'resize.json'}"))}  # fmt: skip
"""Data, steps, files, steps of the small dataset, and options."""
OF_JOB = {"lerobot": "--to=lerobot", "rlds": "--to=rlds", "resize": "--to=rlds, resized"}
PUSH = ("state", 1_000_000, 1)
HEAD = ["", "predicted", "measured", "error", "cores busy for others"]


@dataclasses.dataclass(frozen=True)
class Timed:
    """A finished command: its output, processor seconds of all its processes, and cores that others used."""

    run: Measurement
    cpu: float
    others: float

    @property
    def seconds(self) -> float:
        return self.run.working + self.run.start_up


def timed(function: Callable[..., Measurement], *args: Any) -> Timed:
    """Runs a function that runs a command."""
    began, busy, ours = time.perf_counter(), _busy(), _ours()
    run = function(*args)
    wall, cpu = time.perf_counter() - began, _ours() - ours
    return Timed(run, cpu, max(0.0, _busy() - busy - cpu) / wall)


def _ours() -> float:
    """Processor seconds of this process's finished descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _busy() -> float:
    """Processor seconds that this machine was busy, or kept waiting by its host."""
    user, nice, system, _, _, *others = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def predicted_convert(data: Path, kind: str, workers: int, rates: Rates) -> tuple[float, float, float]:
    """(seconds of the ranges, their processor seconds, processor seconds of the scan for duplicates)."""
    stages = rates.jobs[OF_JOB[kind]] if kind in OF_JOB else rates.stages[kind]
    source = open_source(str(data))
    costs = Costs(rates.range_seconds["wall"], 0.0, stages.seconds_per_byte).of(plan_ranges(source))
    return taken(costs, np.ones(workers)).makespan, float(costs.sum()), source.size * stages.look_per_byte


def compare_convert(kind: str, rates: Rates, repeats: int) -> None:
    data_kind, steps, files, few, options = CONVERT[kind]
    data, tiny, rows = make(data_kind, steps, files), make(data_kind, few), []
    (DATA / "resize.json").write_text(json.dumps(["ResizeImages"]))
    for workers in (1, 2):
        flags = (*options, f"--workers={workers}")
        starts = [timed(convert, tiny, *flags) for _ in range(repeats)]
        runs = [timed(convert, data, *flags) for _ in range(repeats)]
        start, cpu_start = min(t.seconds for t in starts), min(t.cpu for t in starts)
        best = min(runs, key=lambda t: t.run.working)
        ranges, cpu, look = predicted_convert(data, kind, workers, rates)
        name = f"{workers} worker{'s' * (workers > 1)}"
        rows.append(_row(f"{name}: at work", ranges, best.run.working, best.others))
        everything = start + ranges + look / workers
        rows.append(_row(f"{name}: in all (start {start:.1f})", everything, best.seconds, best.others))
        used = min(t.cpu for t in runs)
        rows.append(_row(f"{name}: processor (start {cpu_start:.1f})", cpu_start + cpu + look, used, best.others))
    title = f"convert {kind}, {steps:,} steps, {len(plan_ranges(open_source(str(data))))} parts: seconds"
    table(title, HEAD, *rows)


def compare_push(rates: Rates, repeats: int) -> None:
    kind, steps, files = PUSH
    data, rows = make(kind, steps, files), []
    push, stages, cores = rates.push[kind], rates.stages[kind], os.cpu_count() or 1
    client, server = push_seconds(stages, push), push.server_us * 1e-6
    for workers in (1, 2):
        flags = ("--servers=1", f"--workers={workers}")
        runs = [timed(script, "reverb_push.py", data, *flags) for _ in range(repeats)]
        best = max(runs, key=lambda t: t.run.content["items_per_second"])
        # The slowest of the client's workers, the server, and all cores for both.
        seconds = max(client / workers, server / cores, (client + server) / cores)
        name = f"{kind}, {steps:,} steps, 1 server, {workers} worker{'s' * (workers > 1)}"
        rows.append(_row(name, steps * seconds, steps / best.run.content["items_per_second"], best.others))
    table("push: seconds at work", HEAD, *rows)


def _row(name: str, predicted: float, measured: float, others: float) -> list[str]:
    return [name, f"{predicted:.2f}", f"{measured:.2f}", f"{predicted / measured - 1:+.0%}", f"{others:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=(*CONVERT, "push"))
    parser.add_argument("--repeats", type=int, default=2, help="runs of each; the best counts")
    parser.add_argument("--rates", type=Path, default=MEASURED, help="output of rates.py")
    args = parser.parse_args()
    DATA.mkdir(exist_ok=True)
    rates = Rates.read(args.rates)
    print(f"rates of {rates.date}: {rates.machine}; load {os.getloadavg()[0]:.1f} before the start", flush=True)
    if args.what == "push":
        compare_push(rates, args.repeats)
    else:
        compare_convert(args.what, rates, args.repeats)


if __name__ == "__main__":
    main()
