"""Measures what each stage costs a core.

    python benchmarks/rates/rates.py [--quick] [--repeats N] > benchmarks/rates/rates.json

Everything runs in this process, without Beam, episode by episode as in a worker. It measures processor time (user and
system, all threads), which other load disturbs little; the best of several runs counts. Prints the JSON that `cost.py`
reads: benchmarks/rates/rates.json is from the last full run.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import benchmarks_path  # noqa: F401
import job_rates
from cost import STAGES
from measuring import DATA, Sizes, make
from reverb_rates import push

from rlds_beam.checking.duplicates import scan
from rlds_beam.checking.validating import validate_episode
from rlds_beam.episodes.episode import Episode
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.jobs.convert import ConvertJob, prepare
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.output.shards import ShardWriter
from rlds_beam.reading.reader import read_segment
from rlds_beam.trajectories.converter import record_encoder
from rlds_beam.trajectories.frames import to_frames
from rlds_beam.trajectories.items import Items, Windows

KINDS = {"state": (2_000_000, 20_000), "png": (6_000, 200), "jpeg": (20_000, 200), "jpeg256": (1_200, 100)}
"""Steps of each kind of data (`data.py`) in a full and a quick run: enough to exceed the caches."""

REAL = Path(os.environ.get("RLDS_BEAM_REAL_DATA") or "no-real-data")


def cpu(function: Callable[..., Any], *args: Any, repeats: int = 1) -> float:
    """Processor seconds of this process: the best of several calls."""
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        function(*args)
        seconds.append(time.process_time() - began)
    return min(seconds)


@contextlib.contextmanager
def conversion(data: Path, images: str = "raw") -> Iterator[ConvertJob]:
    """A conversion to step pairs; the output is deleted at the end."""
    with tempfile.TemporaryDirectory(dir=DATA) as home:
        options = ConvertOptions.create(str(data), f"{home}/out", images=images, repair=("missing_is_last",))
        job = prepare(options)
        job.open()
        yield job


def stages(data: Path, images: str, repeats: int) -> dict[str, Any]:
    """Microseconds of a core per step, by stage, and the bytes of a step."""
    whole, output = float("inf"), 0
    for _ in range(repeats):  # each into its own output: a committed range would not run again
        with conversion(data, images) as job:
            whole = min(whole, cpu(convert, job))
            output = sum(p.stat().st_size for p in Path(job.directory).glob("*.tfrecord-*") if p.suffix != ".spec")
    with conversion(data, images) as job:
        segments, files = [s for work in job.ranges for s in work.segments], job.source.files
        runs = [staged(job) for _ in range(repeats)]
        seconds = min((clock.seconds for clock, _ in runs), key=lambda found: sum(found.values()))
        seconds["whole"] = whole
        seconds["duplicates"] = cpu(lambda: [scan(files, i, s) for i, s in enumerate(segments)], repeats=repeats)
        episodes, (steps, seen) = job.source.episodes, runs[0][1]
        return {
            "steps": steps,
            "episodes": episodes,
            "input_bytes": job.source.size / steps,
            "output_bytes": output / steps,
            "pixels": seen / steps,
            "cpu_us": {name: 1e6 * value / steps for name, value in seconds.items()},
        }


def convert(job: ConvertJob) -> None:
    """Converts all ranges of a newly opened job."""
    for work in job.ranges:
        job.converter.convert(work, {})


class Clock:
    """Processor seconds by stage; calling it runs a function under a stage's name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    def __call__(self, stage: str, function: Callable[..., Any], *args: Any) -> Any:
        began = time.process_time()
        result = function(*args)
        self.seconds[stage] += time.process_time() - began
        return result


