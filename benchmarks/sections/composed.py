"""The pipeline of public transforms against `convert`, which writes the same items with a DoFn for each range."""

from __future__ import annotations

import resource
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from measuring import COMMAND, DATA, Figure, Sizes, at_least, command, make, ratios, table

OUTPUT = DATA / "composed"
PIPELINES = {
    "convert": [COMMAND, "convert", "{data}", OUTPUT, "--items=pairs", "--workers=1"],
    "composed": [
        sys.executable,
        "-m",
        "rlds_beam.pipelines.rlds_to_trajectories",
        "--runner=FnApiRunner",
        "--input={data}",
        f"--output={OUTPUT}",
    ],
}


def composed(sizes: Sizes) -> list[Figure]:
    """Half-cheetah episodes into pairs, on one worker: two sizes of data show the processor time without start-up."""
    steps = sizes.of(2_000_000, 400_000)
    small, large = make("state", steps // 5), make("state", steps)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in PIPELINES}
    for _ in range(sizes.repeats):
        for name, arguments in PIPELINES.items():
            seconds[name].append((_processor_seconds(arguments, small), _processor_seconds(arguments, large)))
    rates = {name: [0.8 * steps / (more - less) for less, more in found] for name, found in seconds.items()}
    start_up = {name: [less - (more - less) / 4 for less, more in found] for name, found in seconds.items()}
    ratio = statistics.median(ratios(rates["composed"], rates["convert"]))
    table(
        f"{steps:,} half-cheetah steps into pairs, one worker: processor time",
        ["", "steps/s", "start-up s"],
        *([n, f"{statistics.median(rates[n]):,.0f}", f"{statistics.median(start_up[n]):.1f}"] for n in PIPELINES),
    )
    return [
        at_least(
            "composed pipeline: of convert",
            ratio,
            0.9,
            against="`convert --items=pairs`",
            what="`rlds_beam.pipelines.rlds_to_trajectories`, processor time after start-up",
            runs=ratios(rates["composed"], rates["convert"]),
        )
    ]


def _processor_seconds(arguments: list[Any], data: Path) -> float:
    """The user and system time of a command and its children, writing into an empty directory."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command([str(argument).format(data=data) for argument in arguments])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
