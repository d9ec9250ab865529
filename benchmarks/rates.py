"""Measures the cost of converting and of pushing step pairs.

    python benchmarks/rates.py [--quick] [--repeats N] > benchmarks/rates.json

Everything runs in this process, without Beam, in processor time (user and system, all threads), which other load
disturbs little; the best of several runs counts. benchmarks/rates.json is from the last full run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import DATA, Sizes, make
from tables import items_of, make_thumbnails, options_of, servers, target_of

from rlds_beam.jobs.convert import prepare
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.jobs.push import open_input
from rlds_beam.reverb.writer import StreamWriter

KINDS = {"state": (2_000_000, 20_000), "png": (6_000, 200), "jpeg": (20_000, 200), "jpeg256": (1_200, 100)}
"""Steps of each kind of data (`data.py`) in a full and a quick run: enough to exceed the caches."""


def convert(data: Path, images: str) -> dict[str, float]:
    """Bytes of a step in the input and in step pairs, and microseconds of a core to convert it."""
    with tempfile.TemporaryDirectory(dir=DATA) as home:
        options = ConvertOptions.create(str(data), f"{home}/out", images=images, repair=("missing_is_last",))
        job = prepare(options)
        job.open()
        began, steps = time.process_time(), 0
        for work in job.ranges:
            steps += job.converter.convert_range(work, {}).report.steps
        seconds = time.process_time() - began
        output = sum(p.stat().st_size for p in Path(job.directory).glob("*.tfrecord-*") if p.suffix != ".spec")
        return {"input_bytes": job.source.size / steps, "output_bytes": output / steps, "cpu_us": 1e6 * seconds / steps}


def push(data: Path) -> dict[str, float]:
    """Microseconds to push a step pair to a server on this machine."""
    source = open_input(options_of(str(data)))
    items = items_of(make_thumbnails(source), source.items)
    with servers(source, 1) as (address,):
        writer = StreamWriter(target_of(options_of(str(data), server=address)))
        began = time.perf_counter()
        for of_episode in items:
            writer.write(writer.encode(of_episode))
        writer.flush()
        seconds = time.perf_counter() - began
        writer.close()
    return {"wall_us": 1e6 * seconds / sum(map(len, items))}


def measure(sizes: Sizes) -> dict[str, Any]:
    datasets = {kind: make(kind, sizes.of(*steps)) for kind, steps in KINDS.items()}
    converted = {}
    for kind, data in datasets.items():
        for images in ("raw",) if kind == "state" else ("raw", "jpeg"):
            name = kind if images == "raw" else f"{kind}, --images=jpeg"
            runs = [convert(data, images) for _ in range(sizes.repeats)]
            converted[name] = min(runs, key=lambda run: run["cpu_us"])
    pushed = min((push(datasets["state"]) for _ in range(sizes.repeats)), key=lambda run: run["wall_us"])
    return {
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "quick": sizes.quick,
        "convert": converted,
        "push": {"state": pushed},
    }


def rounded(value: Any) -> Any:
    """Rounds to four significant digits."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small data, once")
    parser.add_argument("--repeats", type=int, help="runs of each; the best counts (default: 3, or 1 with --quick)")
    args = parser.parse_args()
    DATA.mkdir(exist_ok=True)
    print(json.dumps(rounded(measure(Sizes(args.repeats or (1 if args.quick else 3), args.quick))), indent=2))


if __name__ == "__main__":
    main()
