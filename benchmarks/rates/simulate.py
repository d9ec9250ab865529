"""Simulates many workers on shards of many sizes: `python benchmarks/rates/simulate.py [--kind KIND]`.

The ranges are those of the real planner (`rlds_beam.reading.plan`), over shard files that have the sizes but no content
(sparse ones, in a temporary directory). The cost of a range is measured (`rates.json`): a fixed cost, a cost for each
file it opens, and a cost per byte. Each cost is multiplied by a random factor, and some workers are slow. The same
arguments give the same figures.

Prints tables by number of workers: `balance` is the time divided by the lower bound of any assignment.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import benchmarks_path  # noqa: F401
import numpy as np
from cost import MEASURED, OPEN_X, Push, Rates, Stages, push_seconds
from measuring import table
from scheduling import ASSIGNMENTS, Array, Schedule, ideal, shared

from rlds_beam.encoding.tfrecord.file import TFRecordFormat
from rlds_beam.episodes.schema import Schema
from rlds_beam.formats.rlds.source import RldsSource
from rlds_beam.reading.base import Shard, Source, Split
from rlds_beam.reading.plan import WorkRange, plan_ranges

WORKERS = (4, 10, 30, 100, 300, 1000)
FINER = (4_096, 65_536)


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds of a worker at speed 1: per range, per file it opens, and per byte."""

    range: float
    open: float
    byte: float

    def of(self, ranges: Sequence[WorkRange]) -> Array:
        """Seconds of each range, float64 [ranges]."""
        opens = np.array([len(work.segments) for work in ranges], float)
        return self.range + self.open * opens + self.byte * sizes_of(ranges)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Workers of different speeds.

    Attributes:
      workers: the number of workers.
      slow: the share of workers at half speed.
      noise: sigma of the lognormal factor on each range (its mean is 1).
      share: the fraction of the shared resource that a busy worker uses (`scheduling.shared`).
      seed: seeds the choice of slow workers and the noise.
    """

    workers: int
    slow: float = 0.02
    noise: float = 0.2
    share: float = 0.0
    seed: int = 0

    def run(self, costs: Array, assignment: str) -> Outcome:
        """Runs the assignment (from `ASSIGNMENTS`) of costs (from `Costs.of`)."""
        rng = np.random.default_rng(self.seed)
        speeds = np.where(rng.permutation(self.workers) < round(self.slow * self.workers), 0.5, 1.0)
        costs = costs * rng.lognormal(-(self.noise**2) / 2, self.noise, len(costs))
        schedule = shared(ASSIGNMENTS[assignment](costs, speeds, self.seed), self.share)
        return Outcome(schedule, ideal(costs, speeds, self.share))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A schedule, and the lower bound of any schedule in seconds."""

    schedule: Schedule
    ideal: float

    @property
    def balance(self) -> float:
        return self.schedule.makespan / self.ideal


def sizes_of(ranges: Sequence[WorkRange]) -> Array:
    """Input bytes of each range, float64 [ranges]."""
    return np.array(
        [sum((s.shard.size if s.stop is None else s.stop) - s.start for s in work.segments) for work in ranges], float
    )


def shard_sizes(count: int, total: float, sigma: float, seed: int = 0) -> list[int]:
    """Lognormal sizes that add up to about `total` bytes; sigma 0 makes them equal."""
    drawn = np.random.default_rng(seed).lognormal(0, sigma, count)
    return [max(1, round(size)) for size in (drawn * (total / drawn.sum())).tolist()]


@contextmanager
def dataset(sizes: Sequence[int]) -> Iterator[Source]:
    """A dataset of plain TFRecord shards of these sizes; the files are sparse."""
    with tempfile.TemporaryDirectory(prefix="shards-") as home:
        shards = []
        for i, size in enumerate(sizes):
            path = os.path.join(home, f"sim-train.tfrecord-{i:05d}-of-{len(sizes):05d}")
            Path(path).touch()
            os.truncate(path, size)
            shards.append(Shard(i, path, size, None))
        yield RldsSource("sim/1.0.0", "", Schema({}, {}), TFRecordFormat(), (Split("train", tuple(shards)),))


def unchanged(shard: Shard, positions: Sequence[int]) -> Sequence[int]:
    """Replaces `Framing.record_starts`, because the files are sparse."""
    return positions


