"""Costs of jobs on images: `rates.py` calls `measure`, and `cost.py` prints what follows.

Measures whole ranges in processor time. Videos are encoded in the environment of `make test-peers`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import benchmarks_path  # noqa: F401
from measuring import DATA, HERE, Sizes, command, make

BIN = HERE.parent / ".venv-peers-lerobot" / "bin"


class Job(NamedTuple):
    """A conversion.

    Attributes:
      kind: the kind of data (`data.py`).
      steps: its steps, and those of a quick run.
      options: the conversion's options.
      python: the interpreter that runs it in its own process.
    """

    kind: str
    steps: tuple[int, int]
    options: dict[str, Any]
    python: Path = Path(sys.executable)


JOBS = {
    "--to=lerobot": Job("jpeg256", (2_000, 200), {"to": "lerobot", "fps": 10}),
    "--to=lerobot --images=video": Job(
        "jpeg256", (200, 100), {"to": "lerobot", "fps": 10, "images": "video"}, BIN / "python"
    ),
    "--to=rlds": Job("jpeg256", (2_000, 200), {"to": "rlds"}),
    "--to=rlds, resized": Job("jpeg480", (200, 100), {"to": "rlds", "connectors": str(DATA / "resize.json")}),
}


def measure(sizes: Sizes) -> dict[str, Any]:
    """By job: input and output bytes per step, and microseconds of a core."""
    (DATA / "resize.json").write_text(json.dumps(["ResizeImages"]))
    found = {}
    for name, job in JOBS.items():
        data = make(job.kind, sizes.of(*job.steps))
        if job.python.exists():
            printed, _ = command(
                [job.python, HERE / "rates/job_rates.py", data, json.dumps(job.options), sizes.repeats]
            )
            found[name] = json.loads(printed.splitlines()[-1])
    return found


def once(data: str, options: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Measures one job: the best of several runs after a warm-up."""
    from rlds_beam.checking.duplicates import scan
    from rlds_beam.jobs.convert import prepare
    from rlds_beam.jobs.options import ConvertOptions
    from rlds_beam.output.commits import read_commits

    best = float("inf")
    for _ in range(repeats + 1):
        with tempfile.TemporaryDirectory(dir=DATA) as home:
            job = prepare(ConvertOptions.create(data, f"{home}/out", **options))
            job.open()
            began = time.process_time()
            for work in job.ranges:
                job.converter.convert(work, {})
            best = min(best, time.process_time() - began)
            commits = read_commits(job.directory).values()
            output = sum(one.shard.bytes for commit in commits for one in commit.files if one.role != "temporary")
            steps = sum(commit.report["steps"] for commit in commits)
            source = job.source.size
    began = time.process_time()
    for i, segment in enumerate(segment for work in job.ranges for segment in work.segments):
        scan(job.source.files, i, segment)
    look = 1e6 * (time.process_time() - began) / steps
    return {
        "input_bytes": source / steps, "output_bytes": output / steps, "pixels": 0.0,
        "cpu_us": {"whole": 1e6 * best / steps, "duplicates": look},
    }  # fmt: skip


if __name__ == "__main__":
    from rlds_beam.runners.kernels import choose_kernels

    choose_kernels()  # as the command does, before numpy is imported
    print(json.dumps(once(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]))))
