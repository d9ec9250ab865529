"""The cost of the progress line: CPU time of conversions with and without it, alternating, and their ratio.

    python benchmarks/progress.py [--episodes=1500] [--runs=4]

Measures CPU time of the command and its workers together: other load changes it less than wall-clock time. The live
line is drawn on a pseudo-terminal.
"""

from __future__ import annotations

import argparse
import os
import pty
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from rlds_beam.testing import make_episode, write_dataset

STEPS = 1000


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1500, help="of 1,000 steps (%(default)s)")
    parser.add_argument("--runs", type=int, default=4, help="of each (%(default)s)")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        episodes = [make_episode(STEPS, seed=i, observation=17) for i in range(flags.episodes)]
        data = write_dataset(Path(home, "data"), episodes, shards=8)
        for workers in (1, 2):
            seconds: dict[str, list[float]] = {"none": [], "auto": []}
            for run in range(flags.runs):
                for kind in sorted(seconds, reverse=run % 2 == 1):
                    seconds[kind].append(convert(data, Path(home, "out"), kind, workers))
            best = {kind: min(found) for kind, found in seconds.items()}
            print(
                f"workers={workers}: none {best['none']:.2f} s, live line {best['auto']:.2f} s of CPU time, "
                f"ratio {best['auto'] / best['none']:.4f}",
                flush=True,
            )


def convert(data: Path, output: Path, kind: str, workers: int) -> float:
    """CPU seconds of a conversion."""
    shutil.rmtree(output, ignore_errors=True)
    master, terminal = pty.openpty()
    threading.Thread(target=drain, args=(master,), daemon=True).start()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "rlds_beam", "convert", data, output, f"--progress={kind}", f"--workers={workers}"],
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        check=True,
        timeout=600,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(terminal)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def drain(master: int) -> None:
    """Reads a terminal to its end."""
    try:
        while os.read(master, 65536):
            pass
    except OSError:
        os.close(master)


if __name__ == "__main__":
    main()
