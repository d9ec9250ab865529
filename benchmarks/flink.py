"""Flink against the local runner: the same work on the same two cores, and how long it takes to start and end.

    python benchmarks/flink.py [--steps N] [--repeats N]      (make test-flink sets Flink up)

Both convert half-cheetah episodes to pairs, with two workers: two processes here, two TaskManagers with a worker each
there. Workers report when they begin their first range and end their last, so start-up is separate. Runs alternate,
and the best of each counts. Each run starts on an idle machine: a virtual machine returns free memory to its host, so
a job that follows another within seconds is up to 1.6 times as fast, and Flink's start alone takes longer than that.
"""

from __future__ import annotations

import argparse
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
FULL = 10_000_000
"""Steps of a run that updates docs/figures.json."""
REST = 15
"""Seconds of rest before each run."""


def run(source: str, output: Path, **options: Any) -> tuple[float, float]:
    """Converts once; returns the seconds at work, and those before and after."""
    from rlds_beam.pipelines.convert import ConvertConfig, convert

    shutil.rmtree(output, ignore_errors=True)
    time.sleep(REST)
    called = time.perf_counter()
    outcome = convert(ConvertConfig.create(source, str(output), **options))
    taken = time.perf_counter() - called
    shutil.rmtree(output)
    assert outcome.run is not None
    return outcome.run.seconds, taken - outcome.run.seconds


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
    here, there = [], []
    with tempfile.TemporaryDirectory() as home, Cluster(Path(home) / "flink") as cluster:
        for _ in range(flags.repeats):
            here.append(run(source, DATA / "here", workers=2))
            there.append(run(source, DATA / "there", **cluster.options()))
    best = {"local": min(here), "Flink": min(there)}
    ratio = best["Flink"][0] / best["local"][0]
    table(
        f"convert --items=pairs, {flags.steps:,} steps, two workers",
        ["", "steps/s at work", "s at work", "s before and after"],
        *([name, f"{flags.steps / s:,.0f}", f"{s:.1f}", f"{other:.1f}"] for name, (s, other) in best.items()),
    )
    print(f"  Flink takes {ratio:.2f} times the time of the local runner at work (target: at most {TARGET})")
    each = ratios([seconds for seconds, _ in there], [seconds for seconds, _ in here])
    what = "time at work of `convert --items=pairs` on a Flink cluster on the same two cores"
    figure = below("Flink: times the local runner", ratio, TARGET, what=what, against="the local runner", runs=each)
    if flags.steps >= FULL:
        save("flink.py", [figure])
    return int(ratio > TARGET)


if __name__ == "__main__":
    sys.exit(main())
