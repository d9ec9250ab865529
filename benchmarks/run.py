"""Measures rlds-beam and its peers on the same data, in one run.

    python benchmarks/run.py [SECTION ...] [--quick] [--repeats N]

Each command runs `--repeats` times in its own process, alternating between ours and the peers'. The best run counts,
because other load only ever makes a run slower. Start-up time is excluded for all and reported separately.
The first run generates its data in bench_data/; results.json is written there. A full run of a section also updates its
rows in docs/figures.json (`make docs` then updates the page). Close everything else.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from figures import save
from measuring import (
    COMMAND,
    DATA,
    Figure,
    Measurement,
    Sizes,
    at_least,
    below,
    best,
    command,
    convert,
    make,
    ratios,
    script,
    table,
)
from sections import (
    defects,
    hdf5,
    lerobot,
    loading,
    record,
    remote,
    reverb,
    rlds,
    rllib,
    ros2,
)

ROOT = Path(__file__).resolve().parent.parent
REAL = Path(os.environ.get("RLDS_BEAM_REAL_DATA") or ROOT / "no-real-data") / "bridge_dataset" / "1.0.0"
COLD = [
    ("convert, 25 real episodes", ["convert", str(REAL), str(DATA / "real"), "--repair=missing_is_last"], 10.0),
    ("--help", ["--help"], 0.5),
    ("convert --help", ["convert", "--help"], 0.5),
]


def state(sizes: Sizes) -> list[Figure]:
    """Half-cheetah episodes against TF-Agents' rlds_to_reverb and TFRecordObserver."""
    steps, peer_steps = sizes.of(1_000_000, 200_000), sizes.of(3_000, 1_000)
    data, small = make("state", steps), make("state", steps // 5)
    runs: dict[str, list[Measurement]] = {"frames": [], "pairs": [], "small": [], "peer": []}
    for _ in range(sizes.repeats):
        runs["peer"].append(script("peers/tf_agents_peer.py", data, DATA / "peer.tfrecord", "--steps", peer_steps))
        for items in ("frames", "pairs"):
            runs[items].append(convert(data, f"--items={items}", "--workers=1"))
        runs["small"].append(convert(small, "--items=pairs", "--workers=1"))
    peer, ours = best(runs["peer"]), {items: best(runs[items]) for items in ("frames", "pairs")}
    everything = _seconds(runs["pairs"]), _seconds(runs["small"])
    growth = (steps - steps // 5) / (everything[0] - everything[1])
    table(
        f"half-cheetah, {steps:,} steps (TF-Agents: {peer_steps:,}), one worker",
        ["", "steps/s", "start-up s", "ratio"],
        ["TF-Agents, frames", f"{peer.rate:,.0f}", f"{peer.start_up:.1f}", ""],
        *([f"ours, {k}", f"{m.rate:,.0f}", f"{m.start_up:.1f}", f"{m.rate / peer.rate:,.0f}"] for k, m in ours.items()),
        ["ours, pairs, last 80 % of the job", f"{growth:,.0f}", "", f"{growth / peer.rate:,.0f}"],
    )
    print("  The last line is wall-clock time, including planning, the search for duplicates, and the commit.")
    return [
        at_least(
            f"state, {k}: times TF-Agents",
            m.rate / peer.rate,
            300,
            what=f"`convert --items={k}`, half-cheetah",
            against="TF-Agents' `convert_rlds_to_trajectories` and `TFRecordObserver`",
            peer="TF-Agents",
            front="Convert to trajectories" * (k == "frames"),
            runs=ratios(runs[k], runs["peer"]),
        )
        for k, m in ours.items()
    ]


def workers(sizes: Sizes) -> list[Figure]:
    """Two worker processes against one."""
    data = make("state", sizes.of(4_000_000, 1_000_000), files=4)
    runs: dict[int, list[Measurement]] = {1: [], 2: []}
    for _ in range(sizes.repeats):
        for count, found in runs.items():
            found.append(convert(data, "--items=pairs", "--shards=16", f"--workers={count}"))
    one, two = best(runs[1]), best(runs[2])
    table(
        f"workers: {one.content['steps']:,} steps, 16 ranges",
        ["workers", "steps/s", "at work s", "start-up s", "ratio"],
        ["1", f"{one.rate:,.0f}", f"{one.working:.2f}", f"{one.start_up:.1f}", ""],
        ["2", f"{two.rate:,.0f}", f"{two.working:.2f}", f"{two.start_up:.1f}", f"{two.rate / one.rate:.2f}"],
    )
    return [
        at_least(
            "two workers: times one",
            two.rate / one.rate,
            1.7,
            what="`convert --items=pairs` with two workers",
            against="one worker",
            runs=ratios(runs[2], runs[1]),
        )
    ]


def images(sizes: Sizes) -> list[Figure]:
    """4 cameras of 64x64, against TF-Agents with TFDS decoding."""
    steps, peer_steps, figures = sizes.of(4_000, 1_000), sizes.of(2_000, 300), []
    for encoding in ("png", "jpeg"):
        data = make(encoding, steps)
        runs: dict[tuple[str, int], list[Measurement]] = {(i, w): [] for w in (1, 2) for i in ("frames", "pairs")}
        peers = []
        for _ in range(sizes.repeats if encoding == "png" else 1):  # only PNG has a target
            # A long warm-up: TFDS decodes whole episodes ahead, and must have as many ready before as after.
            flags = ("--steps", peer_steps, "--warm_up", sizes.of(500, 100))
            peers.append(script("peers/tf_agents_peer.py", data, DATA / "peer.tfrecord", *flags))
            for (items, count), found in runs.items():
                found.append(convert(data, f"--items={items}", "--shards=8", f"--workers={count}"))
        peer, rows = best(peers), []
        label = f"TF-Agents, frames, {peer.content['cores']:.1f} cores"
        rows.append([label, f"{peer.rate:,.0f}", f"{peer.start_up:.1f}", ""])
        for (items, count), found in runs.items():
            ours = best(found)
            ratio = ours.rate / peer.rate
            label = f"ours, {items}, {count} worker{'s' * (count > 1)}"
            rows.append([label, f"{ours.rate:,.0f}", f"{ours.start_up:.1f}", f"{ratio:.1f}"])
            figures.append(_of_images(f"{encoding}, {items}, {count} worker(s)", ratio, found, peers))
        title = f"{encoding}, 4 cameras of 64x64, {steps:,} steps (TF-Agents: {peer_steps:,}, on all cores)"
        table(title, ["", "steps/s", "start-up s", "ratio"], *rows)
    return figures


def _of_images(name: str, ratio: float, *runs: list[Measurement]) -> Figure:
    encoding, items, workers = name.split(", ")
    return at_least(
        f"{name}: times TF-Agents",
        ratio,
        # TF-Agents decodes on all cores, so the target is for as many workers.
        4 if encoding == "png" and workers[0] == "2" else None,
        what=f"{items} of 4 {encoding.upper()} cameras, {workers.replace('(s)', 's' * (workers[0] > '1'))}",
        peer="TF-Agents",
        against="TF-Agents with TFDS decoding, on all cores",
        runs=ratios(*runs),
        front="Convert 4 PNG cameras" * name.startswith("png, frames, 2"),
    )


def cold(sizes: Sizes) -> list[Figure]:
    """Seconds a user waits, from a cold process."""
    figures = []
    for name, arguments, target in COLD:
        if arguments[0] == "convert" and len(arguments) > 2 and not REAL.is_dir():
            print(f"\n{name}: skipped, there is no {REAL} (set RLDS_BEAM_REAL_DATA to its folder)")
            continue
        seconds = []
        for _ in range(sizes.repeats):
            shutil.rmtree(DATA / "real", ignore_errors=True)
            began = time.perf_counter()
            command([COMMAND, *arguments])
            seconds.append(time.perf_counter() - began)
        what = f"`rlds-beam {name}`" if name.endswith("help") else name
        figures.append(
            below(
                f"cold: seconds for {name}",
                min(seconds),
                target,
                what=f"{what} from a cold process",
                unit="s",
                runs=tuple(seconds),
            )
        )
    table("from a cold process", ["", "seconds"], *([f.name, f"{f.measured:.2f}"] for f in figures))
    return figures


SECTIONS: dict[str, Callable[[Sizes], list[Figure]]] = {
    "state": state,
    "workers": workers,
    "images": images,
    "cold": cold,
    "reverb": reverb.reverb,
    "rllib": rllib.rllib,
    "record": record.record,
    "lerobot": lerobot.lerobot,
    "rlds": rlds.rlds,
    "hdf5": hdf5.hdf5,
    "ros2": ros2.ros2,
    "defects": defects.defects,
    "loading": loading.loading,
    "remote": remote.remote,
}


def _seconds(runs: list[Measurement]) -> float:
    return min(run.working + run.start_up for run in runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small data, once")
    parser.add_argument(
        "--repeats", type=int, help="runs of each command; the best counts (default: 3, or 1 with --quick)"
    )
    args = parser.parse_args()
    unknown = [name for name in args.section if name not in SECTIONS]
    if unknown:
        parser.error(f"no section {unknown[0]}; choose from {', '.join(SECTIONS)}")
    sizes = Sizes(args.repeats or (1 if args.quick else 3), args.quick)
    DATA.mkdir(exist_ok=True)
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f} before the start, Python {platform.python_version()}")
    figures = []
    for name in args.section or SECTIONS:
        figures += (measured := SECTIONS[name](sizes))
        if not args.quick:
            save(f"run.py {name}", measured)
    rows = [[f.name, f.target_text, f"{f.measured:,.2f}", f.verdict] for f in figures]
    table("summary", ["", "target", "measured", ""], *rows)
    result = {
        "quick": args.quick,
        "repeats": sizes.repeats,
        "cores": os.cpu_count(),
        "load_before": load,
        "figures": [dataclasses.asdict(f) for f in figures],
    }
    (DATA / "results.json").write_text(json.dumps(result, indent=2) + "\n")
    return int(any(f.verdict == "MISSED" for f in figures) and not args.quick)


if __name__ == "__main__":
    sys.exit(main())
