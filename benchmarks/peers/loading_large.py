"""The first batch of a dataset that is too large to make: `python benchmarks/peers/loading_large.py FOLDER INTO`.

Repeats the index of FOLDER/rlds in INTO until its images would have so many gigabytes; they are all in the same files.
Opens it in another process, so that the writing is not measured. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from loading_checks import memory_mb
from loading_data import BATCH

AT_ONCE = 64
"""Copies that are written together."""


def write(folder: Path, into: Path, gigabytes: int) -> None:
    """Writes the repeated index."""
    os.environ["RLDS_BEAM_CACHE"] = str(into / "cache")
    from rlds_beam import open_dataset
    from rlds_beam.datasets.step_index import PLACE, seal

    open_dataset(folder / "rlds", unit="steps")
    ((small, large)) = next((into / "cache" / "steps").iterdir()), into / "index"
    content = json.loads((small / "index.json").read_text())
    (number,) = (i for i, column in enumerate(content["columns"]) if column["kind"] == "images")
    stored = int(np.fromfile(small / f"{number}.places.bin", PLACE)["size"].sum())
    copies = gigabytes * 10**9 // stored + 1
    making = into / "making"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    for path in set(small.glob("*.bin")) - {small / "checksums.bin"}:
        data = path.read_bytes()
        with open(making / path.name, "wb") as file:
            if path.name == "starts.bin":
                starts = np.frombuffer(data, np.int64)
                file.write(data[:8])
                for copy in range(copies):
                    file.write((starts[1:] + copy * starts[-1]).tobytes())
                continue
            for copy in range(0, copies, AT_ONCE):
                file.write(data * min(AT_ONCE, copies - copy))
    content.update(steps=content["steps"] * copies, episodes=content["episodes"] * copies, recipe=large.name)
    seal(str(making), content)
    making.rename(large)


def measure(index: Path) -> dict[str, float]:
    """Seconds from opening an index to the first shuffled batch."""
    from rlds_beam.datasets import batch_plan, windows  # noqa: F401
    from rlds_beam.datasets.dataset import Dataset
    from rlds_beam.datasets.step_index import StepIndex
    from rlds_beam.datasets.steps import IndexedSteps

    began = time.perf_counter()
    dataset = Dataset(IndexedSteps(StepIndex(str(index)), {}), str(index))
    batch = next(iter(dataset.batches(BATCH, shuffle=True, history=2, chunk=16, image_size=224)))
    seconds = time.perf_counter() - began
    assert batch["observation/image_0"].shape == (BATCH, 2, 224, 224, 3)
    return {"first_batch": seconds, "steps": len(dataset), "memory_mb": memory_mb()}


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("into", type=Path)
    parser.add_argument("--gigabytes", type=int, default=1000)
    parser.add_argument("--measure", action="store_true", help="only measure what was written")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.into / "index")))
        return
    if not (args.into / "index").exists():
        args.into.mkdir(exist_ok=True)
        write(args.folder, args.into, args.gigabytes)
    again = [sys.executable, __file__, args.folder, args.into, "--measure"]
    subprocess.run([str(word) for word in again], check=True, timeout=600)


if __name__ == "__main__":
    main()
