"""How loading scales with cores: `python benchmarks/scaling.py FOLDER [--threads 1 2 4 8 16]`.

FOLDER is one that `run.py loading` prepared (bench_data/loading_10000). Each loader runs alone with as many threads
(LeRobot: worker processes) as --threads says. Ours also runs as two and four processes that share these threads, as the
ranks of a training job do: what they reach together and one process does not is lost to Python's lock. Prints a table
and JSON. For LeRobot, run it with the Python of .venv-peers-loading.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from measuring import table

PEER = Path(__file__).resolve().parent / "peers" / "loading_peer.py"
LOADERS = {
    "bare": "bare loop: read, decode, resize",
    "batches rlds": "batches, RLDS as TFRecord",
    "batches lerobot_images": "batches, LeRobot with JPEGs",
    "lerobot images": "LeRobot, JPEGs",
}
SPLIT = "batches rlds"
"""The loader that also runs in several processes."""


def measure(
    loader: str, sample: str, folder: Path, threads: int, processes: int, seconds: float
) -> dict[str, float] | None:
    """Samples per second of all processes together, and the processor time of a sample; None if it cannot run here."""
    arguments = [loader, sample, str(folder), f"--workers={threads // processes}", f"--seconds={seconds}"]
    running = [subprocess.Popen([sys.executable, PEER, *arguments], stdout=subprocess.PIPE) for _ in range(processes)]
    printed = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        return None
    found = [json.loads(text.splitlines()[-1]) for text in printed]
    return {
        "rate": sum(one["steps_per_second"] for one in found),
        "processor_ms": sum(one["processor_ms"] for one in found) / processes,
        "memory_mb": sum(one["memory_mb"] for one in found),
    }


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    args = parser.parse_args()
    threads = [n for n in args.threads if n <= (os.cpu_count() or 1)]
    cases = [(name, 1) for name in LOADERS] + [(SPLIT, n) for n in (2, 4) if n <= max(threads)]
    result = []
    for sample in ("plain", "policy"):
        rows = []
        for name, processes in cases:
            label = LOADERS[name] + (f", {processes} processes" if processes > 1 else "")
            measured = {}
            for n in threads:
                if n < processes or (found := measure(name, sample, args.folder, n, processes, args.seconds)) is None:
                    continue
                measured[n] = found
                result.append({"loader": name, "sample": sample, "threads": n, "processes": processes, **found})
            if not measured:
                print(f"{label}: skipped, it cannot run here")
                continue
            last = measured[max(measured)]
            rates = [f"{measured[n]['rate']:,.0f}" if n in measured else "" for n in threads]
            rows.append([label, *rates, f"{last['processor_ms']:.2f}", f"{last['memory_mb']:,.0f}"])
        table(f"{sample}: samples/s", ["threads", *map(str, threads), "ms of a core", "MB"], *rows)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