def staged(job: ConvertJob) -> tuple[Clock, tuple[int, int]]:
    """Does what `RangeConverter.convert` does, timed, episode by episode; returns (steps, pixels)."""
    clock, reader, convert, steps, seen = Clock(), job.converter.reader, job.output.conversion, 0, 0
    encode = record_encoder(convert)
    for work in job.ranges:
        with ShardWriter(f"{job.directory}/measured") as shard:  # not committed, so it is deleted
            for segment in work.segments:
                records = read_segment(job.source.files, segment)
                while (record := clock("read", next, records, None)) is not None:
                    episode = clock("decode", reader.episode, work.split, segment, record)
                    for checked in clock("check", validate_episode, episode, job.check).episodes:
                        steps, seen = steps + len(checked), seen + pixels(checked)
                        frames = clock("frames", to_frames, checked, convert.frames)
                        items = Items(frames, Windows.of(len(frames), convert.items))
                        buffers = iter(clock("encode", encode, items).buffers)
                        while (buffer := clock("encode", next, buffers, None)) is not None:
                            clock("write", shard.write, [buffer], 1)
    return clock, (steps, seen)


def pixels(episode: Episode) -> int:
    """The number of pixels in all its images."""
    columns = [column for column in episode.steps.values() if isinstance(column, EncodedImages)]
    return sum(len(c) * (c.shape[0] or 0) * (c.shape[1] or 0) for c in columns)


def range_seconds(repeats: int) -> dict[str, float]:
    """The cost of an almost empty range (opening, naming, committing), in processor and wall seconds."""
    from rlds_beam.testing import make_episode, write_dataset

    with tempfile.TemporaryDirectory(dir=DATA) as home:
        made = write_dataset(Path(home), [make_episode(2, seed=i) for i in range(100)], name="tiny", shards=100)
        best = {"cpu": float("inf"), "wall": float("inf")}
        for i in range(repeats):
            job = prepare(ConvertOptions.create(str(made), f"{home}/out-{i}", shards=100))
            job.open()
            began, used = time.perf_counter(), time.process_time()
            convert(job)
            best["cpu"] = min(best["cpu"], (time.process_time() - used) / len(job.ranges))
            best["wall"] = min(best["wall"], (time.perf_counter() - began) / len(job.ranges))
        return best


def machine() -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
        return f"{os.cpu_count()} cores, {name}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores, Python {platform.python_version()}"


def measure(sizes: Sizes) -> dict[str, Any]:
    datasets = {kind: make(kind, sizes.of(*steps)) for kind, steps in KINDS.items()}
    if (REAL / "bridge_dataset").is_dir():
        datasets["bridge"] = REAL / "bridge_dataset" / "1.0.0"
    found: dict[str, Any] = {"date": datetime.date.today().isoformat(), "machine": machine(), "quick": sizes.quick}
    found["range_seconds"] = range_seconds(sizes.repeats)
    found["stages"] = {}
    for kind, data in datasets.items():
        for images in ("raw",) if kind == "state" else ("raw", "jpeg"):
            name = kind if images == "raw" else f"{kind}, --images=jpeg"
            print(name, file=sys.stderr, flush=True)
            found["stages"][name] = stages(data, images, sizes.repeats)
    print("jobs", file=sys.stderr, flush=True)
    found["jobs"] = job_rates.measure(sizes)
    found["push"] = {}
    for kind in ("state", "jpeg", "jpeg256"):
        print(f"push {kind}", file=sys.stderr, flush=True)
        found["push"][kind] = push(str(datasets[kind]), min(2, sizes.repeats))
    return found


def rounded(value: Any) -> Any:
    """Rounds to four significant digits."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small data, once")
    parser.add_argument(
        "--repeats", type=int, help="runs of each stage; the best counts (default: 3, or 1 with --quick)"
    )
    parser.add_argument("--jobs", type=Path, help="measure only the jobs again; take the rest from this file")
    args = parser.parse_args()
    DATA.mkdir(exist_ok=True)
    sizes = Sizes(args.repeats or (1 if args.quick else 3), args.quick)
    if args.jobs:
        found = {**json.loads(args.jobs.read_text()), "jobs": job_rates.measure(sizes)}
    else:
        found = measure(sizes)
    print(json.dumps(rounded(found), indent=2))


if __name__ == "__main__":
    main()
