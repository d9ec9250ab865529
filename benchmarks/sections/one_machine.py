"""The sections of one machine: skewed input, and memory."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import COMMAND, DATA, HERE, Figure, Sizes, at_least, below, make, table

OUTPUT = DATA / "one_machine"


@dataclasses.dataclass(frozen=True)
class Run:
    """One command.

    Attributes:
      wall: seconds, including start-up.
      peak_mb: peak memory of the largest process.
      content: the JSON it printed.
    """

    wall: float
    peak_mb: float
    content: dict[str, Any]


def run(*arguments: Any) -> Run:
    """Runs a job; ends the benchmark if it fails."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    command = [str(argument) for argument in (COMMAND, *arguments, "--json")]
    with tempfile.TemporaryFile("w+") as out:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, cwd=DATA)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{' '.join(command)}\nended with {process.returncode}")
        out.seek(0)
        content = json.loads(out.read())
    return Run(wall, usage.ru_maxrss / 1024, content)


def bulk(name: str, sizes: str, episode: str = "state") -> Path:
    """The directory of a large dataset, generated if needed and read once, so that it is cached for all runs."""
    arguments = [sys.executable, HERE / "bulk.py", name, sizes, f"--episode={episode}", "--into", DATA]
    printed = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, check=True).stdout
    path = Path(printed.strip())
    for file in path.iterdir():
        with open(file, "rb", buffering=0) as content:  # piece by piece: a child's peak begins with our size
            while content.read(1 << 20):
                pass
    return path


def skew(sizes: Sizes) -> list[Figure]:
    """One huge shard, and 2,000 tiny ones, against an even dataset of the same size; two workers against one."""
    mega = sizes.of(1_000, 100)
    layouts = {
        "one shard": f"1x{mega}",
        "2,000 shards": f"2000x{mega / 2000}",
        "32 shards": f"32x{mega / 32}",
    }
    rows, rates, figures = [], {}, []
    for name, layout in layouts.items():
        source = bulk(f"skew_{mega}_{name.replace(' ', '_').replace(',', '')}", layout)
        for count in (1, 2):
            one = min(
                (run("convert", source, OUTPUT, "--items=frames", f"--workers={count}") for _ in range(sizes.repeats)),
                key=lambda one: one.content["working_seconds"],
            )
            rates[name, count] = one.wall
            working = one.content["working_seconds"]
            rows.append([f"{name}, {count} worker(s)", f"{one.wall:.1f}", f"{working:.1f}"])
        shutil.rmtree(OUTPUT, ignore_errors=True)
        figures.append(Figure(f"skew, {name}: one worker's seconds over two's", rates[name, 1] / rates[name, 2]))
    for name in list(layouts)[:2]:
        what, speed = f"speed of `convert` on {mega:,} MB in {name}", rates["32 shards", 2] / rates[name, 2]
        title = f"skew, {name}: of an even dataset's speed"
        figures.append(at_least(title, speed, 0.8, what=what, against="32 even shards"))
    head = ["", "seconds", "at work s"]
    table(f"skewed input: {mega:,} MB of state episodes into frames", head, *rows)
    return figures


def bounds(sizes: Sizes) -> list[Figure]:
    """Memory: one shard of 4 GB, and an episode of 300 MB."""
    shard = bulk("memory_shard", f"1x{sizes.of(4_096, 256)}")
    small = run("convert", make("state", 2_000), OUTPUT, "--items=frames", "--workers=1")
    large = run("convert", shard, OUTPUT, "--items=frames", "--workers=1", "--shards=1", "--accept=duplicate_episode")
    shutil.rmtree(OUTPUT)
    shutil.rmtree(shard.parent)
    huge = bulk("memory_episode", "1x1", "huge")
    size = sum(file.stat().st_size for file in huge.glob("*.tfrecord*")) / 2**20
    rows = [
        ["next to nothing", f"{small.peak_mb:.0f}", ""],
        ["one shard, one range", f"{large.peak_mb:.0f}", ""],
    ]
    for name, flags in {
        "frames": ["--items=frames"],
        "one item": ["--items=episodes"],
        "frames, kept as images": ["--items=frames", "--images=jpeg"],
    }.items():
        peak = run("convert", huge, OUTPUT, "--workers=1", *flags).peak_mb
        rows.append([f"an episode of {size:.0f} MB, {name}", f"{peak:.0f}", f"{(peak - small.peak_mb) / size:.1f}"])
    shutil.rmtree(OUTPUT)
    peak = run("check", "--rules", huge, "--workers=1").peak_mb
    rows.append([f"an episode of {size:.0f} MB, check --rules", f"{peak:.0f}", f"{(peak - small.peak_mb) / size:.1f}"])
    table("memory of a process", ["", "MB", "times the episode"], *rows)
    what = f"memory of `convert --shards=1`, a shard of {sizes.of(4_096, 256) / 1024:g} GB"
    ratio = large.peak_mb / small.peak_mb
    return [
        below("memory: a shard of gigabytes over next to nothing", ratio, 1.2, what=what, against="a shard of 0.2 MB")
    ]