def plans(source: Source, finer: Sequence[int]) -> dict[str, tuple[WorkRange, ...]]:
    """The plans: a range for each shard, the planner's choice, and more ranges than that."""
    made, seconds = {}, []
    asked = [("a part a shard", None, True), ("the planner's", None, False)]
    asked += [(f"--shards={count}", count, False) for count in finer]
    for name, shards, whole in asked:
        began = time.perf_counter()
        ranges = plan_ranges(source, shards, whole_shards=whole, starts=unchanged)
        seconds.append(f"{name}: {time.perf_counter() - began:.1f} s")
        made[f"{name} ({len(ranges):,})"] = ranges
    print(f"planned in {', '.join(seconds)}")
    return made


def share_of(stages: Stages, push: Push | None, bandwidth: float, servers: float) -> float:
    """The fraction of the network (bytes/s) or of all servers' cores that a busy worker uses, whichever is larger."""
    if push is None:
        rate, moved = 1 / stages.seconds_per_byte, 1 + stages.growth
        return rate * moved / bandwidth if bandwidth else 0.0
    pairs = 1 / push_seconds(stages, push)
    network = pairs * (stages.input_bytes + push.wire_bytes) / bandwidth if bandwidth else 0.0
    return max(network, pairs * push.server_us * 1e-6 / servers if servers else 0.0)


def show(found: dict[str, dict[str, dict[int, Outcome]]], workers: Sequence[int]) -> None:
    for assignment, by_plan in found.items():
        rows = [[name, *(f"{run[n].balance:.2f}" for n in workers)] for name, run in by_plan.items()]
        table(f"parts {assignment}: balance on ... workers", ["", *map(str, workers)], *rows)
    rows = []
    for assignment, by_plan in found.items():
        for name, run in by_plan.items():
            for n in (workers[0], workers[-1]):
                at = run[n].schedule
                cells = [
                    f"{at.makespan / 3600:,.2f}",
                    f"{run[n].ideal / 3600:,.2f}",
                    f"{at.utilization:.0%}",
                    f"{at.tail:.0%}",
                ]
                rows.append([f"{n} workers, {name}, {assignment}", *cells])
    table("hours", ["", "all done", "ideal", "utilization", "tail"], *rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=Path, default=MEASURED, help="output of rates.py")
    parser.add_argument("--kind", default="jpeg256", help="kind of data, one of those in --rates")
    parser.add_argument("--push", action="store_true", help="push to Reverb instead of writing files")
    parser.add_argument("--bytes", type=float, default=OPEN_X[0])
    parser.add_argument("--shards", type=int, default=10_000, help="input shards")
    parser.add_argument("--sigma", type=float, default=1.5, help="sigma of the lognormal shard sizes")
    parser.add_argument("--finer", type=int, nargs="*", default=FINER, help="numbers of parts")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--slow", type=float, default=0.02, help="share of workers at half speed")
    parser.add_argument("--noise", type=float, default=0.2, help="sigma of the factor on each range")
    parser.add_argument("--open_seconds", type=float, default=0.1, help="seconds to open a file (assumed: in a bucket)")
    parser.add_argument("--bandwidth", type=float, default=0, help="total GB/s of all workers (0: no limit)")
    parser.add_argument("--server_cores", type=float, default=0, help="total cores of all Reverb servers (0: no limit)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rates = Rates.read(args.rates)
    stages, push = rates.stages[args.kind], rates.push[args.kind] if args.push else None
    byte = push_seconds(stages, push) / stages.input_bytes if push else stages.seconds_per_byte
    costs = Costs(rates.range_seconds["wall"], args.open_seconds, byte)
    share = share_of(stages, push, args.bandwidth * 1e9, args.server_cores)
    sizes = shard_sizes(args.shards, args.bytes, args.sigma, args.seed)
    median, largest = np.median(sizes) / 1e9, max(sizes) / 1e9
    print(f"{len(sizes):,} shards, {sum(sizes) / 1e12:.2f} TB: median {median:.2f} GB, largest {largest:.1f} GB")
    with dataset(sizes) as source:
        made = {name: costs.of(ranges) for name, ranges in plans(source, args.finer).items()}
    began = time.perf_counter()
    found = {
        assignment: {
            name: {n: Cluster(n, args.slow, args.noise, share, args.seed).run(cost, assignment) for n in args.workers}
            for name, cost in made.items()
        }
        for assignment in ASSIGNMENTS
    }
    print(f"simulated in {time.perf_counter() - began:.1f} s")
    show(found, args.workers)


if __name__ == "__main__":
    main()
