"""What a conversion costs for each input shard: `python benchmarks/shards.py [SHARDS ...]` (2000 20000 200000).

Plans a conversion of tiny RLDS shards, hard links to a few files, each number in its own process. Prints the command's
memory and the seconds and bytes of planning; the last columns are of one shard, from one row to the next.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from measuring import DATA, table

LINKS = 60_000
"""The most links to one file: file systems have a limit."""


def dataset(shards: int) -> Path:
    """The directory of a dataset with this many shards; made once."""
    from rlds_beam.testing import make_episode, write_dataset

    target = DATA / f"shards_{shards}" / "toy" / "1.0.0"
    if target.exists():
        return target
    making = target.with_name("making")
    shutil.rmtree(making, ignore_errors=True)
    one = Path(write_dataset(making, [make_episode(3)], name="toy", shards=1))
    info = json.loads((one / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"] = ["1"] * shards
    (one / "dataset_info.json").write_text(json.dumps(info))
    (shard,) = one.glob("*.tfrecord-*")
    content = shard.read_bytes()
    shard.unlink()
    paths = [one / f"toy-train.tfrecord-{i:05d}-of-{shards:05d}" for i in range(shards)]
    for i, path in enumerate(paths):
        if i % LINKS:
            os.link(paths[i - i % LINKS], path)
        else:
            path.write_bytes(content)
    one.rename(target)
    shutil.rmtree(making)
    return target


def plan(directory: Path) -> dict[str, float]:
    """Plans a conversion without the search for duplicates; bytes of what is written and sent to workers."""
    import tempfile

    import cloudpickle

    from rlds_beam.jobs.convert import prepare
    from rlds_beam.jobs.options import ConvertOptions
    from rlds_beam.reading.shard_list import spill_lists

    began = time.perf_counter()
    output = str(DATA / "shards_out")
    job = prepare(ConvertOptions.create(str(directory), output, accept=("duplicate_episode",)))
    seconds, memory = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory(prefix="rlds-beam-", ignore_cleanup_errors=True) as shared, spill_lists(shared):
        stages = sum(len(cloudpickle.dumps(stage)) for stage in job.stages(pending=job.ranges))
    return {"seconds": seconds, "memory_mb": memory, "input_bytes": len(job.plan.inputs), "stage_bytes": stages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="*", type=int, default=[2_000, 20_000, 200_000])
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plan:
        print(json.dumps(plan(given.plan)))
        return
    DATA.mkdir(exist_ok=True)
    rows: list[list[str]] = []
    before: tuple[int, dict[str, float]] | None = None
    for count in given.shards:
        ran = [sys.executable, __file__, "--plan", str(dataset(count))]
        found = json.loads(subprocess.run(ran, check=True, stdout=subprocess.PIPE).stdout)
        row = [f"{count:,}", f"{found['memory_mb']:,.0f}", f"{found['seconds']:.1f}", f"{found['stage_bytes']:,}"]
        if before is None:
            row += [""] * 3
        else:
            more, last = count - before[0], before[1]
            row.append(f"{(found['memory_mb'] - last['memory_mb']) * 1024 / more:.2f}")
            row.append(f"{(found['seconds'] - last['seconds']) * 1e6 / more:.0f}")
            row.append(f"{(found['input_bytes'] - last['input_bytes']) / more:.1f}")
        rows.append(row)
        before = count, found
    head = ["shards", "MB", "planning s", "bytes of stages", "KB a shard", "us a shard", "bytes in the plan's file"]
    table("a conversion of RLDS, planned", head, *rows)


if __name__ == "__main__":
    main()
