"""Flink against the local runner: the same work on the same two cores, and where the rest of the time goes.

    python benchmarks/flink.py [--steps N] [--repeats N]      (make test-flink sets Flink up)

Both convert half-cheetah episodes to pairs, with two workers: two processes here, two TaskManagers with a worker each
there. Workers begin their first range and end their last one at times that they report, so start-up is apart. Runs take
turns, and the best of each counts.
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
from measuring import DATA, table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

TARGET = 1.5


@dataclasses.dataclass(frozen=True)
class Phases:
    """Seconds of one run, from the call to its return."""

    before: float
    working: float
    after: float


def run(source: str, output: Path, **options: Any) -> Phases:
    from rlds_beam.pipelines.convert import ConvertConfig, convert

    shutil.rmtree(output, ignore_errors=True)
    began = time.time()
    outcome = convert(ConvertConfig(source, str(output), **options))
    ended = time.time()
    first = outcome.metrics["range_began_msec"].min / 1000
    last = outcome.metrics["range_ended_msec"].max / 1000
    shutil.rmtree(output)
    return Phases(first - began, last - first, ended - last)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=2)
    flags = parser.parse_args()
    import flink_artifacts
    from flink_cluster import Cluster

    logging.getLogger().setLevel(logging.CRITICAL)
    flink_artifacts.fetch()
    source = str(dataset("state", flags.steps, 10, DATA))
    here, there = [], []
    with tempfile.TemporaryDirectory() as home, Cluster(Path(home) / "flink") as cluster:
        on_flink = cluster.options()
        for _ in range(flags.repeats):
            here.append(run(source, DATA / "here", workers=2))
            there.append(run(source, DATA / "there", **on_flink))
    ours, flink = (min(runs, key=lambda phases: phases.working) for runs in (here, there))
    ratio = flink.working / ours.working
    table(
        f"convert --items=pairs, {flags.steps:,} steps, two workers",
        ["", "steps/s at work", "s at work", "s before: start, submission, duplicates", "s after: commit, end"],
        *(
            [name, f"{flags.steps / p.working:,.0f}", f"{p.working:.1f}", f"{p.before:.1f}", f"{p.after:.1f}"]
            for name, p in (("local", ours), ("Flink", flink))
        ),
    )
    print(f"  Flink takes {ratio:.2f} times the time of the local runner at work (target: at most {TARGET})")
    print("  all runs, s at work: " + "; ".join(
        f"{name} {', '.join(f'{p.working:.1f}' for p in runs)}" for name, runs in (("local", here), ("Flink", there))
    ))  # fmt: skip
    return int(ratio > TARGET)


if __name__ == "__main__":
    sys.exit(main())
