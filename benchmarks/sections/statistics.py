"""`stats` against `check --rules`, which reads and checks the same data, and against Octo's and OpenVLA's loop."""

from __future__ import annotations

import json
import time
from pathlib import Path

from measuring import COMMAND, Figure, Measurement, Sizes, at_least, best, command, make, script, table

JOBS = (("stats", 1), ("check", 1), ("stats", 2))
"""Jobs, with their numbers of workers."""

LOOP = {"against": "Octo's and OpenVLA's loop over `tf.data` on all cores", "peer": "Octo's and OpenVLA's loop"}


def statistics(sizes: Sizes) -> list[Figure]:
    """Half-cheetah episodes, and robot episodes with 4 cameras, whose images the peer does not decode.

    Our rates cover the last 80% of the data: the time of a full run minus that of a run over a fifth.
    """
    return [
        *_compared(sizes, "state", "half-cheetah", sizes.of(10_000_000, 500_000), 0.2),
        *_compared(sizes, "jpeg", "4 cameras", sizes.of(500_000, 5_000), 0.9),
    ]


def _compared(sizes: Sizes, kind: str, name: str, steps: int, of_validate: float) -> list[Figure]:
    data, small = make(kind, steps), make(kind, steps // 5)
    seconds: dict[tuple[str, int, Path], list[float]] = {}
    peers: list[Measurement] = []
    for _ in range(sizes.repeats):
        peers.append(script("peers/statistics_peer.py", small))
        for job, workers in JOBS:
            for directory in (data, small):
                seconds.setdefault((job, workers, directory), []).append(_seconds(job, workers, directory))
    peer = best(peers)
    rates = {job: steps * 0.8 / (min(seconds[(*job, data)]) - min(seconds[(*job, small)])) for job in JOBS}
    table(
        f"statistics, {name}, {steps:,} steps",
        ["", "steps/s", "ratio"],
        ["Octo's and OpenVLA's loop, all cores", f"{peer.rate:,.0f}", ""],
        *(
            [f"ours, {job}, {workers} worker(s)", f"{rate:,.0f}", f"{rate / peer.rate:,.1f}"]
            for (job, workers), rate in rates.items()
        ),
    )
    one, two, rules = rates["stats", 1], rates["stats", 2], rates["check", 1]
    return [
        at_least(f"stats, {name}, 2 workers: times Octo's and OpenVLA's loop", two / peer.rate, 3, **LOOP),
        Figure(f"stats, {name}, 1 worker: times Octo's and OpenVLA's loop", one / peer.rate, **LOOP),
        at_least(f"stats, {name}: of check --rules", one / rules, of_validate),
    ]


def _seconds(name: str, workers: int, directory: Path) -> float:
    began = time.perf_counter()
    json.loads(command([COMMAND, name, directory, "--json", f"--workers={workers}"])[0])
    return time.perf_counter() - began
