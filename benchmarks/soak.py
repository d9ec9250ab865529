"""A soak: gigabytes of camera episodes through every job, each once undisturbed and once killed in the middle.

    python benchmarks/soak.py [--gigabytes 20] [--quick] [--short] [--job JOB ...]

Each job is a command with two workers. The undisturbed run gives the figures: whether memory stays flat, and whether
the last gigabytes are as fast as the first. Throughput is also in bytes per processor second, which other load on the
machine hardly changes. Then the job runs again and is killed (SIGKILL to all of its processes) when half of the data
is read, and runs once more. That must give the same counts; `convert` must also keep every finished range, and write
the same bytes as the undisturbed run. The other jobs have no output to resume from: they start over.

Writes soak.json to bench_data/, and removes everything else; a full run also updates docs/figures.json. Needs about 2.3
times the data on the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bulk
import data
import numpy as np
from figures import save
from measuring import COMMAND, DATA, Figure, at_least, below, table

from rlds_beam.encoding.tfds.rlds_dataset import default_schema, encode_example
from rlds_beam.episodes.episode import Episode
from rlds_beam.testing import make_episode

GIGA = 10**9
FULL = 20
"""Gigabytes of a run that updates docs/figures.json."""
SHARD = GIGA // 4
"""Bytes of a shard."""
WORKERS = 2
LOOK = 0.1
"""Seconds between two samples."""
FLAT, STEADY = 1.1, 0.9
"""Targets: memory and bytes per processor second of the last quarter, divided by those of the first."""
FILLING = {"stats": 1.3, "report": 1.3}
"""Higher targets: each worker keeps the first 262,144 values of a dimension, for exact quantiles."""

JOBS: dict[str, tuple[str, ...]] = {
    "check": ("check", "--rules", "{data}"),
    "stats": ("stats", "{data}"),
    "rlds": ("convert", "{data}", "{output}", "--to=rlds"),
    "lerobot": ("convert", "{data}", "{output}", "--to=lerobot", "--fps=10"),
    "report": ("report", "{data}", "--output={output}.html"),
}
COUNTS = ("records", "valid", "episodes", "steps", "bytes")


class SoakError(Exception):
    """A job failed, or did something wrong."""


def episodes(short: bool) -> Iterator[Episode]:
    """Endless episodes with 4 cameras, whose frames are drawn from a pool.

    They have 50 to 150 steps and images of 256x256, or if they are short, 5 steps and 64x64.
    """
    size, lengths = (64, (5, 6)) if short else (256, (50, 151))
    pool = [data.camera("jpeg", camera, size) for camera in range(data.CAMERAS)]
    number = 0
    while True:
        rng = np.random.default_rng(number)
        length = int(rng.integers(*lengths))
        cameras = {f"observation/image_{i}": one[rng.integers(0, len(one), length)] for i, one in enumerate(pool)}
        yield make_episode(length, seed=number, observation={"state": 7}, action=7, columns=cameras)
        number += 1


def generate(home: Path, gigabytes: float, short: bool) -> tuple[Path, dict[str, int]]:
    """The dataset, and what a job must count in it."""
    counts = dict.fromkeys(COUNTS, 0)

    def payloads() -> Iterator[bytes]:
        for episode in episodes(short):
            payload = encode_example(episode, schema)
            for name, more in zip(COUNTS, (1, 1, 1, len(episode), len(payload)), strict=True):
                counts[name] += more
            yield payload

    first = next(episodes(short))
    schema = default_schema(first)
    shards = max(4, round(gigabytes * GIGA / SHARD))
    return bulk.write(home, "soak", first, payloads(), [gigabytes * GIGA / shards] * shards), counts


@dataclasses.dataclass(frozen=True)
class Sample:
    """A job at one moment: seconds since 1970, bytes read, processor seconds, and MB of memory in use.

    Memory is the proportional set size of all processes: pages that several share count once.
    """

    seconds: float
    bytes: int
    processor: float
    memory: float


class Processes:
    """The processes of a job, which is the leader of its session."""

    def __init__(self, leader: int):
        self._leader = leader
        self._seconds: dict[int, float] = {}

    def living(self) -> Iterator[int]:
        """Updates the processor time of every process, and gives its id."""
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                fields = Path(f"/proc/{int(entry)}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self._leader and fields[0] != "Z":
                    ticks = int(fields[11]) + int(fields[12])
                    self._seconds[int(entry)] = ticks / os.sysconf("SC_CLK_TCK")
                    yield int(entry)

    def measure(self) -> tuple[float, float]:
        """(processor seconds, MB)."""
        kilobytes = sum(map(_kilobytes, self.living()))
        return sum(self._seconds.values()), kilobytes / 1024


def _kilobytes(process: int) -> int:
    with contextlib.suppress(OSError):  # It has just ended.
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


class Reads:
    """The bytes that the processes of a command have read, those that ended included."""

    def __init__(self, processes: Processes):
        self._processes = processes
        self._seen: dict[int, int] = {}

    def look(self) -> int:
        for process in self._processes.living():
            with contextlib.suppress(OSError, ValueError):  # It has just ended.
                read = Path(f"/proc/{process}/io").read_text().partition("rchar:")[2].split()[0]
                self._seen[process] = int(read)
        return sum(self._seen.values())


@dataclasses.dataclass(frozen=True)
class Run:
    """A command that ended: its samples and the JSON that it printed (none if it was killed)."""

    samples: list[Sample]
    content: dict[str, Any]

    @property
    def report(self) -> dict[str, Any]:
        """The job's counts."""
        return dict(self.content["reports"][0] if "reports" in self.content else self.content)


