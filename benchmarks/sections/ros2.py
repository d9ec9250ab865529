"""`--from=ros2` against decode loops with mcap and rosbags."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from measuring import (
    DATA,
    HERE,
    Figure,
    Measurement,
    Sizes,
    at_least,
    best,
    command,
    convert,
    ratios,
    table,
)

KINDS = {"zstd.mcap": ("mcap", "rosbags"), "plain.mcap": ("mcap", "rosbags"), "bag.db3": ("rosbags",)}
"""The files, and the peers that read them."""

TOPICS = """reference: /camera_0/compressed
fps: 30
episodes: {gap_s: 0.5}
fields:
  observation/image_0: {topic: /camera_0/compressed}
  observation/image_1: {topic: /camera_1/compressed}
  observation/state: {topic: /joint_states, field: position, names: [NAMES], dtype: float32}
  action: {topic: /leader/joint_states, field: position, names: [NAMES], dtype: float32}
"""


def ros2(sizes: Sizes) -> list[Figure]:
    """One worker against loops that people write, writing RLDS, and without output, by processor time."""
    figures = []
    for kind, peers in KINDS.items():
        figures += _compared(sizes, kind, peers)
    return figures


def _compared(sizes: Sizes, kind: str, peers: tuple[str, ...]) -> list[Figure]:
    bag = _made(kind, sizes.of(60, 20))
    size = bag.stat().st_size / 1e6
    runs: dict[str, list[Measurement]] = {}
    for _ in range(sizes.repeats):
        for name in (*peers, *(f"{peer}_read" for peer in peers), "ours_read"):
            runs.setdefault(name, []).append(_peer(name, bag))
        runs.setdefault("ours", []).append(_converted(bag))
    fastest = {name: best(some) for name, some in runs.items()}
    steps = {one.content["steps"] for one in fastest.values()}
    if len(steps) != 1:
        sys.exit(f"{bag}: not all made the same steps: {sorted(steps)}")
    rows, figures = [], []
    for name, one in fastest.items():
        ours = fastest["ours_read" if name.endswith("_read") else "ours"]
        ratio = "" if one is ours else f"{ours.rate / one.rate:.2f}"
        rows.append([name, f"{one.rate:,.0f}", f"{size / one.working:,.0f}", f"{one.peak_mb:,.0f}", ratio])
        if one is not ours:
            library, reading = name.removesuffix("_read"), name.endswith("_read")
            figures.append(
                at_least(
                    f"ros2, {kind}: ours, times {name}",
                    ours.rate / one.rate,
                    0.8 if reading else 1,  # the same libraries read
                    what=f"read ROS 2, {kind}, by processor time" if reading else f"convert ROS 2, {kind}, to RLDS",
                    against=f"a loop with {library}{'' if reading else ' and a writer of RLDS'}",
                    peer=library,
                    runs=ratios(runs["ours_read" if reading else "ours"], runs[name]),
                )
            )
    table(
        f"ros2, {kind} of {size:,.0f} MB, one process; _read: without output, by processor time",
        ["", "steps/s", "MB/s", "peak MB", "ours, times it"],
        *rows,
    )
    speed, what = size / fastest["ours_read"].working, f"read ROS 2, {kind}, by processor time"
    return [*figures, at_least(f"ros2, {kind}: MB/s, reading", speed, 100, what=what, unit="MB/s")]


def _peer(kind: str, bag: Path) -> Measurement:
    printed, _ = command([sys.executable, HERE / "peers/ros2_peer.py", kind, bag])
    content = json.loads(printed.splitlines()[-1])
    seconds = content["processor_seconds" if kind.endswith("_read") else "seconds"]
    return Measurement(content, content["steps"] / seconds, seconds, peak_mb=content["peak_mb"])


def _converted(bag: Path) -> Measurement:
    topics = f"--topics={bag.parent / 'topics.yaml'}"
    return convert(bag, "--from=ros2", topics, "--to=rlds", "--workers=1")


def _made(kind: str, seconds: int) -> Path:
    room = DATA / f"ros2_{seconds}"
    room.mkdir(exist_ok=True)
    names = ", ".join(f"joint_{i}" for i in range(7))
    (room / "topics.yaml").write_text(TOPICS.replace("NAMES", names))
    return Path(command([sys.executable, HERE / "peers/ros2_peer.py", "make", room / kind, seconds])[0].strip())
