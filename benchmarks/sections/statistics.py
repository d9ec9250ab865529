"""`stats` against `validate`, which reads and checks the same data, and against Octo's and OpenVLA's loop."""

from __future__ import annotations

import json
import time
from pathlib import Path

from measuring import COMMAND, Figure, Measurement, Sizes, at_least, best, command, make, script, table

LOOP = {"against": "Octo's and OpenVLA's loop over `tf.data` on all cores", "peer": "Octo's and OpenVLA's loop"}


def statistics(sizes: Sizes) -> list[Figure]:
    """Half-cheetah episodes, and robot episodes with 4 cameras, whose images the peer does not decode.

    Our rates cover the last 80% of the data: the time of a full run minus that of a run over a fifth.
    """
    return [
        *_compared(sizes, "state", "half-cheetah", sizes.of(2_000_000, 500_000), 3.0, 0.2),
        *_compared(sizes, "jpeg", "4 cameras", sizes.of(150_000, 5_000), 0.9, 0.9),
    ]


def _compared(sizes: Sizes, kind: str, name: str, steps: int, times_peer: float, of_validate: float) -> list[Figure]:
    data, small = make(kind, steps), make(kind, steps // 5)
    seconds: dict[tuple[str, Path], list[float]] = {}
    peers: list[Measurement] = []
    for _ in range(sizes.repeats):
        peers.append(script("peers/statistics_peer.py", small))
        for job in ("stats", "validate"):
            for directory in (data, small):
                seconds.setdefault((job, directory), []).append(_seconds(job, directory))
    peer = best(peers)
    rates = {job: steps * 0.8 / (min(seconds[job, data]) - min(seconds[job, small])) for job in ("stats", "validate")}
    table(
        f"statistics, {name}, {steps:,} steps, one worker",
        ["", "steps/s", "ratio"],
        ["Octo's and OpenVLA's loop", f"{peer.rate:,.0f}", ""],
        *([f"ours, {job}", f"{rate:,.0f}", f"{rate / peer.rate:,.1f}"] for job, rate in rates.items()),
    )
    return [
        at_least(f"stats, {name}: times Octo's and OpenVLA's loop", rates["stats"] / peer.rate, times_peer, **LOOP),
        at_least(f"stats, {name}: of validate", rates["stats"] / rates["validate"], of_validate),
    ]


def _seconds(name: str, directory: Path) -> float:
    began = time.perf_counter()
    json.loads(command([COMMAND, name, directory, "--json", "--workers=1"])[0])
    return time.perf_counter() - began