def run(arguments: list[str], home: Path, kill_at: float = float("inf")) -> Run:
    """Runs a command until it ends, or kills all its processes as soon as it has read `kill_at` bytes."""
    scratch = Path(tempfile.mkdtemp(dir=home))
    command = [str(COMMAND), *arguments, "--json", f"--workers={WORKERS}", "--progress=none"]
    samples: list[Sample] = []
    with open(scratch / "out", "w+") as out, open(scratch / "err", "w+") as err:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=err,
            cwd=home,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        processes = Processes(process.pid)
        reads = Reads(processes)
        try:
            while process.poll() is None:
                done = reads.look()
                samples.append(Sample(time.time(), done, *processes.measure()))
                if done >= kill_at:
                    return Run(samples, {})
                time.sleep(LOOK)
            out.seek(0)
            err.seek(0)
            if process.returncode:
                raise SoakError(f"{' '.join(command)} ended with {process.returncode}: {err.read()[-2000:]}")
            if kill_at < float("inf"):
                raise SoakError(f"{' '.join(command)} ended before it was killed: use more --gigabytes")
            return Run(samples, json.loads(out.read()))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            while list(processes.living()):
                time.sleep(0.01)
            shutil.rmtree(scratch)


def pieces(samples: list[Sample], count: int) -> list[tuple[float, float]]:
    """Cuts the work into equal pieces: (MB a second, MB a processor second) of each.

    Work begins when the first data was read, and ends with the last: start-up and completion do not count.
    """
    read = np.array([sample.bytes for sample in samples])
    begin, end = int(np.argmax(read > 0)), int(np.argmax(read == read[-1]))
    working = samples[begin : end + 1]
    bounds = np.linspace(read[begin], read[end], count + 1)
    columns = [
        np.diff(np.interp(bounds, read[begin : end + 1], [getattr(sample, name) for sample in working]))
        for name in ("seconds", "processor")
    ]
    size = (read[end] - read[begin]) / count / 10**6
    return [(size / wall, size / processor) for wall, processor in zip(*columns, strict=True)]


