"""Flink against the local runner: the same work on the same two cores, and where the remaining time goes.

    python benchmarks/flink.py [--steps N] [--repeats N]      (make test-flink sets Flink up)

Both convert half-cheetah episodes to pairs, with two workers: two processes here, two TaskManagers with a worker each
there. Workers report when they begin their first range and end their last, so start-up is separate. Runs alternate,
and the best of each counts. Each run starts on an idle machine: a virtual machine returns free memory to its host, so
a job that follows another within seconds is up to 1.6 times as fast, and Flink's start alone takes longer than that.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from data import dataset
from figures import save
from measuring import DATA, below, ratios, table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

TARGET = 1.5
FULL = 2_000_000
"""Steps of a run that updates docs/figures.json."""
REST = 15
"""Seconds of rest before each run."""


@dataclasses.dataclass(frozen=True)
class Phases:
    """When a run was called, began its first range, ended its last, and returned: seconds since 1970."""

    called: float
    first: float
    last: float
    returned: float

    @property
    def working(self) -> float:
        return self.last - self.first


def run(source: str, output: Path, **options: Any) -> Phases:
    from rlds_beam.pipelines.convert import ConvertConfig, convert

    shutil.rmtree(output, ignore_errors=True)
    time.sleep(REST)
    called = time.time()
    outcome = convert(ConvertConfig.create(source, str(output), **options))
    returned = time.time()
    first = outcome.metrics["range_began_msec"].min / 1000
    last = outcome.metrics["range_ended_msec"].max / 1000
    shutil.rmtree(output)
    return Phases(called, first, last, returned)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=FULL)
    parser.add_argument("--repeats", type=int, default=2)
    flags = parser.parse_args()
    import flink_artifacts
    from flink_cluster import Cluster

    logging.getLogger().setLevel(logging.CRITICAL)
    flink_artifacts.fetch()
    source = str(dataset("state", flags.steps, 10, DATA))
    here, there, jobs = [], [], []
    with tempfile.TemporaryDirectory() as home, Cluster(Path(home) / "flink") as cluster:
        on_flink = cluster.options()
        for _ in range(flags.repeats):
            here.append(run(source, DATA / "here", workers=2))
            there.append(run(source, DATA / "there", **on_flink))
            jobs.append(cluster.jobs()[0])
    ours, flink = (min(runs, key=lambda phases: phases.working) for runs in (here, there))
    ratio = flink.working / ours.working
    table(
        f"convert --items=pairs, {flags.steps:,} steps, two workers",
        ["", "steps/s at work", "s at work", "s before", "s after"],
        *(
            [
                name,
                f"{flags.steps / p.working:,.0f}",
                f"{p.working:.1f}",
                f"{p.first - p.called:.1f}",
                f"{p.returned - p.last:.1f}",
            ]
            for name, p in (("local", ours), ("Flink", flink))
        ),
    )
    job = jobs[there.index(flink)]
    began, ended = job["start-time"] / 1000, job["end-time"] / 1000
    print(
        f"  Flink, before: {began - flink.called:.1f} s until it has the job (job server, plan, staging), "
        f"{flink.first - began:.1f} s until the first range (workers' start, duplicates); "
        f"after: {ended - flink.last:.1f} s until the job's end (commit), {flink.returned - ended:.1f} s until ours"
    )
    print(f"  Flink takes {ratio:.2f} times the time of the local runner at work (target: at most {TARGET})")
    print(
        "  all runs, s at work: "
        + "; ".join(
            f"{name} {', '.join(f'{p.working:.1f}' for p in runs)}"
            for name, runs in (("local", here), ("Flink", there))
        )
    )
    each = ratios([phases.working for phases in there], [phases.working for phases in here])
    what = "time at work of `convert --items=pairs` on a Flink cluster on the same two cores"
    figure = below("Flink: times the local runner", ratio, TARGET, what=what, against="the local runner", runs=each)
    if flags.steps >= FULL:
        save("flink.py", [figure])
    return int(ratio > TARGET)


if __name__ == "__main__":
    sys.exit(main())
