"""Damages a small dataset of each source, and reads it as the product and as the format's own library do.

    python tests/support/fuzz.py --format=hdf5 --mutations=5000 --seed=0

reads 5,000 damaged copies of the datasets of a format (all by default) in a child process with bounded memory and time,
and prints a table and what it found. `--case=NUMBER` repeats one mutation of a dataset and keeps the damaged files.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from fuzzed_datasets import DATASETS
from processes import DEADLINE, start

SECONDS = 30.0
"""Processor time that a step of a mutation may take."""

Facts = dict[str, Any]


def fuzz(
    names: Sequence[str], mutations: int, seed: str, directory: Path, seconds: float = SECONDS, first: int = 0
) -> Iterator[Facts]:
    """Yields what happened to each mutation; a child that ends or hangs is a problem, and is replaced."""
    jobs = [(name, first, first + mutations) for name in names]
    directory.mkdir(parents=True, exist_ok=True)
    child = [sys.executable, str(Path(__file__).with_name("fuzz_child.py")), str(directory), seed]
    while jobs:
        last: Facts = {}
        with start([*child, json.dumps(jobs)], text=False, bufsize=0) as process:
            try:
                for last in _lines(process, seconds):
                    if "step" not in last:
                        yield last
                    if last.get("done"):
                        return
                wrong = f"the process ended with {process.wait(DEADLINE)}"
            except TimeoutError as error:
                wrong = str(error)
        if last.get("name") is None:
            raise RuntimeError(f"the child has no dataset: {wrong}")
        step = last.pop("step", "")
        yield (
            {**last, "outcome": "its own reader died"} if step == "compare" else {**last, "problem": f"{step}: {wrong}"}
        )
        while jobs[0][0] != last["name"]:
            jobs.pop(0)
        name, _, stop = jobs.pop(0)
        if "case" in last and last["case"] + 1 < stop:
            jobs.insert(0, (name, last["case"] + 1, stop))


def _lines(process: Any, seconds: float) -> Iterator[Facts]:
    """Raises TimeoutError if a line takes the process more time of a processor, or ten times that of waiting."""
    waiting = b""
    while True:
        used, deadline = _processor_seconds(process.pid), time.monotonic() + 10 * seconds
        while b"\n" not in waiting:
            if select.select([process.stdout], [], [], 1)[0]:
                if not (read := os.read(process.stdout.fileno(), 1 << 16)):
                    return
                waiting += read
            elif time.monotonic() > deadline or _processor_seconds(process.pid) > used + seconds:
                raise TimeoutError("not done in time")
        line, _, waiting = waiting.partition(b"\n")
        yield json.loads(line)


def _processor_seconds(pid: int) -> float:
    """The processor time that a process has used, which other work on the machine does not change."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def of_format(name: str) -> list[str]:
    """The datasets of a format."""
    return [key for key in DATASETS if key == name or (key.startswith(f"{name}_") and name != "merged")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", default="", help="a format or dataset (default: all datasets)")
    parser.add_argument("--mutations", type=int, default=100, help="of a format, shared by its datasets")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--case", type=int, help="only this mutation of a dataset; keeps its directory")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="processor time of a step")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the table is printed, also after `timeout`
    names = of_format(options.format) if options.format else list(DATASETS)
    if options.case is not None:
        names = [options.format]
    each = 1 if options.case is not None else max(1, options.mutations // max(1, len(names)))
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    readers: collections.Counter[str] = collections.Counter()
    problems = 0
    root = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        for facts in fuzz(names, each, options.seed, root, options.seconds, options.case or 0):
            if facts.get("problem"):
                problems += 1
                print(json.dumps(facts, indent=1), flush=True)
            if "compared" in facts:
                print(f"{facts['name']}: compares {', '.join(facts['compared']) or 'nothing'}", flush=True)
            elif "name" in facts:
                counts[facts["name"]]["problem" if "problem" in facts else facts["outcome"]] += 1
                if facts.get("reader"):
                    readers[f"{facts['name']}: {facts['reader'][:60]}"] += 1
    except KeyboardInterrupt:
        print("interrupted")
    finally:
        if options.case is None:
            shutil.rmtree(root, ignore_errors=True)
        else:
            print(root)
    for name, counted in counts.items():
        print(f"{name:24}", ", ".join(f"{count} {outcome}" for outcome, count in sorted(counted.items())))
    for refused, count in readers.most_common(40):
        print(f"the format's own reader refuses what is read: {count} x {refused}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
