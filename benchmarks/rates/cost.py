"""The cost model: what a byte of input costs a core, measured by `rates.py`, and what follows for large datasets.

    python benchmarks/rates/cost.py [--rates FILE] [--bytes N] [--episodes N]

prints the tables of docs/explanation/scaling.md. Seconds are those of one core; bytes are those of the files.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import benchmarks_path  # noqa: F401
from measuring import table

from rlds_beam.reading.plan import MAX_RANGES, RANGE_BYTES

MEASURED = Path(__file__).resolve().parent / "rates.json"
STAGES = ("read", "decode", "check", "frames", "encode", "write")
OPEN_X = 9e12, 2.4e6
"""Bytes and episodes of Open X-Embodiment."""
DROID = 1.7e12, 92_233
"""Bytes and episodes of DROID as RLDS."""
CORE_HOUR = 0.05
"""Dollars per core hour: an assumption, close to clouds' list prices."""


@dataclasses.dataclass(frozen=True)
class Stages:
    """What converting one kind of data to step pairs costs.

    Attributes:
      input_bytes, output_bytes: bytes of a step in the files.
      pixels: pixels of a step's images.
      cpu_us: microseconds of a core per step, by stage: `STAGES`; `duplicates`, the scan of the framing beforehand;
        and `whole`, all of `STAGES` together, as a range runs them.
    """

    input_bytes: float
    output_bytes: float
    pixels: float
    cpu_us: Mapping[str, float]

    @property
    def seconds_per_byte(self) -> float:
        """Core seconds of a range's work, per byte of input."""
        return self.cpu_us["whole"] * 1e-6 / self.input_bytes

    @property
    def look_per_byte(self) -> float:
        """Seconds of the scan for duplicates, per byte of input."""
        return self.cpu_us["duplicates"] * 1e-6 / self.input_bytes

    @property
    def growth(self) -> float:
        """Bytes of output per byte of input."""
        return self.output_bytes / self.input_bytes


@dataclasses.dataclass(frozen=True)
class Push:
    """What pushing one step pair costs.

    Attributes:
      client_us, server_us: microseconds of a core, from frames on.
      server_bytes: bytes of the server's memory.
      wire_bytes: bytes sent over the network.
    """

    client_us: float
    server_us: float
    server_bytes: float
    wire_bytes: float


@dataclasses.dataclass(frozen=True)
class Rates:
    """The measured figures.

    Attributes:
      date, machine: when and where they were measured.
      range_seconds: fixed cost of a range, `cpu` and `wall`.
      stages, push: costs by kind of data.
      jobs: costs by job (`job_rates`), each for one kind of data.
    """

    date: str
    machine: str
    range_seconds: Mapping[str, float]
    stages: Mapping[str, Stages]
    push: Mapping[str, Push]
    jobs: Mapping[str, Stages] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = MEASURED) -> Rates:
        """Reads the output of `rates.py`."""
        content = json.loads(path.read_text())
        stages = {name: _only(Stages, found) for name, found in content["stages"].items()}
        push = {name: _only(Push, found) for name, found in content["push"].items()}
        jobs = {name: _only(Stages, found) for name, found in content.get("jobs", {}).items()}
        return cls(content["date"], content["machine"], content["range_seconds"], stages, push, jobs)


def _only(kind: Any, found: Mapping[str, Any]) -> Any:
    return kind(**{field.name: found[field.name] for field in dataclasses.fields(kind)})


def range_count(size: float) -> int:
    """Number of ranges, and so of output shards, planned for plain shards of `size` bytes in one split."""
    return min(MAX_RANGES, math.ceil(size / RANGE_BYTES))


def core_seconds(stages: Stages, rates: Rates, size: float) -> float:
    """Core seconds of a whole conversion: the scan for duplicates, the ranges, and each range's fixed cost."""
    work = size * (stages.seconds_per_byte + stages.look_per_byte)
    return work + range_count(size) * rates.range_seconds["wall"]


def push_seconds(stages: Stages, push: Push) -> float:
    """Client seconds per step pushed as a pair: read, decode, check, and frames, then `client_us`."""
    return sum(stages.cpu_us[name] for name in STAGES[:4]) * 1e-6 + push.client_us * 1e-6


def server_rate(push: Push, cores: float) -> float:
    """Pairs per second that a server accepts on `cores` cores."""
    return cores * 1e6 / push.server_us


