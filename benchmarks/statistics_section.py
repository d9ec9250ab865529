"""`stats` beside `validate`, which reads and checks the same data, and beside Octo's and OpenVLA's loop."""

from __future__ import annotations

import json
import time
from pathlib import Path

from measuring import COMMAND, Figure, Measurement, Sizes, at_least, best, command, make, script, table


def statistics(sizes: Sizes) -> list[Figure]:
    """Half-cheetah episodes. Our rates are those of the last 80 % of the data: the clock of a run of all of it, less
    that of a run of a fifth."""
    steps = sizes.of(2_000_000, 500_000)
    data, small = make("state", steps), make("state", steps // 5)
    seconds: dict[tuple[str, Path], list[float]] = {}
    peers: list[Measurement] = []
    for _ in range(sizes.repeats):
        peers.append(script("statistics_peer.py", small))
        for name in ("stats", "validate"):
            for directory in (data, small):
                seconds.setdefault((name, directory), []).append(_seconds(name, directory))
    peer = best(peers)
    rates = {
        name: steps * 0.8 / (min(seconds[name, data]) - min(seconds[name, small])) for name in ("stats", "validate")
    }
    table(
        f"statistics, half-cheetah, {steps:,} steps, one worker",
        ["", "steps/s", "ratio"],
        ["Octo's and OpenVLA's loop", f"{peer.rate:,.0f}", ""],
        *([f"ours, {name}", f"{rate:,.0f}", f"{rate / peer.rate:,.1f}"] for name, rate in rates.items()),
    )
    return [
        at_least("stats: times Octo's and OpenVLA's loop", rates["stats"] / peer.rate, 20),
        at_least("stats: of validate", rates["stats"] / rates["validate"], 0.6),
    ]


def _seconds(name: str, directory: Path) -> float:
    began = time.perf_counter()
    json.loads(command([COMMAND, name, directory, "--json", "--workers=1"])[0])
    return time.perf_counter() - began
