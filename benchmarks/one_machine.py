"""The sections of one machine: what each kind of job takes a core, skewed input, and memory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measuring import COMMAND, DATA, HERE, Figure, Sizes, at_least, below, make, table

OUTPUT = DATA / "converted"


@dataclasses.dataclass(frozen=True)
class Run:
    """One command, by both clocks.

    Attributes:
      wall: seconds, start-up included.
      cpu: seconds that its processes had a core, start-up included: neighbours do not count in it.
      peak_mb: of the largest of them.
      content: the JSON that it printed.
    """

    wall: float
    cpu: float
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
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, content)


def bulk(name: str, sizes: str, episode: str = "state") -> Path:
    """The directory of a large dataset, which is laid out if it is not there yet; read once, so that all have it."""
    arguments = [sys.executable, HERE / "bulk.py", name, sizes, f"--episode={episode}", "--into", DATA]
    printed = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, check=True).stdout
    path = Path(printed.strip())
    for file in path.iterdir():
        file.read_bytes()
    return path


def rates(sizes: Sizes) -> list[Figure]:
    """Seconds of one core a MB of input, by kind of job; and what worker processes take to start (`cost.py`)."""
    tiny = make("state", 2_000)
    data = {"state": make("state", sizes.of(1_000_000, 100_000))}
    data |= {kind: make(kind, sizes.of(4_000, 1_000)) for kind in ("png", "jpeg")}
    convert = {
        "frames": ["--items=frames"],
        "pairs": [],
        "sequences of 16": ["--items=sequences", "--sequence_length=16"],
    }
    jobs = [(kind, "validate", ["validate", source]) for kind, source in data.items()]
    jobs += [(kind, name, ["convert", source, OUTPUT, *flags]) for kind, source in data.items()
             for name, flags in convert.items() if kind == "state" or name != "sequences of 16"]  # fmt: skip
    start = {count: _start(tiny, count, sizes.repeats) for count in (1, 2)}
    rows = []
    for kind, name, arguments in jobs:
        rows.append([f"{kind}, {name}", *_rate(arguments, data[kind], start[1].cpu, sizes.repeats)])
    with _server(data["state"]) as address:
        push = ["push", data["state"], f"--reverb={address}", "--table=replay", "--allow_eviction"]
        tiny_push = min(run(*push, "--workers=1", "--split=train[:1]").cpu for _ in range(sizes.repeats))
        rows.append(["state, push (the client alone)", *_rate(push, data["state"], tiny_push, sizes.repeats)])
    table("one core's seconds a MB of input, start-up apart", ["", "MB", "s/MB"], *rows)
    late = start[2].wall - start[1].wall
    once = f"{start[1].wall:.1f} s ({start[1].cpu:.1f} s of a core)"
    print(f"  A job of no size: {once}, with two workers {late:.1f} s more")
    return [Figure("start-up of two workers: seconds more", late)]


def _start(tiny: Path, count: int, repeats: int) -> Run:
    return min((run("convert", tiny, OUTPUT, f"--workers={count}") for _ in range(repeats)), key=lambda one: one.wall)


def _rate(arguments: list[Any], source: Path, start: float, repeats: int) -> list[str]:
    size = sum(file.stat().st_size for file in source.glob("*.tfrecord*")) / 1e6
    cpu = min(run(*arguments, "--workers=1").cpu for _ in range(repeats))
    return [f"{size:,.0f}", f"{max(0.0, cpu - start) / size:.4f}"]


@contextlib.contextmanager
def _server(like: Path) -> Iterator[str]:
    """A Reverb server for the time of the block; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [COMMAND, "serve", f"--like={like}", "--tables=replay:uniform:2000000", f"--port={port}"]
    process = subprocess.Popen([str(a) for a in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)):
            if time.monotonic() > deadline:
                sys.exit("the Reverb server does not start")
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


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
            each = one.content["worker_seconds"]
            uneven = max(each) / (sum(each) / len(each)) - 1
            rates[name, count] = one.wall
            working = one.content["working_seconds"]
            shown = " ".join(f"{seconds:.1f}" for seconds in each)
            rows.append([f"{name}, {count} worker(s)", f"{one.wall:.1f}", f"{working:.1f}", shown, f"{uneven:.1%}"])
            if count == 2:
                figures.append(below(f"skew, {name}: imbalance of two workers, of their mean", uneven, 0.1))
        shutil.rmtree(OUTPUT, ignore_errors=True)
        figures.append(Figure(f"skew, {name}: one worker's seconds over two's", rates[name, 1] / rates[name, 2]))
    for name in list(layouts)[:2]:
        figures.append(
            at_least(f"skew, {name}: of an even dataset's speed", rates["32 shards", 2] / rates[name, 2], 0.8)
        )
    head = ["", "seconds", "at work s", "each worker s", "imbalance"]
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
    for name, flags in {"frames": ["--items=frames"], "one item": ["--items=episodes"],
                        "frames, kept as images": ["--items=frames", "--images=jpeg"]}.items():  # fmt: skip
        peak = run("convert", huge, OUTPUT, "--workers=1", *flags).peak_mb
        rows.append([f"an episode of {size:.0f} MB, {name}", f"{peak:.0f}", f"{(peak - small.peak_mb) / size:.1f}"])
    shutil.rmtree(OUTPUT)
    peak = run("validate", huge, "--workers=1").peak_mb
    rows.append([f"an episode of {size:.0f} MB, validate", f"{peak:.0f}", f"{(peak - small.peak_mb) / size:.1f}"])
    table("memory of a process", ["", "MB", "times the episode"], *rows)
    return [below("memory: a shard of gigabytes over next to nothing", large.peak_mb / small.peak_mb, 1.2)]