def memory(samples: list[Sample]) -> list[list[float]]:
    """The MB of each sample while the first, ..., the last quarter of the data was read, and after that."""
    total, found = samples[-1].bytes, [[] for _ in range(5)]  # type: list[list[float]]
    for sample in samples:
        if sample.bytes:
            found[4 * sample.bytes // total].append(sample.memory)
    return found


def soak(name: str, source: Path, home: Path, counts: dict[str, int]) -> dict[str, Any]:
    """Runs a job undisturbed, then killed and again; returns what was measured."""
    output = home / "output"
    arguments = [part.format(data=source, output=output) for part in JOBS[name]]
    try:
        whole = run(arguments, home)
        check_counts(name, whole, counts)
        manifest = _manifest(output)
        remove(output)
        killed = run(arguments, home, counts["bytes"] / 2)
        kept = finished(output)
        again = run(arguments, home)
        check_counts(name, again, counts)
        if _manifest(output) != manifest:
            raise SoakError(f"{name}: a run that was killed wrote other bytes than an undisturbed one")
        check_kept(name, output, kept, again, counts)
    finally:
        remove(output)
    parts, quarters, held = pieces(whole.samples, 20), pieces(whole.samples, 4), memory(whole.samples)
    return {
        "job": name,
        "seconds": round(whole.samples[-1].seconds - whole.samples[0].seconds, 1),
        "processor_seconds": round(whole.samples[-1].processor, 1),
        "megabytes_per_second": [round(wall, 1) for wall, _ in parts],
        "megabytes_per_processor_second": [round(processor, 1) for _, processor in parts],
        "quarters_megabytes_per_second": [round(wall, 1) for wall, _ in quarters],
        "quarters_megabytes_per_processor_second": [round(processor, 1) for _, processor in quarters],
        "memory_mb": [round(statistics.median(some), 1) for some in held[:4]],
        "peak_memory_mb": [round(max(some), 1) for some in held if some],
        "killed_at_bytes": killed.samples[-1].bytes,
        "parts_kept": len(kept),
    }


def check_counts(name: str, one: Run, counts: dict[str, int]) -> None:
    """Raises SoakError unless the job counted what was generated."""
    found = {key: one.report[key] for key in COUNTS}
    if found != counts:
        raise SoakError(f"{name} counted {found}, but {counts} were generated")


def finished(output: Path) -> dict[str, tuple[int, int]]:
    """Finished range -> its steps, and the inode of its file, which changes if it is written again."""
    found = {}
    for path in sorted(output.glob("_commits/*.json")):
        commit = json.loads(path.read_text())
        file = next(file["file"] for file in commit["files"] if file["role"] != "temporary")
        found[path.name] = (commit["report"]["steps"], (output / file).stat().st_ino)
    return found


def check_kept(name: str, output: Path, kept: dict[str, tuple[int, int]], again: Run, counts: dict[str, int]) -> None:
    """Raises SoakError if a range that was finished before the kill was done again."""
    if "convert" not in JOBS[name]:
        return
    now = finished(output)
    if not kept or any(now.get(part) != state for part, state in kept.items()):
        raise SoakError(f"{name}: of {len(kept)} ranges finished before the kill, some were written again")
    steps = counts["steps"] - sum(steps for steps, _ in kept.values())
    if again.content["steps_this_run"] != steps:
        raise SoakError(f"{name}: did {again.content['steps_this_run']} steps after the kill instead of {steps}")


def _manifest(output: Path) -> str:
    """The manifest, which holds the checksums of all files; empty without one."""
    path = output / "manifest.json"
    return path.read_text() if path.exists() else ""


def remove(output: Path) -> None:
    shutil.rmtree(output, ignore_errors=True)
    output.with_suffix(".html").unlink(missing_ok=True)


def figures(found: dict[str, Any], gigabytes: float) -> list[Figure]:
    """The last quarter, and the completion after it, compared with the first quarter."""
    name, held, peaks = found["job"], found["memory_mb"], found["peak_memory_mb"]
    rates = found["quarters_megabytes_per_processor_second"]
    job, quarters = f"`{JOBS[name][0]}{f' --to={name}' * ('convert' in JOBS[name])}`", "the first quarter"
    return [
        below(
            f"soak, {name}, memory: times the first quarter",
            held[3] / held[0],
            FILLING.get(name, FLAT),
            what=f"memory of {job} in the last quarter of {gigabytes:g} GB",
            against=quarters,
        ),
        below(
            f"soak, {name}, memory at the end: times the first quarter",
            max(peaks) / peaks[0],
            None,
            what=f"highest memory of {job}, completion included",
            against=quarters,
        ),
        at_least(
            f"soak, {name}, bytes per processor second: of the first quarter",
            rates[3] / rates[0],
            STEADY,
            what=f"bytes a processor second of {job} in the last quarter of {gigabytes:g} GB",
            against=quarters,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--gigabytes",
        type=float,
        default=FULL,
        help=f"size of the data (default: {FULL}); the first quarter of a few is mostly start-up",
    )
    parser.add_argument("--quick", action="store_true", help="one gigabyte; docs/figures.json stays as it is")
    parser.add_argument(
        "--short",
        action="store_true",
        help="short episodes, 20,000 a gigabyte: shows what a job keeps of each; docs/figures.json stays as it is",
    )
    parser.add_argument("--job", action="append", choices=JOBS, help="only this one; may be repeated (default: all)")
    args = parser.parse_args()
    gigabytes = 1 if args.quick else args.gigabytes
    DATA.mkdir(exist_ok=True)
    if shutil.disk_usage(DATA).free < 2.3 * gigabytes * GIGA:
        sys.exit(f"{DATA}: {2.3 * gigabytes:.0f} GB must be free, for the data and one output")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = []
    with tempfile.TemporaryDirectory(dir=DATA, prefix="soak-") as room:
        home = Path(room)
        source, counts = generate(home, gigabytes, args.short)
        for name in args.job or JOBS:
            results.append(soak(name, source, home, counts))
            print(json.dumps(results[-1]), flush=True)
    rows = []
    for found in results:
        wall, processor = (found[f"megabytes_per_{unit}"] for unit in ("second", "processor_second"))
        cells = [wall[0], wall[-1], processor[0], processor[-1], found["memory_mb"][0], found["memory_mb"][3]]
        rows.append([found["job"], *(f"{value:,.0f}" for value in (*cells, max(found["peak_memory_mb"])))])
    head = ["", "MB/s, first", "last", "MB/CPU s, first", "last", "MB held, first quarter", "last", "peak"]
    title = f"{gigabytes:g} GB, {counts['records']:,} episodes, {WORKERS} workers: the first and the last 20th"
    table(title, head, *rows)
    measured = [figure for found in results for figure in figures(found, gigabytes)]
    table(
        "summary",
        ["", "target", "measured", ""],
        *([f.name, f.target_text, f"{f.measured:.2f}", f.verdict] for f in measured),
    )
    content = {"gigabytes": gigabytes, "counts": counts, "jobs": results}
    (DATA / "soak.json").write_text(json.dumps(content, indent=2) + "\n")
    if gigabytes >= FULL and not args.short:
        save("soak.py", measured)
    return int(any(figure.verdict == "MISSED" for figure in measured) and not args.quick)


if __name__ == "__main__":
    sys.exit(main())