def show_stages(rates: Rates) -> None:
    names = (*STAGES, "whole", "duplicates")
    rows = [
        [kind, f"{s.input_bytes:,.0f}", *(f"{s.cpu_us[name]:,.2f}" for name in names)]
        for kind, s in rates.stages.items()
    ]
    table("microseconds of a core for a step, by stage", ["", "bytes in", *names], *rows)
    rows = [
        [kind, f"{1e-6 / s.seconds_per_byte:,.1f}", f"{1e6 / s.cpu_us['whole']:,.0f}", f"{s.growth:.2f}"]
        for kind, s in rates.stages.items()
    ]
    table("a core converts, to pairs", ["", "MB/s in", "steps/s", "bytes out / in"], *rows)


def show_dataset(rates: Rates, kinds: Sequence[str], size: float, episodes: float) -> None:
    """Prints the cost of a dataset that is all of one kind."""
    rows = []
    for kind in kinds:
        stages = rates.stages[kind]
        seconds = core_seconds(stages, rates, size)
        hours = [f"{seconds / workers / 3600:,.2f}" for workers in (10, 100, 1000)]
        out = size * stages.growth
        both = [f"{(size + out) * workers / seconds / 1e9:,.2f}" for workers in (100, 1000)]
        steps = f"{size / stages.input_bytes / 1e6:,.0f}"
        rows.append([kind, steps, f"{seconds / 3600:,.0f}", *hours, f"{out / 1e12:,.1f}", *both])
    count = range_count(size)
    head = ["", "M steps", "core-hours", "h on 10", "on 100", "on 1000", "TB out", "GB/s at 100", "at 1000"]
    table(f"{size / 1e12:g} TB, {episodes / 1e6:g} M episodes, to pairs: workers of one core, evenly busy", head, *rows)
    print(
        f"  {count:,} parts, as many output shards: {size / count / 1e9:,.2f} GB of input each, "
        f"{episodes / count:,.0f} episodes"
    )


def show_jobs(rates: Rates) -> None:
    """Prints the cost of jobs on images, per step and for the two large datasets."""
    rows = [
        [name, f"{s.input_bytes:,.0f}", f"{s.cpu_us['whole']:,.0f}", f"{1e6 / s.cpu_us['whole']:,.0f}",
         f"{1e-6 / s.seconds_per_byte:,.1f}", f"{s.growth:.2f}"]
        for name, s in rates.jobs.items()
    ]  # fmt: skip
    table("jobs on images", ["", "bytes in", "us a step", "steps/s", "MB/s in", "bytes out / in"], *rows)
    for dataset, (size, _) in (("DROID", DROID), ("Open X-Embodiment", OPEN_X)):
        rows = []
        for name, stages in rates.jobs.items():
            hours = core_seconds(stages, rates, size) / 3600
            each = [f"{hours / workers:,.2f}" for workers in (1, 10, 100)]
            rows.append([name, *each, f"{CORE_HOUR * hours:,.2f}", f"{size * stages.growth / 1e12:,.2f}"])
        head = ["", "h on 1", "on 10", "on 100", "dollars", "TB out"]
        table(f"{dataset}: {size / 1e12:g} TB, workers of one core, evenly busy", head, *rows)


def show_push(rates: Rates, size: float) -> None:
    rows = []
    for kind, push in rates.push.items():
        stages = rates.stages[kind]
        client, steps = push_seconds(stages, push), size / stages.input_bytes
        rate = server_rate(push, 1)
        memory = push.server_bytes
        rows.append(
            [kind, f"{1 / client:,.0f}", f"{rate:,.0f}", f"{rate * client:,.1f}", f"{push.wire_bytes:,.0f}",
             f"{memory:,.0f}", f"{memory / 1e3:,.2f}", f"{steps * memory / 1e12:,.1f}"]
        )  # fmt: skip
    head = [
        "",
        "a client",
        "a server's core",
        "clients it feeds on",
        "wire bytes",
        "bytes in RAM",
        "GB a M",
        "TB in all",
    ]
    table("step pairs a second into Reverb, and what a pair takes", head, *rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=Path, default=MEASURED)
    parser.add_argument("--bytes", type=float, default=OPEN_X[0])
    parser.add_argument("--episodes", type=float, default=OPEN_X[1])
    args = parser.parse_args()
    rates = Rates.read(args.rates)
    print(f"measured {rates.date}: {rates.machine}")
    ms = {name: f"{1e3 * seconds:.1f}" for name, seconds in rates.range_seconds.items()}
    print(f"a range costs {ms['cpu']} ms of a core and {ms['wall']} ms of wall time")
    show_stages(rates)
    show_dataset(rates, [kind for kind in rates.stages if kind != "state"], args.bytes, args.episodes)
    show_jobs(rates)
    show_push(rates, args.bytes)


if __name__ == "__main__":
    main()
